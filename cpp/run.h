// The loop over the steps of one member: solvers/integration.py for one system. It ends when Python must look.
#pragma once

#include "gather.h"
#include "watch.h"

namespace attractor::ATTRACTOR_ISA {

template <int D>
class Runner {
    const March& march;
    const int64_t row;
    Arena arena;
    Field<D> field;
    Step<D> step;
    Gather<D> gather;
    Watch<D> watch;
    double *y_next, *f_next, *spare;
    double t, t_low, h;
    bool retried;
    int64_t flags = 0;

public:
    Runner(const March& m, int64_t row_, void* memory)
        : march(m), row(row_), arena(memory), field(m, row_, arena), step(m, field, arena), gather(m, field, row_, arena),
          watch(m, field, row_), t(m.t[row_]), t_low(m.t_low[row_]), h(m.h[row_]), retried(m.retried[row_]) {
        const int64_t size = m.width * m.d;
        y_next = arena.take(size), f_next = arena.take(size), spare = arena.take(size);
        copy(m.y + row * size, step.y, field.count);
        copy(m.f + row * size, step.f, field.count);
    }

    static size_t room(const March& m) {
        const int64_t arrays = Step<D>::arrays(m.tableau) + 4;
        return sizeof(double) * size_t(Field<D>::room(m) + Gather<D>::room(m) + arrays * Arena::padded(m.width * m.d));
    }

    void run() {
        if (march.fresh) enter();
        for (int64_t attempt = 0; attempt < march.attempts && !flags; attempt++) {
            if (attempt && march.late(march)) break;
            advance((march.end - t) - t_low);
        }
        write();
    }

private:
    void copy(const double* from, double* to, int64_t count) const {
        __builtin_memcpy(to, from, sizeof(double) * size_t(count * field.dim()));
    }

    void advance(double left) {
        double now = h < left ? h : left;
        now = left < 1.000001 * now ? left : now;
        step.attempt(now);
        const double error = step.error();
        const bool fits = error <= 1;
        double grown = now * factor(error, fits);
        // a step cut short by the end says nothing about the step to use next
        if (fits && now < h && grown < h) grown = h;
        h = grown < march.end - march.start ? grown : march.end - march.start;
        retried = !fits;
        (fits ? march.accepted : march.rejected)[row]++;
        if (fits) return accept(now, now == left);
        if (watch.stuck(step.y, step.f, t, h)) flags |= Flag::failed;
    }

    // How much longer or shorter the next step is (solvers/step_control.py).
    double factor(double error, bool fits) const {
        const double ideal = march.safety * __builtin_pow(error > 1e-300 ? error : 1e-300, -1.0 / march.tableau.order);
        const double most = fits && !retried ? march.grow : 1;
        return ideal < march.shrink ? march.shrink : ideal > most ? most : ideal;
    }

    // The clock, with the rounding of every sum carried on; it shows the end exactly.
    void tick(double now, bool there) {
        const double move = now + t_low, total = t + move;
        t_low = there ? 0 : (t - (total - (total - t))) + (move - (total - t));
        t = there ? march.end : total;
    }

    void accept(double now, bool there) {
        const int64_t d = field.dim();
        for (int64_t i = 0; i < field.count; i++) {
            const double stretch = field.settled_stretch(step.end + i * d);
            for (int64_t index = i * d; index < (i + 1) * d; index++)
                y_next[index] = step.end[index] / stretch, f_next[index] = step.end_slope()[index] / stretch;
        }
        tick(now, there);
        save();
        const bool merged = gather(y_next, t);
        if (merged) field(y_next, f_next);
        const bool owing = march.named_times && march.next[row] < march.saves;
        flags |= watch(y_next, f_next, t, now, merged, owing);
        if (flags & Flag::located) locate(merged);
        if (there) flags |= Flag::arrived;
        march.taken[row] = now;
        copy(y_next, step.y, field.count);
        copy(f_next, step.f, field.count);
    }

    // Saved states that the step has passed; merged tokens stand at the point they share.
    void save() {
        const int64_t d = field.dim();
        for (int64_t& next = march.next[row]; next < march.saves && march.save_times[next] <= t; next++) {
            const double lag = (march.save_times[next] - t) - t_low;
            if (lag == 0) {
                copy(y_next, spare, field.count);
                field.retract(spare);
            } else {
                step.inside(lag, spare);
            }
            double* to = march.saved + (next * march.columns + march.who[row]) * march.n * d;
            for (int64_t i = 0; i < march.n; i++) copy_token(spare, march.merge > 0 ? gather.row_of[i] : i, to + i * d);
        }
    }

    ATTRACTOR_INLINE void copy_token(const double* from, int64_t i, double* to) const {
        for (int64_t index = 0; index < field.dim(); index++) to[index] = from[i * field.dim() + index];
    }

    // The polynomial of the step for Python, which looks for a time inside it. Tokens may have merged at its end.
    void locate(bool merged) {
        const int64_t size = march.width * field.dim(), left = field.count;
        double* masses = field.masses;
        if (merged) become(gather.count_before, gather.masses_before);
        step.interpolate();
        if (merged) {
            become(left, masses);
            gather.shrink(step.y, spare);
            for (int part = 0; part < march.tableau.parts; part++) gather.shrink(step.parts[part], spare);
        }
        double* to = march.inside + row * (1 + march.tableau.parts) * size;
        write_rows(step.y, to);
        for (int part = 0; part < march.tableau.parts; part++) write_rows(step.parts[part], to + (1 + part) * size);
    }

    void become(int64_t count, double* masses) {
        field.count = count, field.masses = masses;
        field.weigh_tokens();
    }

    // All rows of a member; those left over copy the first.
    void write_rows(const double* from, double* to) const {
        const int64_t d = field.dim();
        if (from != to) copy(from, to, field.count);
        for (int64_t i = field.count; i < march.width; i++) copy_token(from, 0, to + i * d);
    }

    void write() {
        const int64_t size = march.width * field.dim();
        write_rows(step.y, march.y + row * size);
        write_rows(step.f, march.f + row * size);
        march.t[row] = t, march.t_low[row] = t_low, march.h[row] = h, march.retried[row] = retried;
        march.counts[row] = field.count, march.flags[row] = flags, march.evaluations[row] += field.evaluations;
        write_rows(watch.anchor, watch.anchor);
        if (march.merge > 0) write_rows(gather.points_anchor, gather.points_anchor);
    }

    // The start is saved before tokens merge; then slopes and the first step are found.
    void enter() {
        copy(step.y, y_next, field.count);
        save();
        const bool merged = gather(step.y, t);
        if (merged) field(step.y, step.f);
        field(step.y, step.f);
        if (watch.begins(step.y, step.f, t, merged)) flags |= Flag::look | Flag::entered;
        const double longest = march.end - march.start;
        h = march.first_step > 0 ? (march.first_step < longest ? march.first_step : longest) : first(longest);
    }

    double largest(const double* vectors, const double* minus) const {
        double most = 0;
        for (int64_t i = 0; i < field.count; i++) {
            const int64_t at = i * field.dim();
            double square = 0;
            for (int64_t index = at; index < at + field.dim(); index++) {
                const double value = vectors[index] - (minus ? minus[index] : 0);
                square += value * value;
            }
            const double scale = march.atol + march.rtol * __builtin_sqrt(field.dot(step.y + at, step.y + at));
            const double size = __builtin_sqrt(square) / scale;
            if (!(size <= most)) most = size;
            if (!(size <= __DBL_MAX__)) return infinity<double>;
        }
        return most;
    }

    // A first step from the sizes of the field and of its change (solvers/step_control.py).
    double first(double longest) {
        const double value = largest(step.y, nullptr), slope = largest(step.f, nullptr);
        double guess = value < 1e-5 || slope < 1e-5 ? 1e-6 : 0.01 * value / slope;
        guess = guess < longest ? guess : longest;
        for (int64_t index = 0; index < step.size(); index++) spare[index] = step.y[index] + guess * step.f[index];
        field(spare, f_next);
        const double bend = largest(f_next, step.f) / guess, steep = bend > slope ? bend : slope;
        double found = steep <= 1e-15 ? (guess * 1e-3 > 1e-6 ? guess * 1e-3 : 1e-6)
                                      : __builtin_pow(0.01 / steep, 1.0 / march.tableau.order);
        found = 100 * guess < found ? 100 * guess : found;
        found = found < longest ? found : longest;
        return found > 0 && found <= __DBL_MAX__ ? found : (1e-6 < longest ? 1e-6 : longest);
    }
};

// Dimensions of the pictures are compiled in; any other is a loop.
template <class Run>
ATTRACTOR_INLINE auto with_dimension(const March& march, Run run) {
    switch (march.d) {
        case 2: return run(Count<2>{});
        case 3: return run(Count<3>{});
        default: return run(Count<0>{});
    }
}

inline size_t march_scratch(const March& march) {
    return with_dimension(march, [&](auto d) { return Runner<decltype(d)::value>::room(march); });
}

inline void march_member(const March& march, int64_t row, void* memory) {
    with_dimension(march, [&](auto d) { Runner<decltype(d)::value>(march, row, memory).run(); });
}

}  // namespace attractor::ATTRACTOR_ISA

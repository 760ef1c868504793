// Integration of one member (solvers/integration.py): steps until it arrives, fails or needs a termination check.
#pragma once

#include "merging.h"
#include "noisy_steps.h"
#include "termination.h"

namespace attractor::ATTRACTOR_ISA {

template <int D>
class Integration {
    const NativeLoop& loop;
    const int64_t row;
    Arena arena;
    Field<D> field;
    Step<D> step;
    Merging<D> merging;
    Termination<D> termination;
    double *y_next, *f_next, *spare;
    double t, t_low, h;
    bool retried;
    int64_t flags = 0;

public:
    Integration(const NativeLoop& m, int64_t row_, void* memory)
        : loop(m),
          row(row_),
          arena(memory),
          field(m, row_, arena),
          step(m, field, arena),
          merging(m, field, row_, arena),
          termination(m, field, row_),
          t(m.t[row_]),
          t_low(m.t_low[row_]),
          h(m.h[row_]),
          retried(m.retried[row_]) {
        const int64_t size = m.width * m.d;
        y_next = arena.take(size), f_next = arena.take(size), spare = arena.take(size);
        copy(m.y + row * size, step.y, field.count);
        copy(m.f + row * size, step.f, field.count);
    }

    static size_t room(const NativeLoop& m) {
        const int64_t arrays = Step<D>::arrays(m.tableau) + 4;
        return sizeof(double) * size_t(Field<D>::room(m) + Merging<D>::room(m) + arrays * Arena::padded(m.width * m.d));
    }

    void run() {
        if (loop.stability > 0 && loop.implicit[row]) return;
        if (loop.fresh) begin();
        for (int64_t attempt = 0; attempt < loop.attempts && !flags; attempt++) {
            if (attempt && loop.is_late(loop)) break;
            advance((loop.end - t) - t_low);
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
        // a step shortened to reach the end time does not limit the next step size
        if (fits && now < h && grown < h) grown = h;
        h = grown < loop.end - loop.start ? grown : loop.end - loop.start;
        retried = !fits;
        (fits ? loop.accepted : loop.rejected)[row]++;
        if (fits) return accept(now, now == left);
        if (termination.is_stuck(step.y, step.f, t, h)) flags |= Flag::failed;
    }

    // Ratio of the next step size to this one (solvers/step_control.py).
    double factor(double error, bool fits) const {
        const double ideal =
            loop.safety * __builtin_pow(error > loop.tiny ? error : loop.tiny, -1.0 / loop.tableau.order);
        const double most = fits && !retried ? loop.grow : 1;
        return ideal < loop.shrink ? loop.shrink : ideal > most ? most : ideal;
    }

    // Advance the time by compensated summation; at the end it is exact.
    void advance_time(double now, bool there) {
        const double move = now + t_low, total = t + move;
        t_low = there ? 0 : (t - (total - (total - t))) + (move - (total - t));
        t = there ? loop.end : total;
    }

    // Count an accepted step; whether stability limits the steps (solvers/stiffness.py).
    bool is_stiff(double now) {
        int64_t &steps = loop.steps[row], &suspect = loop.suspect[row], &calm = loop.calm[row];
        steps++;
        if (steps < loop.wait[row] && !suspect) return false;
        if (step.rate() * now > loop.stability) {
            calm = 0;
            if (++suspect < loop.stiff_steps) return false;
            steps = suspect = 0;
            return true;
        }
        if (!suspect || ++calm >= loop.calm_steps) steps = suspect = calm = 0;
        return false;
    }

    void accept(double now, bool there) {
        // before dense output, which overwrites the last stage
        if (loop.stability > 0 && is_stiff(now)) flags |= Flag::stiff;
        if (loop.record) loop.record(loop, row, now, step.y, step.f);
        const int64_t d = field.dim();
        for (int64_t i = 0; i < field.count; i++) {
            const double stretch = field.settled_stretch(step.end + i * d);
            for (int64_t index = i * d; index < (i + 1) * d; index++)
                y_next[index] = step.end[index] / stretch, f_next[index] = step.end_slope()[index] / stretch;
        }
        advance_time(now, there);
        save();
        const bool merged = merging(y_next, t);
        if (merged) field(y_next, f_next);
        const bool owing = loop.named_times && loop.next[row] < loop.saves;
        flags |= termination(y_next, f_next, t, now, merged, owing);
        if (flags & Flag::interpolated) write_polynomial(merged);
        if (there) flags |= Flag::arrived;
        loop.taken[row] = now;
        copy(y_next, step.y, field.count);
        copy(f_next, step.f, field.count);
    }

    // Write the saved states up to the end of the step; merged tokens get the same point.
    void save() {
        const int64_t d = field.dim();
        for (int64_t& next = loop.next[row]; next < loop.saves && loop.save_times[next] <= t; next++) {
            const double lag = (loop.save_times[next] - t) - t_low;
            if (lag == 0) {
                copy(y_next, spare, field.count);
                field.retract(spare);
            } else {
                step.inside(lag, spare);
            }
            double* to = loop.saved + (next * loop.columns + loop.who[row]) * loop.n * d;
            for (int64_t i = 0; i < loop.n; i++) copy_token(spare, loop.merge > 0 ? merging.row_of[i] : i, to + i * d);
        }
    }

    ATTRACTOR_INLINE void copy_token(const double* from, int64_t i, double* to) const {
        for (int64_t index = 0; index < field.dim(); index++) to[index] = from[i * field.dim() + index];
    }

    // Write the polynomial of the step, in which Python locates the time of termination. Tokens may have merged at its
    // end.
    void write_polynomial(bool merged) {
        const int64_t size = loop.width * field.dim(), left = field.count;
        double* masses = field.masses;
        if (merged) restore(merging.count_before, merging.masses_before);
        step.interpolate();
        if (merged) {
            restore(left, masses);
            merging.shrink(step.y, spare);
            for (int part = 0; part < loop.tableau.parts; part++) merging.shrink(step.parts[part], spare);
        }
        double* to = loop.inside + row * (1 + loop.tableau.parts) * size;
        write_rows(step.y, to);
        for (int part = 0; part < loop.tableau.parts; part++) write_rows(step.parts[part], to + (1 + part) * size);
    }

    void restore(int64_t count, double* masses) {
        field.count = count, field.masses = masses;
        field.weigh_tokens();
    }

    // All rows of a member; unused rows are copies of the first.
    void write_rows(const double* from, double* to) const {
        const int64_t d = field.dim();
        if (from != to) copy(from, to, field.count);
        for (int64_t i = field.count; i < loop.width; i++) copy_token(from, 0, to + i * d);
    }

    void write() {
        const int64_t size = loop.width * field.dim();
        write_rows(step.y, loop.y + row * size);
        write_rows(step.f, loop.f + row * size);
        loop.t[row] = t, loop.t_low[row] = t_low, loop.h[row] = h, loop.retried[row] = retried;
        loop.counts[row] = field.count, loop.flags[row] = flags, loop.evaluations[row] += field.evaluations;
        write_rows(termination.anchor, termination.anchor);
        if (loop.merge > 0) write_rows(merging.points_anchor, merging.points_anchor);
    }

    // Save the start before tokens merge, then compute slopes and the first step size.
    void begin() {
        copy(step.y, y_next, field.count);
        save();
        const bool merged = merging(step.y, t);
        if (merged) field(step.y, step.f);
        field(step.y, step.f);
        if (termination.is_met_at_start(step.y, step.f, t, merged)) flags |= Flag::check | Flag::at_start;
        const double longest = loop.end - loop.start;
        h = loop.first_step > 0 ? (loop.first_step < longest ? loop.first_step : longest) : first(longest);
    }

    double largest(const double* vectors, const double* minus) const {
        double most = 0;
        for (int64_t i = 0; i < field.count; i++) {
            const int64_t at = i * field.dim();
            for (int64_t index = 0; index < field.dim(); index++)
                step.inner[index] = vectors[at + index] - (minus ? minus[at + index] : 0);
            const double scale = loop.atol + loop.rtol * field.length(step.y + at);
            const double size = field.length(step.inner) / scale;
            if (!(size <= most)) most = size;
            if (!(size <= __DBL_MAX__)) return infinity<double>;
        }
        return most;
    }

    // The first step size from the norms of the field and of its change (solvers/step_control.py).
    double first(double longest) {
        const double value = largest(step.y, nullptr), slope = largest(step.f, nullptr);
        double guess = value < 1e-5 || slope < 1e-5 ? 1e-6 : 0.01 * value / slope;
        guess = guess < longest ? guess : longest;
        for (int64_t index = 0; index < step.size(); index++) spare[index] = step.y[index] + guess * step.f[index];
        field(spare, f_next);
        const double bend = largest(f_next, step.f) / guess, steep = bend > slope ? bend : slope;
        double found = steep <= 1e-15 ? (guess * 1e-3 > 1e-6 ? guess * 1e-3 : 1e-6)
                                      : __builtin_pow(0.01 / steep, 1.0 / loop.tableau.order);
        found = 100 * guess < found ? 100 * guess : found;
        found = found < longest ? found : longest;
        return found > 0 && found <= __DBL_MAX__ ? found : (1e-6 < longest ? 1e-6 : longest);
    }
};

// Dimensions 2 and 3 are compile-time constants; any other is a runtime loop.
template <class Run>
ATTRACTOR_INLINE auto with_dimension(const NativeLoop& loop, Run run) {
    switch (loop.d) {
        case 2: return run(Count<2>{});
        case 3: return run(Count<3>{});
        default: return run(Count<0>{});
    }
}

inline size_t loop_scratch(const NativeLoop& loop) {
    return with_dimension(loop, [&](auto d) { return Integration<decltype(d)::value>::room(loop); });
}

inline void loop_member(const NativeLoop& loop, int64_t row, void* memory) {
    with_dimension(loop, [&](auto d) { Integration<decltype(d)::value>(loop, row, memory).run(); });
}

inline size_t noisy_scratch(const NativeLoop& loop) {
    const size_t lanes = loop.d == 2   ? NoisyLanes<2>::room(loop)
                         : loop.d == 3 ? NoisyLanes<3>::room(loop)
                         : loop.d == 4 ? NoisyLanes<4>::room(loop)
                                       : 0;
    const size_t any = with_dimension(loop, [&](auto d) { return NoisySteps<decltype(d)::value>::room(loop); });
    return lanes < any ? any : lanes;
}

inline void noisy_member(const NativeLoop& loop, int64_t row, void* memory) {
    if (loop.d == 2 && NoisyLanes<2>::suits(loop, row)) return NoisyLanes<2>(loop, row, memory).run();
    if (loop.d == 3 && NoisyLanes<3>::suits(loop, row)) return NoisyLanes<3>(loop, row, memory).run();
    if (loop.d == 4 && NoisyLanes<4>::suits(loop, row)) return NoisyLanes<4>(loop, row, memory).run();
    with_dimension(loop, [&](auto d) { NoisySteps<decltype(d)::value>(loop, row, memory).run(); });
}

}  // namespace attractor::ATTRACTOR_ISA

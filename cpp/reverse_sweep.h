// Gradients through the accepted steps of one member, from the last to the first.
//
// Steps are computed again from states that were recorded on the way (step_record.h), so that memory does not depend on
// their number. Step lengths are constants: the result is the derivative of the discrete solution.
#pragma once

#include "field_gradient.h"
#include "integration.h"

namespace attractor::ATTRACTOR_ISA {

template <int D>
class ReverseSweep {
    const NativeLoop& loop;
    const MemberSteps& record;
    Arena arena;
    Field<D> field;
    Step<D> step;
    FieldGradient<D> through;
    const int64_t size, stages, extra;  // numbers of a state; slopes before the end, and those for the dense output
    double *inputs, *outputs, *levels;  // of every evaluation of a step: points, averages and logsumexps
    double *grad_slopes, *grad_parts, *grad_y, *grad_end, *grad_next, *grad_slope, *point, *grad_point, *states;
    int64_t read;  // the next result to be read, from the last

    static int64_t evaluations(const NativeLoop& m) { return m.tableau.stages + 1 + m.tableau.extra; }
    static int64_t outputs_of(const NativeLoop& m) {
        return Arena::padded(m.heads * m.width * Field<D>::value_columns(m));
    }

public:
    static size_t room(const NativeLoop& m, const MemberSteps& record) {
        const int64_t state = Arena::padded(m.width * m.d), slopes = evaluations(m);
        const int64_t numbers = Field<D>::room(m) + FieldGradient<D>::room(m) +
                                (Step<D>::arrays(m.tableau) + 1) * state +
                                slopes * (2 * state + outputs_of(m) + Arena::padded(m.heads * m.width)) +
                                m.tableau.parts * state + 6 * state + 2 * record.depth * record.buffer * state;
        return sizeof(double) * size_t(numbers + Arena::step);
    }

    ReverseSweep(const NativeLoop& m, const MemberSteps& record_, const ParameterGradients& to, int64_t row, void* memory)
        : loop(m),
          record(record_),
          arena(memory),
          field(m, row, arena),
          step(m, field, arena),
          through(field, to, arena),
          size(m.width * m.d),
          stages(m.tableau.stages),
          extra(m.tableau.extra),
          read(record_.reads - 1) {
        const int64_t state = Arena::padded(size), slopes = evaluations(m);
        inputs = arena.take(slopes * state), grad_slopes = arena.take(slopes * state);
        outputs = arena.take(slopes * outputs_of(m));
        levels = arena.take(slopes * Arena::padded(m.heads * m.width));
        grad_parts = arena.take(m.tableau.parts * state);
        grad_y = arena.take(state), grad_end = arena.take(state), grad_next = arena.take(state);
        grad_slope = arena.take(state), point = arena.take(state), grad_point = arena.take(state);
        states = arena.take(2 * record.depth * record.buffer * state);
    }

    // Writes the gradient of the start.
    void run(double* grad_start) {
        for (int64_t first = record.kept - 1; first >= 0; first--) {
            const int64_t start = first * record.stride, stop = least(start + record.stride, record.steps);
            const double* state = record.states + first * 2 * size;
            reverse(start, stop, state, state + size, 0);
        }
        if (record.steps) {  // the slope at the start
            keep(0);
            field(record.states, step.slopes[0]);
            through(record.states, outputs_at(0), levels_at(0), grad_slope, grad_next);
        }
        for (; read >= 0; read--)  // results at the start itself
            add_read(record.states, record.read_place[read] == 0);
        copy(grad_next, grad_start);
    }

private:
    void copy(const double* from, double* to) const { __builtin_memcpy(to, from, sizeof(double) * size_t(size)); }
    void clear(double* array, int64_t count) const { __builtin_memset(array, 0, sizeof(double) * size_t(count)); }
    double* input_at(int64_t slope) const { return inputs + slope * Arena::padded(size); }
    double* grad_at(int64_t slope) const { return grad_slopes + slope * Arena::padded(size); }
    double* outputs_at(int64_t slope) const { return outputs + slope * outputs_of(loop); }
    double* levels_at(int64_t slope) const {
        return loop.mode == Mode::softmax ? levels + slope * Arena::padded(loop.heads * loop.width) : nullptr;
    }
    void keep(int64_t slope) { field.outputs = outputs_at(slope), field.levels = levels_at(slope); }
    void keep_nothing() { field.outputs = field.levels = nullptr; }

    double* state_at(int64_t level, int64_t index) const {
        return states + (level * record.buffer + index) * 2 * Arena::padded(size);
    }

    // Reverse the steps from `start` to `stop`, given the state at `start`. Many steps are divided into parts, whose
    // first states are computed and kept.
    void reverse(int64_t start, int64_t stop, const double* y, const double* f, int64_t level) {
        const int64_t slots = record.buffer;
        int64_t part = 1;
        while (part * slots < stop - start) part *= slots;
        const int64_t parts = (stop - start + part - 1) / part;
        keep_nothing();
        copy(y, step.y), copy(f, step.f);
        for (int64_t index = 0; index < parts; index++) {
            double* state = state_at(level, index);
            copy(step.y, state), copy(step.f, state + Arena::padded(size));
            for (int64_t number = start + index * part; index + 1 < parts && number < start + (index + 1) * part;
                 number++) {
                step.attempt(record.lengths[number]);
                advance();
            }
        }
        for (int64_t index = parts - 1; index >= 0; index--) {
            const int64_t first = start + index * part, last = least(first + part, stop);
            double* state = state_at(level, index);
            if (part > 1) {
                reverse(first, last, state, state + Arena::padded(size), level + 1);
                continue;
            }
            copy(state, step.y), copy(state + Arena::padded(size), step.f);
            reverse_step(first);
        }
    }

    // The start of the next step, as in integration.h.
    void advance() {
        const int64_t d = field.dim();
        for (int64_t i = 0; i < field.count; i++) {
            const double stretch = field.settled_stretch(step.end + i * d);
            for (int64_t index = i * d; index < (i + 1) * d; index++) {
                step.y[index] = step.end[index] / stretch;
                step.f[index] = step.end_slope()[index] / stretch;
            }
        }
    }

    // `Step::attempt`, keeping what gradients need.
    void attempt(double h) {
        const Tableau& tableau = loop.tableau;
        step.h = h, step.interpolated = false;
        for (int64_t stage = 1; stage <= stages; stage++) {
            double* to = stage < stages ? input_at(stage) : step.end;
            combine(stage < stages ? tableau.inner[stage] : tableau.end, step.slopes, size, h, step.y, to);
            keep(stage);
            field(to, step.slopes[stage]);
        }
        keep_nothing();
    }

    void interpolate() {
        const Tableau& tableau = loop.tableau;
        for (int64_t index = 0; index < extra; index++) {
            const int64_t slope = stages + 1 + index;
            combine(tableau.extra_inner[index], step.slopes, size, step.h, step.y, input_at(slope));
            keep(slope);
            field(input_at(slope), step.slopes[slope]);
        }
        keep_nothing();
        step.fill_parts();
    }

    // On entry `grad_next` and `grad_slope` are the gradients of the state after the step and of the slope there; on
    // return those of the state before it.
    void reverse_step(int64_t number) {
        const double h = record.lengths[number];
        attempt(h);
        clear(grad_y, size), clear(grad_end, size);
        clear(grad_slopes, evaluations(loop) * Arena::padded(size));
        through_reads(number, h);
        const bool used = through_end();
        if (used) through(step.end, outputs_at(stages), levels_at(stages), grad_at(stages), grad_end);
        give(loop.tableau.end, h, grad_end);
        for (int64_t stage = stages - 1; stage > 0; stage--) {
            clear(grad_point, size);
            through(input_at(stage), outputs_at(stage), levels_at(stage), grad_at(stage), grad_point);
            give(loop.tableau.inner[stage], h, grad_point);
        }
        copy(grad_y, grad_next), copy(grad_at(0), grad_slope);
    }

    // Through point = y + h sum of weighted slopes.
    void give(const Terms& terms, double h, const double* grad) {
        for (int64_t index = 0; index < size; index++) grad_y[index] += grad[index];
        for (int term = 0; term < terms.count; term++) {
            double* to = grad_at(terms.which[term]);
            const double factor = h * terms.weight[term];
            for (int64_t index = 0; index < size; index++) to[index] += factor * grad[index];
        }
    }

    // Results read inside the step or at its end: gradients of the polynomial's parts, then of what they consist of.
    void through_reads(int64_t number, double h) {
        bool inside = false;
        for (; read >= 0 && record.read_step[read] == number; read--) {
            const double x = record.read_place[read];
            if (x >= 1) {
                const double* given = record.read_grads + record.read_row[read] * size;
                for (int64_t index = 0; index < size; index++) grad_next[index] += given[index];
                continue;
            }
            if (!inside) interpolate(), clear(grad_parts, loop.tableau.parts * Arena::padded(size));
            inside = true;
            through_polynomial(x);
        }
        if (!inside) return;
        const Tableau& tableau = loop.tableau;
        auto part = [&](int index) { return grad_parts + index * Arena::padded(size); };
        for (int64_t index = 0; index < size; index++) {
            const double moved = part(0)[index] - part(1)[index] + 2 * part(2)[index];
            grad_end[index] += moved, grad_y[index] -= moved;
            grad_at(0)[index] += h * (part(1)[index] - part(2)[index]);
            grad_at(stages)[index] -= h * part(2)[index];
        }
        for (int index = 3; index < tableau.parts; index++) {
            const Terms& terms = tableau.part[index - 3];
            for (int term = 0; term < terms.count; term++)
                for (int64_t entry = 0; entry < size; entry++)
                    grad_at(terms.which[term])[entry] += h * terms.weight[term] * part(index)[entry];
        }
        for (int64_t index = extra - 1; index >= 0; index--) {
            const int64_t slope = stages + 1 + index;
            clear(grad_point, size);
            through(input_at(slope), outputs_at(slope), levels_at(slope), grad_at(slope), grad_point);
            give(tableau.extra_inner[index], h, grad_point);
        }
    }

    void through_polynomial(double x) {
        for (int64_t index = 0; index < size; index++) {
            double total = 0;
            for (int part = loop.tableau.parts; part-- > 0;)
                total = (total + step.parts[part][index]) * (part % 2 ? 1 - x : x);
            point[index] = step.y[index] + total;
        }
        clear(grad_point, size);
        retract_gradient(point, record.read_grads + record.read_row[read] * size, grad_point);
        double factor = 1;
        for (int part = 0; part < loop.tableau.parts; part++) {
            factor *= part % 2 ? 1 - x : x;
            double* to = grad_parts + part * Arena::padded(size);
            for (int64_t index = 0; index < size; index++) to[index] += factor * grad_point[index];
        }
        for (int64_t index = 0; index < size; index++) grad_y[index] += grad_point[index];
    }

    // Add to `to` the gradient through the retraction of points.
    void retract_gradient(const double* points, const double* grad, double* to) {
        const int64_t d = field.dim();
        for (int64_t i = 0; i < field.count; i++) {
            if (loop.space == Space::euclidean) {
                for (int64_t index = i * d; index < (i + 1) * d; index++) to[index] += grad[index];
                continue;
            }
            const double stretch = field.stretch_of(points + i * d);
            double* x = field.x + i * d;
            for (int64_t index = 0; index < d; index++) x[index] = points[i * d + index] / stretch;
            through.through_retraction(x, stretch, grad + i * d, 0, to + i * d);
        }
    }

    void add_read(const double* points, bool retracted) {
        const double* given = record.read_grads + record.read_row[read] * size;
        if (retracted) return retract_gradient(points, given, grad_next);
        for (int64_t index = 0; index < size; index++) grad_next[index] += given[index];
    }

    // Through the next state x = end / s and its slope f = F / s, with the slope F at the end. Returns whether F has a
    // gradient.
    bool through_end() {
        const int64_t d = field.dim();
        const double* slope = step.end_slope();
        double* grad_last = grad_at(stages);
        for (int64_t i = 0; i < field.count; i++) {
            const double *end = step.end + i * d, *by_slope = grad_slope + i * d, *by_next = grad_next + i * d;
            double* to = grad_end + i * d;
            if (loop.space == Space::euclidean) {
                for (int64_t index = 0; index < d; index++)
                    to[index] += by_next[index], grad_last[i * d + index] += by_slope[index];
                continue;
            }
            const double stretch = field.stretch_of(end);
            double* x = field.x + i * d;
            for (int64_t index = 0; index < d; index++) {
                x[index] = end[index] / stretch;
                grad_last[i * d + index] += by_slope[index] / stretch;
            }
            const double along = -field.dot(by_slope, slope + i * d) / (stretch * stretch);
            through.through_retraction(x, stretch, by_next, along, to);
        }
        for (int64_t index = 0; index < size; index++)
            if (grad_last[index] != 0) return true;
        return false;
    }
};

inline size_t gradient_scratch(const NativeLoop& loop, const MemberSteps& record) {
    return with_dimension(loop, [&](auto d) { return ReverseSweep<decltype(d)::value>::room(loop, record); });
}

// Writes the gradient of the start of a member and adds those of the parameters.
inline void gradient_member(const NativeLoop& loop, int64_t row, const MemberSteps& record, const ParameterGradients& to,
                            double* grad_start, void* memory) {
    with_dimension(loop, [&](auto d) {
        ReverseSweep<decltype(d)::value>(loop, record, to, row, memory).run(grad_start);
    });
}

}  // namespace attractor::ATTRACTOR_ISA

// One step attempt of one member and its dense output (solvers/steppers/).
#pragma once

#include "field.h"

namespace attractor::ATTRACTOR_ISA {

// to = base + factor (sum of weighted slopes); the arrays are padded, so vectors may run over the end
inline void combine(const Terms& terms, double* const* slopes, int64_t size, double factor, const double* base,
                    double* to) {
    for (int64_t index = 0; index < size; index += width<double>) {
        auto at = [&](const double* array) __attribute__((always_inline)) {
            return *(const Vector<double>*)(array + index);
        };
        Vector<double> total = terms.weight[0] * at(slopes[terms.which[0]]);
        for (int term = 1; term < terms.count; term++) total += terms.weight[term] * at(slopes[terms.which[term]]);
        *(Vector<double>*)(to + index) = base ? at(base) + factor * total : factor * total;
    }
}

template <int D>
struct Step {
    const NativeLoop& loop;
    Field<D>& field;
    double *y, *f;  // where the step begins, on the space
    double *end, *inner, *errors[2], *slopes[most_slopes], *parts[7];
    double h = 0;
    bool interpolated = false;

    static int64_t arrays(const Tableau& tableau) {
        return 2 + tableau.errors + tableau.stages + 1 + tableau.extra + tableau.parts;
    }

    Step(const NativeLoop& m, Field<D>& field_, Arena& arena) : loop(m), field(field_) {
        const int64_t size = m.width * m.d;
        const Tableau& tableau = m.tableau;
        y = arena.take(size), end = arena.take(size), inner = arena.take(size);
        for (int index = 0; index < tableau.errors; index++) errors[index] = arena.take(size);
        for (int index = 0; index <= tableau.stages + tableau.extra; index++) slopes[index] = arena.take(size);
        for (int index = 0; index < tableau.parts; index++) parts[index] = arena.take(size);
        f = slopes[0];
    }

    int64_t size() const { return field.count * field.dim(); }
    double* end_slope() const { return slopes[loop.tableau.stages]; }

    void attempt(double h_) {
        const Tableau& tableau = loop.tableau;
        h = h_, interpolated = false;
        for (int stage = 1; stage < tableau.stages; stage++) {
            combine(tableau.inner[stage], slopes, size(), h, y, inner);
            field(inner, slopes[stage]);
        }
        combine(tableau.end, slopes, size(), h, y, end);
        field(end, end_slope());
    }

    // Error of the worst token relative to its tolerance; infinite for NaN, and where the field at the end is not finite.
    double error() {
        const Tableau& tableau = loop.tableau;
        for (int index = 0; index < tableau.errors; index++)
            combine(tableau.error[index], slopes, size(), h, nullptr, errors[index]);
        double worst = 0;
        for (int64_t i = 0; i < field.count; i++) {
            const int64_t at = i * field.dim();
            const double before = field.dot(y + at, y + at), after = field.dot(end + at, end + at);
            const double* larger = before > after ? y + at : end + at;
            const double scale = loop.atol + loop.rtol * field.length(larger, before > after ? before : after);
            double here = field.length(errors[tableau.errors - 1] + at) / scale;
            if (tableau.errors == 2) here = damped(here, errors[0] + at, scale);
            if (!(here <= __DBL_MAX__)) return infinity<double>;
            worst = here > worst ? here : worst;
        }
        double sum = 0;  // of zeros
        for (int64_t index = 0; index < size(); index++) sum += 0 * end_slope()[index];
        return sum == 0 ? worst : infinity<double>;
    }

    // Estimate of the largest eigenvalue: the change of the field between the last stage and the end, which have the same
    // time.
    double rate() const {
        double moved = 0, changed = 0;
        const double *before = slopes[loop.tableau.stages - 1], *after = end_slope();
        for (int64_t index = 0; index < size(); index++) {
            const double dy = end[index] - inner[index], df = after[index] - before[index];
            moved += dy * dy, changed += df * df;
        }
        return moved > 0 ? __builtin_sqrt(changed / moved) : 0;
    }

    // The polynomial y + x (F0 + (1-x) (F1 + x (F2 + ...))) of the step; DOP853 evaluates three times more for it.
    void interpolate() {
        if (interpolated) return;
        interpolated = true;
        const Tableau& tableau = loop.tableau;
        for (int index = 0; index < tableau.extra; index++) {
            combine(tableau.extra_inner[index], slopes, size(), h, y, inner);
            field(inner, slopes[tableau.stages + 1 + index]);
        }
        fill_parts();
    }

    void fill_parts() {
        const Tableau& tableau = loop.tableau;
        for (int64_t index = 0; index < size(); index++) {
            const double moved = end[index] - y[index];
            parts[0][index] = moved;
            parts[1][index] = h * f[index] - moved;
            parts[2][index] = 2 * moved - h * (end_slope()[index] + f[index]);
        }
        for (int part = 3; part < tableau.parts; part++)
            combine(tableau.part[part - 3], slopes, size(), h, nullptr, parts[part]);
    }

    // Points a time `lag` (<= 0) before the end of the step, on the space.
    void inside(double lag, double* to) {
        interpolate();
        const double x = 1 + lag / h;
        for (int64_t index = 0; index < size(); index++) {
            double total = 0;
            for (int part = loop.tableau.parts; part-- > 0;)
                total = (total + parts[part][index]) * (part % 2 ? 1 - x : x);
            to[index] = y[index] + total;
        }
        field.retract(to);
    }

private:
    double damped(double fifth, const double* error, double scale) const {
        const double third = field.length(error) / scale;
        const double both = __builtin_sqrt(fifth * fifth + 0.01 * third * third);
        return both > 0 ? fifth * fifth / (both > __DBL_MIN__ ? both : __DBL_MIN__) : both;
    }
};

}  // namespace attractor::ATTRACTOR_ISA

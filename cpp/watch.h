// Whether the Python side must look at a member after a step: solvers/termination.py and solvers/termination.py for one system.
//
// A rule that is met, or no longer met after it was noted, is a matter for Python; so is a token that leaves the bound. All
// that is settled here is that nothing happened, and then the counters of the rule `steady` move on.
#pragma once

#include "step.h"

namespace attractor::ATTRACTOR_ISA {

enum class Rule : int64_t { consensus = 0, collapse = 1, steady = 2 };
constexpr int rules = 3;

inline double spacing(double value) {
    union {
        double number;
        int64_t bits;
    } above = {value};
    above.bits++;
    return above.number - value;
}

// What rules measure: the largest norm, speed and distance from the first token, and whether a token left the anchor.
struct Extent {
    double norm = 0, speed = 0, gap = 0;
    bool away = false;
};

template <int D>
struct Watch {
    const March& march;
    const Field<D>& field;
    const int64_t member;
    double* anchor;

    Watch(const March& m, const Field<D>& field_, int64_t row)
        : march(m), field(field_), member(row), anchor(m.anchor + row * m.width * m.d) {}

    Extent measure(const double* y, const double* f) const {
        Extent found;
        const double allowed = march.noise;
        for (int64_t i = 0; i < field.count; i++) {
            const int64_t at = i * field.dim();
            const double norm = field.dot(y + at, y + at), speed = field.dot(f + at, f + at);
            double gap = 0, gone = 0;
            for (int64_t index = 0; index < field.dim(); index++) {
                gap += (y[at + index] - y[index]) * (y[at + index] - y[index]);
                gone += (y[at + index] - anchor[at + index]) * (y[at + index] - anchor[at + index]);
            }
            const double noise = allowed * (march.atol + march.rtol * __builtin_sqrt(norm));
            found.away |= gone > noise * noise;
            found.norm = norm > found.norm ? norm : found.norm;
            found.speed = speed > found.speed ? speed : found.speed;
            found.gap = gap > found.gap ? gap : found.gap;
        }
        found.norm = __builtin_sqrt(found.norm), found.speed = __builtin_sqrt(found.speed);
        found.gap = __builtin_sqrt(found.gap);
        return found;
    }

    // Python's flags for a step of length `taken` that was accepted and ended at time t.
    int64_t operator()(const double* y, const double* f, double t, double taken, bool merged, bool owing) {
        if (merged) settle(y, t), march.rest[member] = 0;
        const Extent now = measure(y, f);
        if (march.space == Space::flat) {
            const double late = __builtin_fabs(t) > 1e-12 ? __builtin_fabs(t) : 1e-12;
            if (taken < 4 * spacing(late) || !(now.norm <= march.bound)) return look;
        }
        const double left = march.end - t > 1 ? march.end - t : 1, size = now.norm > 1e-300 ? now.norm : 1e-300;
        const double calm = now.speed * left / (march.steady * size);
        const int64_t streak = calm <= 1 && calm <= 1.5 * march.last[member] ? march.streak[member] + 1 : 0;
        const int64_t rest = now.away ? 0 : march.rest[member] + 1;
        const double since = now.away ? t : march.anchor_t[member];
        const bool resting = double(rest) >= march.enough_rest && t - since >= march.end - t;
        const bool alone = march.merge > 0 && field.count == 1;
        const int64_t noted = march.noted[member];
        for (int64_t place = 0; place < rules && march.order[place] >= 0; place++) {
            const Rule rule = Rule(march.order[place]);
            const bool met = rule == Rule::steady ? (calm <= 1 && double(streak) >= march.patience) || resting
                             : rule == Rule::consensus ? gathered(now)
                                                       : collapsed(now);
            if (met && !(noted >= 0 && owing))
                return rule == Rule::steady || alone || noted >= 0 ? look : look | located;
            if (!met && noted == march.order[place]) return look;
        }
        if (march.steady >= 0) {
            march.streak[member] = streak, march.last[member] = calm, march.rest[member] = rest;
            if (now.away) settle(y, t);
        }
        return 0;
    }

    // Whether Python must look at the start, where nothing can be steady yet.
    bool begins(const double* y, const double* f, double t, bool merged) {
        if (merged) settle(y, t), march.rest[member] = 0;
        const Extent now = measure(y, f);
        if (march.space == Space::flat && !(now.norm <= march.bound)) return true;
        if (march.consensus >= 0 && gathered(now)) return true;
        if (march.collapse >= 0 && collapsed(now)) return true;
        if (march.steady >= 0) march.rest[member]++;
        return false;
    }

    // After a rejection: whether the step has fallen to rounding.
    bool stuck(const double* y, const double* f, double t, double h) const {
        if (march.space == Space::flat) {
            const double late = __builtin_fabs(t) > 1e-12 ? __builtin_fabs(t) : 1e-12;
            return h < 16 * spacing(late);
        }
        const Extent now = measure(y, f);
        return h * now.speed < 1e-15 * now.norm || !finite(f);  // no step helps where it is not
    }

private:
    // Of the numbers themselves: their squares may overflow.
    bool finite(const double* f) const {
        for (int64_t index = 0; index < field.count * field.dim(); index++)
            if (!(__builtin_fabs(f[index]) <= __DBL_MAX__)) return false;
        return true;
    }

    bool gathered(const Extent& now) const {
        return 2 * now.gap / (march.consensus * (now.norm > 1e-300 ? now.norm : 1e-300)) <= 1;
    }

    bool collapsed(const Extent& now) const {
        const double size = march.size[member] > 1e-300 ? march.size[member] : 1e-300;
        const double largest = now.norm > now.speed ? now.norm : now.speed;
        return largest / (march.collapse * size) <= 1;
    }

    void settle(const double* y, double t) {
        __builtin_memcpy(anchor, y, sizeof(double) * size_t(field.count * field.dim()));
        march.anchor_t[member] = t;
    }
};

}  // namespace attractor::ATTRACTOR_ISA

// Termination rules of one member after a step (solvers/termination.py).
//
// If a rule is met, or no longer met after it was noted, or a token leaves the bound, the member stops and Python
// decides. What is decided here is only that nothing happened; then the counters of the rule `steady` advance.
#pragma once

#include <algorithm>

#include "step.h"

namespace attractor::ATTRACTOR_ISA {

// The distance to the next floating-point number above a positive value.
inline double spacing(double value) {
    int64_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    bits++;
    double above;
    __builtin_memcpy(&above, &bits, sizeof above);
    return above - value;
}

// Quantities of the rules: the largest norm, speed and distance from the first token, and whether a token left its
// anchor.
struct Extent {
    double norm = 0, speed = 0, gap = 0;
    bool away = false;
};

template <int D>
struct Termination {
    const NativeLoop& loop;
    const Field<D>& field;
    const int64_t member;
    double* anchor;

    Termination(const NativeLoop& m, const Field<D>& field_, int64_t row)
        : loop(m), field(field_), member(row), anchor(m.anchor + row * m.width * m.d) {}

    Extent measure(const double* y, const double* f) const {
        Extent found;
        const double allowed = loop.noise;
        for (int64_t i = 0; i < field.count; i++) {
            const int64_t at = i * field.dim();
            const double norm = field.dot(y + at, y + at), speed = field.dot(f + at, f + at);
            double gap = 0, gone = 0;
            for (int64_t index = 0; index < field.dim(); index++) {
                gap += (y[at + index] - y[index]) * (y[at + index] - y[index]);
                gone += (y[at + index] - anchor[at + index]) * (y[at + index] - anchor[at + index]);
            }
            const double noise = allowed * (loop.atol + loop.rtol * __builtin_sqrt(norm));
            found.away |= gone > noise * noise;
            found.norm = norm > found.norm ? norm : found.norm;
            found.speed = speed > found.speed ? speed : found.speed;
            found.gap = gap > found.gap ? gap : found.gap;
        }
        const bool normal = found.norm >= 1e-280 && found.norm <= __DBL_MAX__ && found.speed <= __DBL_MAX__ &&
                            (found.speed >= 1e-280 || found.speed == 0);
        found.norm = __builtin_sqrt(found.norm), found.speed = __builtin_sqrt(found.speed);
        found.gap = __builtin_sqrt(found.gap);
        return normal ? found : measure_scaled(y, f);
    }

    // The same where squares overflow or underflow.
    __attribute__((noinline)) Extent measure_scaled(const double* y, const double* f) const {
        Extent found;
        for (int64_t i = 0; i < field.count; i++) {
            const int64_t at = i * field.dim();
            const double norm = field.length(y + at), speed = field.length(f + at);
            const double gap = field.scaled_length(y + at, y);
            found.away |= field.scaled_length(y + at, anchor + at) > loop.noise * (loop.atol + loop.rtol * norm);
            found.norm = norm > found.norm ? norm : found.norm;
            found.speed = speed > found.speed ? speed : found.speed;
            found.gap = gap > found.gap ? gap : found.gap;
        }
        return found;
    }

    // Flags after an accepted step of length `taken` that ended at time t; `owing`: saved states are still to come.
    int64_t operator()(const double* y, const double* f, double t, double taken, bool merged, bool owing) {
        if (merged) move_anchor(y, t), loop.rest[member] = 0;
        const Extent now = measure(y, f);
        if (loop.space == Space::euclidean) {
            if (taken < loop.unresolved_spacings * time_spacing(t) || !(now.norm <= loop.bound)) return check;
        }
        const double left = loop.end - t, passed = t - loop.start, size = at_least_tiny(now.norm);
        const double horizon = std::max({left, passed, 1.0}), calm = now.speed * horizon / (loop.steady * size);
        const int64_t streak = calm <= 1 && calm <= loop.calm_growth * loop.last[member] ? loop.streak[member] + 1 : 0;
        const int64_t rest = now.away ? 0 : loop.rest[member] + 1;
        const double since = now.away ? t : loop.anchor_t[member];
        const bool resting = double(rest) >= loop.enough_rest && t - since >= loop.end - t;
        const bool alone = loop.merge > 0 && field.count == 1;
        const int64_t noted = loop.noted[member];
        for (int64_t place = 0; place < rules && loop.order[place] >= 0; place++) {
            const Rule rule = Rule(loop.order[place]);
            const bool met = rule == Rule::steady      ? (calm <= 1 && double(streak) >= loop.patience) || resting
                             : rule == Rule::consensus ? has_consensus(now)
                                                       : has_collapsed(now);
            if (met && !(noted >= 0 && owing) && t >= loop.hold[member])
                return rule == Rule::steady || alone || noted >= 0 ? check : check | interpolated;
            if (!met && noted == loop.order[place]) return check;
        }
        if (loop.steady >= 0) {
            loop.streak[member] = streak, loop.last[member] = calm, loop.rest[member] = rest;
            if (now.away) move_anchor(y, t);
        }
        return 0;
    }

    // Whether a rule is met at the start, where nothing can be steady yet.
    bool is_met_at_start(const double* y, const double* f, double t, bool merged) {
        if (merged) move_anchor(y, t), loop.rest[member] = 0;
        const Extent now = measure(y, f);
        if (loop.space == Space::euclidean && !(now.norm <= loop.bound)) return true;
        if (loop.consensus >= 0 && has_consensus(now)) return true;
        if (loop.collapse >= 0 && has_collapsed(now)) return true;
        if (loop.steady >= 0) loop.rest[member]++;
        return false;
    }

    // After a rejection: whether the step size has fallen to rounding.
    bool is_stuck(const double* y, const double* f, double t, double h) const {
        if (loop.space == Space::euclidean) return h < loop.failed_spacings * time_spacing(t);
        const Extent now = measure(y, f);
        return h * now.speed < loop.least_move * now.norm ||
               !is_finite(f);  // no step size helps against infinite velocities
    }

private:
    double at_least_tiny(double value) const { return value > loop.tiny ? value : loop.tiny; }

    // The laws of the loop do not depend on time, and times are compensated: only the time since the start counts.
    double time_spacing(double t) const {
        const double late = t - loop.start;
        return spacing(late > loop.least_time ? late : loop.least_time);
    }

    // Checks the numbers themselves: their squares may overflow.
    bool is_finite(const double* f) const {
        for (int64_t index = 0; index < field.count * field.dim(); index++)
            if (!(__builtin_fabs(f[index]) <= __DBL_MAX__)) return false;
        return true;
    }

    bool has_consensus(const Extent& now) const {
        return 2 * now.gap / (loop.consensus * at_least_tiny(now.norm)) <= 1;
    }

    bool has_collapsed(const Extent& now) const {
        const double size = loop.size[member];
        return size > 0 && now.norm / (loop.collapse * size) <= 1;
    }

    void move_anchor(const double* y, double t) {
        __builtin_memcpy(anchor, y, sizeof(double) * size_t(field.count * field.dim()));
        loop.anchor_t[member] = t;
    }
};

}  // namespace attractor::ATTRACTOR_ISA

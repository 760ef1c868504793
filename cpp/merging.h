// Merging of coinciding tokens of one member into weighted tokens (solvers/merging.py); pairs are searched along one
// coordinate.
#pragma once

#include "step.h"

namespace attractor::ATTRACTOR_ISA {

template <int D>
struct Merging {
    const NativeLoop& loop;
    Field<D>& field;
    const int64_t member;
    int64_t count_before = 0;       // tokens at the end of the step, before they merged
    double *masses_before, *share;  // share of an old row in the new row `target`
    int64_t *target, *neighbour, *place, *order, *row_of, *node_of;
    double *distance, *part;
    double* points_anchor;

    static int64_t room(const NativeLoop& m) { return m.merge > 0 ? 8 * Arena::padded(m.width) : 0; }

    Merging(const NativeLoop& m, Field<D>& field_, int64_t row, Arena& arena) : loop(m), field(field_), member(row) {
        if (!(m.merge > 0)) return;
        masses_before = arena.take(m.width), share = arena.take(m.width), distance = arena.take(m.width);
        part = arena.take(m.width);
        target = arena.take<int64_t>(m.width), neighbour = arena.take<int64_t>(m.width);
        place = arena.take<int64_t>(m.width), order = arena.take<int64_t>(m.width);
        row_of = m.row_of + row * m.n, node_of = m.node_of + row * m.width;
        points_anchor = m.near_anchor + row * m.width * m.d;
    }

    // Merge close tokens in rounds. Returns whether any merged: then masses and slopes have changed.
    bool operator()(double* y, double t) {
        if (!(loop.merge > 0) || !may_be_close(y)) return false;
        count_before = field.count;
        for (int64_t i = 0; i < field.count; i++) masses_before[i] = field.masses[i], target[i] = i, share[i] = 1;
        bool merged = false;
        while (field.count > 1) {
            const double gap = search(y);
            __builtin_memcpy(points_anchor, y, sizeof(double) * size_t(field.count * field.dim()));
            loop.slack[member] = gap - loop.merge;
            if (!join(y, t)) return merged;
            merged = true;
        }
        loop.slack[member] = infinity<double>;
        return merged;
    }

    // Combine the rows of an array as the tokens were merged, without retraction.
    void shrink(double* array, double* room) const {
        const int64_t d = field.dim();
        for (int64_t index = 0; index < field.count * d; index++) room[index] = 0;
        for (int64_t i = 0; i < count_before; i++)
            for (int64_t index = 0; index < d; index++) room[target[i] * d + index] += share[i] * array[i * d + index];
        __builtin_memcpy(array, room, sizeof(double) * size_t(field.count * d));
    }

private:
    // No pair can be close before a token has moved by half the distance that separated the closest pair at the last
    // search.
    bool may_be_close(const double* y) const {
        double moved = 0;
        for (int64_t i = 0; i < field.count; i++) {
            const double square = apart(y + i * field.dim(), points_anchor + i * field.dim());
            moved = square > moved ? square : moved;
        }
        return 2 * __builtin_sqrt(moved) >= loop.slack[member];
    }

    ATTRACTOR_INLINE double apart(const double* a, const double* b) const {
        double sum = 0;
        for (int64_t index = 0; index < field.dim(); index++) sum += (a[index] - b[index]) * (a[index] - b[index]);
        return sum;
    }

    // Sort the tokens along the coordinate of largest variance.
    int64_t sort(const double* y) {
        const int64_t d = field.dim(), count = field.count;
        int64_t axis = 0;
        double widest = -1;
        for (int64_t index = 0; index < d; index++) {
            double sum = 0, squares = 0;
            for (int64_t i = 0; i < count; i++) sum += y[i * d + index], squares += y[i * d + index] * y[i * d + index];
            const double spread = squares - sum * sum / double(count);
            if (spread > widest) widest = spread, axis = index;
        }
        for (int64_t i = 0; i < count; i++) order[i] = i;
        constexpr int64_t gaps[] = {701, 301, 132, 57, 23, 10, 4, 1};
        for (const int64_t gap : gaps)
            for (int64_t i = gap; i < count; i++) {
                const int64_t here = order[i];
                int64_t j = i;
                for (; j >= gap && y[order[j - gap] * d + axis] > y[here * d + axis]; j -= gap)
                    order[j] = order[j - gap];
                order[j] = here;
            }
        return axis;
    }

    // Find the nearest neighbour of each token that has a close one; returns the smallest gap. Pairs further apart in
    // one coordinate than the gap and the tolerance are skipped.
    double search(const double* y) {
        const int64_t d = field.dim(), axis = sort(y);
        for (int64_t i = 0; i < field.count; i++) distance[i] = infinity<double>, neighbour[i] = -1;
        double least_gap = infinity<double>, reach = infinity<double>;
        for (int64_t first = 0; first < field.count; first++)
            for (int64_t second = first + 1; second < field.count; second++) {
                const int64_t i = order[first], j = order[second];
                if (y[j * d + axis] - y[i * d + axis] > reach) break;
                const double square = apart(y + i * d, y + j * d);
                if (square < distance[i]) distance[i] = square, neighbour[i] = j;
                if (square < distance[j]) distance[j] = square, neighbour[j] = i;
                if (square >= least_gap) continue;
                least_gap = square;
                reach = __builtin_sqrt(square) > loop.merge ? __builtin_sqrt(square) : loop.merge;
            }
        return __builtin_sqrt(least_gap);
    }

    bool mutual_at(int64_t i) const {
        return neighbour[i] >= 0 && neighbour[neighbour[i]] == i && __builtin_sqrt(distance[i]) < loop.merge;
    }

    // Many tokens at one point all have the same nearest neighbour and would merge one by one: pair them in their order
    // instead.
    void pair_crowd(const double* y) {
        const int64_t count = field.count, d = field.dim();
        int64_t close = 0, mutual = 0;
        for (int64_t i = 0; i < count; i++) close += __builtin_sqrt(distance[i]) < loop.merge, mutual += mutual_at(i);
        if (8 * mutual >= close) return;
        for (int64_t i = 0; i < count; i++) neighbour[i] = -1;
        for (int64_t i = 0; i < count; i++)
            for (int64_t j = i + 1; neighbour[i] < 0 && j < count; j++) {
                const double square = apart(y + i * d, y + j * d);
                if (neighbour[j] >= 0 || !(__builtin_sqrt(square) < loop.merge)) continue;
                neighbour[i] = j, neighbour[j] = i, distance[i] = distance[j] = square;
            }
    }

    // Only mutual neighbours merge, so that a chain of tokens does not merge at once.
    bool join(double* y, double t) {
        const int64_t count = field.count, d = field.dim();
        int64_t left = 0;
        pair_crowd(y);
        for (int64_t i = 0; i < count; i++) {
            const int64_t j = neighbour[i];
            const bool mutual = mutual_at(i);
            part[i] = 1;
            place[i] = mutual && j < i ? -1 : left++;
        }
        if (left == count) return false;
        for (int64_t i = 0; i < count; i++) {
            const int64_t j = neighbour[i];
            if (j <= i || place[j] != -1 || neighbour[j] != i) continue;
            const double total = field.masses[i] + field.masses[j];
            part[i] = total > 0 ? field.masses[i] / total : 0.5, part[j] = total > 0 ? field.masses[j] / total : 0.5;
            log(t, i, j, total);
            for (int64_t index = 0; index < d; index++)
                y[i * d + index] = part[i] * y[i * d + index] + part[j] * y[j * d + index];
            field.masses[i] = total;
        }
        renumber(y, left);
        return true;
    }

    void log(double t, int64_t keep, int64_t drop, double mass) {
        const int64_t at = member * loop.width + loop.merges[member]++;
        loop.log_time[at] = t, loop.log_mass[at] = mass;
        loop.log_left[at] = node_of[keep], loop.log_right[at] = node_of[drop];
        node_of[keep] = loop.nodes[member]++;
    }

    // Move the remaining rows to the front.
    void renumber(double* y, int64_t left) {
        const int64_t count = field.count, d = field.dim();
        for (int64_t i = 0; i < count; i++) {
            if (place[i] < 0) continue;
            for (int64_t index = 0; index < d; index++) y[place[i] * d + index] = y[i * d + index];
            field.masses[place[i]] = field.masses[i], node_of[place[i]] = node_of[i];
        }
        auto now = [&](int64_t row) { return place[row] < 0 ? place[neighbour[row]] : place[row]; };
        for (int64_t i = 0; i < count_before; i++) share[i] *= part[target[i]], target[i] = now(target[i]);
        for (int64_t i = 0; i < loop.n; i++) row_of[i] = now(row_of[i]);
        for (int64_t i = left; i < count; i++) field.masses[i] = 0, node_of[i] = 0;
        field.count = left;
        field.retract(y);
        field.weigh_tokens();
    }
};

}  // namespace attractor::ATTRACTOR_ISA

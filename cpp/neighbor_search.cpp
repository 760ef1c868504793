// Neighbor search of merging: tokens sorted by the cells of a lattice.
#include "neighbor_search.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "threads.h"

namespace attractor {
namespace {

constexpr int most_axes = 3;
constexpr double widest =
    0x1p37;                      // cells along an axis: beyond, the rounding of a coordinate is no small part of a cell
constexpr int64_t chunk = 4096;  // tokens of a task

int64_t chunks(int64_t n) { return (n + chunk - 1) / chunk; }

// Tokens sorted by the cell they are in, row by row of the lattice; within a cell by index.
class Cells {
public:
    struct Entry {
        uint64_t cell;
        int64_t token;
        bool operator<(const Entry& other) const {
            return cell != other.cell ? cell < other.cell : token < other.token;
        }
    };

    const double* points;
    const int64_t n;
    const int axes;
    std::vector<Entry> entries;
    uint64_t strides[most_axes] = {};  // from a cell to the next along an axis; 1 along the last
    bool made = false;                 // false: there are too many cells, or a coordinate is not finite

    Cells(const double* points_, int64_t n_, int axes_, double size, int threads_)
        : points(points_), n(n_), axes(axes_), threads(threads_) {
        double low[most_axes], high[most_axes];
        if (!bounds(low, high)) return;
        int bits = 0, bits_of[most_axes];
        for (int axis = 0; axis < axes; axis++) {
            const double cells = (high[axis] - low[axis]) / size;
            if (!(cells < widest)) return;
            // one more cell on each side, so that neighbouring cells always have distinct indices
            for (bits_of[axis] = 2; cells + 3 > std::ldexp(1.0, bits_of[axis]);) bits_of[axis]++;
            bits += bits_of[axis];
        }
        if (bits > 63) return;
        uint64_t stride = 1;
        for (int axis = axes - 1; axis >= 0; axis--) strides[axis] = stride, stride <<= bits_of[axis];
        number(low, size);
        sort(bits);
        made = true;
    }

    template <class Run>
    void each_chunk(Run run) const {
        parallel(chunks(n), threads,
                 [&](int64_t task, int) { run(task, task * chunk, std::min(n, (task + 1) * chunk)); });
    }

private:
    const int threads;

    // The range of the tokens along every axis; false if it is not finite.
    bool bounds(double* low, double* high) const {
        std::vector<double> lows(size_t(chunks(n)) * most_axes), highs(lows.size());
        std::atomic<bool> finite{true};
        each_chunk([&](int64_t task, int64_t start, int64_t stop) {
            for (int axis = 0; axis < axes; axis++) {
                double least = points[start * axes + axis], most = least, sum = 0;
                for (int64_t i = start; i < stop; i++) {
                    const double x = points[i * axes + axis];
                    least = x < least ? x : least, most = x > most ? x : most, sum += x - x;
                }
                lows[size_t(task) * most_axes + size_t(axis)] = least,
                                                highs[size_t(task) * most_axes + size_t(axis)] = most;
                if (!(sum == 0)) finite = false;
            }
        });
        for (int axis = 0; axis < axes; axis++) {
            low[axis] = lows[size_t(axis)], high[axis] = highs[size_t(axis)];
            for (size_t at = size_t(axis); at < lows.size(); at += most_axes)
                low[axis] = std::min(low[axis], lows[at]), high[axis] = std::max(high[axis], highs[at]);
        }
        return finite;
    }

    void number(const double* low, double size) {
        entries.resize(size_t(n));
        each_chunk([&](int64_t, int64_t start, int64_t stop) {
            for (int64_t i = start; i < stop; i++) {
                uint64_t cell = 0;
                for (int axis = 0; axis < axes; axis++)
                    cell += (uint64_t((points[i * axes + axis] - low[axis]) / size) + 1) * strides[axis];
                entries[size_t(i)] = {cell, i};
            }
        });
    }

    // Radix sort by the leading bits, then sort each bucket.
    void sort(int bits) {
        const int fine = std::min(bits, 13), rest = bits - fine;
        std::vector<int64_t> ends((size_t(1) << fine) + 1, 0);
        for (const Entry& entry : entries) ends[(entry.cell >> rest) + 1]++;
        for (size_t drawer = 1; drawer < ends.size(); drawer++) ends[drawer] += ends[drawer - 1];
        std::vector<Entry> sorted(entries.size());
        std::vector<int64_t> next(ends.begin(), ends.end() - 1);
        for (const Entry& entry : entries) sorted[size_t(next[entry.cell >> rest]++)] = entry;
        entries.swap(sorted);
        parallel(int64_t(ends.size()) - 1, threads, [&](int64_t drawer, int) {
            std::sort(entries.begin() + ends[size_t(drawer)], entries.begin() + ends[size_t(drawer) + 1]);
        });
    }
};

// Order of pairs: the closer first, ties by the smaller indices.
struct Candidate {
    double square = std::numeric_limits<double>::infinity();
    int64_t first = -1, second = -1;

    bool operator<(const Candidate& other) const {
        if (square != other.square) return square < other.square;
        return first != other.first ? first < other.first : second < other.second;
    }
};

// For every token, the other one of the best pair that it is in, or -1. Cells are not smaller than the tolerance.
class Nearest {
    const Cells& cells;
    std::vector<double> sorted;  // coordinates, in the order of the cells

public:
    std::vector<int64_t> partners;

    Nearest(const Cells& cells_, double tolerance)
        : cells(cells_), sorted(size_t(cells.n * cells.axes)), partners(size_t(cells.n), -1) {
        cells.each_chunk([&](int64_t, int64_t start, int64_t stop) {
            for (int64_t at = start; at < stop; at++)
                for (int axis = 0; axis < cells.axes; axis++)
                    sorted[size_t(at * cells.axes + axis)] =
                        cells.points[cells.entries[size_t(at)].token * cells.axes + axis];
        });
        cells.each_chunk([&](int64_t, int64_t start, int64_t stop) {
            switch (cells.axes) {
                case 1: return look<1>(start, stop, tolerance);
                case 2: return look<2>(start, stop, tolerance);
                default: return look<3>(start, stop, tolerance);
            }
        });
    }

private:
    // Rows of cells around a cell lie together along the last axis. As cells go up so do the ends of every such row.
    template <int D>
    void look(int64_t start, int64_t stop, double tolerance) {
        constexpr int rows = D == 1 ? 1 : D == 2 ? 3 : 9;
        const auto& entries = cells.entries;
        int64_t from[rows], to[rows];
        uint64_t apart[rows];
        for (int row = 0; row < rows; row++) {
            apart[row] = 0;
            for (int axis = 0, left = row; axis < D - 1; axis++, left /= 3)
                apart[row] += uint64_t(left % 3 - 1) * cells.strides[axis];
            const Cells::Entry target = {entries[size_t(start)].cell + apart[row] - 1, -1};
            from[row] = to[row] = std::lower_bound(entries.begin(), entries.end(), target) - entries.begin();
        }
        for (int64_t at = start; at < stop; at++) {
            const auto [cell, token] = entries[size_t(at)];
            if (at == start || cell != entries[size_t(at) - 1].cell)
                for (int row = 0; row < rows; row++) {
                    const uint64_t first = cell + apart[row] - 1, last = first + 2;
                    while (from[row] < cells.n && entries[size_t(from[row])].cell < first) from[row]++;
                    to[row] = std::max(to[row], from[row]);
                    while (to[row] < cells.n && entries[size_t(to[row])].cell <= last) to[row]++;
                }
            Candidate best;
            for (int row = 0; row < rows; row++)
                for (int64_t other = from[row]; other < to[row]; other++) {
                    double square = 0;
                    for (int axis = 0; axis < D; axis++) {
                        const double gap = sorted[size_t(at * D + axis)] - sorted[size_t(other * D + axis)];
                        square += gap * gap;
                    }
                    if (square > best.square || other == at) continue;
                    const int64_t there = entries[size_t(other)].token;
                    const Candidate pair = {square, std::min(token, there), std::max(token, there)};
                    if (pair < best) best = pair;
                }
            if (std::sqrt(best.square) < tolerance)
                partners[size_t(token)] = best.first == token ? best.second : best.first;
        }
    }
};

}  // namespace

int64_t cell_mates(const double* points, int64_t n, int axes, double tolerance, int threads, int64_t* pairs) {
    const Cells cells(points, n, axes, tolerance / (1.01 * std::sqrt(double(axes))), threads);
    if (!cells.made) return -1;
    int64_t count = 0;
    for (int64_t at = 1; at < n; at++)
        if (cells.entries[size_t(at)].cell == cells.entries[size_t(at) - 1].cell) {
            pairs[2 * count] = cells.entries[size_t(at) - 1].token,
                      pairs[2 * count + 1] = cells.entries[size_t(at)].token;
            count++, at++;
        }
    return count;
}

int64_t mutual_pairs(const double* points, int64_t n, int axes, double tolerance, int threads, int64_t* pairs) {
    const Cells cells(points, n, axes, 1.0001 * tolerance, threads);
    if (!cells.made) return -1;
    const std::vector<int64_t> partners = Nearest(cells, tolerance).partners;
    int64_t count = 0;
    for (int64_t token = 0; token < n; token++) {
        const int64_t other = partners[size_t(token)];
        if (other <= token || partners[size_t(other)] != token) continue;
        pairs[2 * count] = token, pairs[2 * count + 1] = other;
        count++;
    }
    return count;
}

}  // namespace attractor

// The velocity of one member's tokens, lifted to the ambient space (solvers/steppers/stepper.py).
#pragma once

#include "columns.h"
#include "forward.h"
#include "native_loop.h"

namespace attractor::ATTRACTOR_ISA {

// Allocates the arrays of a member one after another, each padded to whole vectors.
class Arena {
    double* next;

public:
    static constexpr int64_t step = 8;
    explicit Arena(void* memory) : next((double*)memory) {}
    static int64_t padded(int64_t count) { return (count + step - 1) / step * step; }
    template <class T = double>
    T* take(int64_t count) {
        static_assert(sizeof(T) == sizeof(double));
        void* here = next;
        __builtin_memset(here, 0, sizeof(double) * size_t(padded(count)));
        next += padded(count);
        return (T*)here;
    }
};

// The vector that begins at an address; arrays of an arena are padded for the last one.
ATTRACTOR_INLINE Vector<double>& vector_at(double* array) { return *(Vector<double>*)array; }

// Below so many tokens no bounds are computed (module.cpp), so that a token that sees only itself stays bitwise the
// same.
constexpr int64_t few = 8;

// D is the dimension, or 0 for any.
template <int D>
struct Field {
    const NativeLoop& loop;
    const int64_t member, d;
    const int64_t columns_of_values;  // d, and a column of ones where values have a bias
    int64_t count, evaluations = 0;
    double steep;  // a bound on all scores, in units of log 2; infinite if there is none
    double* masses;
    const double *query, *key, *value, *factors, *query_bias, *key_bias, *value_bias, *turns;
    double *x, *stretch, *q, *k, *v, *out, *bias, *log_masses, *squares, *ratios;
    Vector<double>* scratch;
    Problem problem;

    static int64_t room(const NativeLoop& m) {
        return Arena::padded(m.width * m.d) + 2 * Arena::padded(m.width * value_columns(m)) +
               2 * Arena::padded(m.width * m.e) + 5 * Arena::padded(m.width) +
               Arena::padded(width<double> * m.workers * vectors_of(m));
    }

    static int64_t value_columns(const NativeLoop& m) { return m.value_bias ? m.d + 1 : m.d; }

    // Vectors that the kernels need for one worker.
    static int64_t vectors_of(const NativeLoop& m) {
        return columns * (3 * m.e + 3 * value_columns(m) + 2 * depth) + depth;
    }

    Field(const NativeLoop& m, int64_t row, Arena& arena)
        : loop(m),
          member(row),
          d(D ? D : m.d),
          columns_of_values(value_columns(m)),
          count(m.counts[row]),
          problem(m.problem) {
        masses = m.masses ? m.masses + row * m.mass_stride : nullptr;
        query = m.query + row * m.query_stride, key = m.key + row * m.query_stride;
        value = m.value ? m.value + row * m.value_stride : nullptr;
        factors = m.factors ? m.factors + row * m.factor_stride : nullptr;
        query_bias = m.query_bias ? m.query_bias + row * m.query_bias_stride : nullptr;
        key_bias = m.key_bias ? m.key_bias + row * m.key_bias_stride : nullptr;
        value_bias = m.value_bias ? m.value_bias + row * m.value_bias_stride : nullptr;
        turns = m.turns ? m.turns + row * m.turn_stride : nullptr;
        x = arena.take(m.width * d), out = arena.take(m.width * columns_of_values);
        v = arena.take(m.width * columns_of_values), q = arena.take(m.width * m.e), k = arena.take(m.width * m.e);
        stretch = arena.take(m.width), bias = arena.take(m.width), log_masses = arena.take(m.width);
        squares = arena.take(m.width), ratios = arena.take(m.width);
        scratch = (Vector<double>*)arena.take(width<double> * m.workers * vectors_of(m));
        problem.e = m.e, problem.c = columns_of_values, problem.mode = m.mode, problem.causal = m.causal, problem.window = m.window;
        problem.skip_self = m.skip_self;
        problem.q.data = q, problem.k.data = k, problem.q.row = problem.k.row = m.e;
        problem.v.row = problem.output.row = columns_of_values;
        problem.visible.data = m.visible ? (void*)(m.visible + row * m.visible_stride) : nullptr;
        problem.visible.row = m.n;
        steep = loop.squared ? infinity<double> : steepness();
        weigh_tokens();
    }

    ATTRACTOR_INLINE int64_t dim() const { return D ? D : d; }

    ATTRACTOR_INLINE double dot(const double* a, const double* b) const {
        double sum = 0;
        for (int64_t index = 0; index < dim(); index++) sum += a[index] * b[index];
        return sum;
    }

    // The length of a vector, also where its squares overflow or underflow.
    ATTRACTOR_INLINE double length(const double* a) const { return length(a, dot(a, a)); }

    ATTRACTOR_INLINE double length(const double* a, double square) const {
        return square >= 1e-280 && square <= __DBL_MAX__ ? __builtin_sqrt(square) : scaled_length(a);
    }

    // The length of a, or of a - b.
    __attribute__((noinline)) double scaled_length(const double* a, const double* b = nullptr) const {
        double largest = 0, sum = 0;
        for (int64_t index = 0; index < dim(); index++) {
            const double entry = __builtin_fabs(b ? a[index] - b[index] : a[index]);
            if (!(entry <= largest)) largest = entry;  // NaN too
        }
        if (!(largest > 0 && largest <= __DBL_MAX__)) return largest;
        for (int64_t index = 0; index < dim(); index++) {
            const double entry = (b ? a[index] - b[index] : a[index]) / largest;
            sum += entry * entry;
        }
        return largest * __builtin_sqrt(sum);
    }

    double quadratic(const double* a, const double* b) const {
        double sum = 0;
        for (int64_t row = 0; row < dim(); row++) sum += dot(loop.matrix + row * dim(), a) * b[row];
        return sum;
    }

    // The ratio of y to its projection onto the space.
    ATTRACTOR_INLINE double stretch_of(const double* y) const {
        if (loop.space == Space::euclidean) return 1;
        return loop.space == Space::sphere ? __builtin_sqrt(dot(y, y)) / loop.radius : __builtin_sqrt(quadratic(y, y));
    }

    // The same for retraction: exactly 1 for a point on the space up to rounding, so that a token at rest stays bitwise
    // the same.
    ATTRACTOR_INLINE double settled_stretch(const double* y) const {
        const double stretch_here = stretch_of(y);
        return __builtin_fabs(stretch_here - 1) <= 4 * __DBL_EPSILON__ ? 1 : stretch_here;
    }

    void retract(double* points) const {
        if (loop.space == Space::euclidean) return;
        for (int64_t i = 0; i < count; i++) {
            const double stretch_here = settled_stretch(points + i * dim());
            for (int64_t index = i * dim(); index < (i + 1) * dim(); index++) points[index] /= stretch_here;
        }
    }

    // After a change of masses: compute their logarithms, which every evaluation needs.
    void weigh_tokens() {
        problem.n = problem.m = count;
        double most = __builtin_fabs(log2e * loop.bias);
        for (int64_t i = 0; masses && !loop.averaged && i < count; i++) {
            log_masses[i] = log2e * __builtin_log(masses[i]);
            most = __builtin_fabs(log_masses[i]) > most ? __builtin_fabs(log_masses[i]) : most;
        }
        problem.calm = count >= few && steep + most < moderate<double>;
    }

    void operator()(const double* y, double* f) {
        evaluations++;
        const bool curved = loop.space != Space::euclidean;
        if (curved)
            enter(y);
        else
            __builtin_memcpy(x, y, sizeof(double) * size_t(count * dim()));
        for (int64_t head = 0; head < loop.heads; head++) {
            const int64_t at = head * count;
            attend(head, outputs ? outputs + at * columns_of_values : out, levels ? levels + at : nullptr);
            collect(head, outputs ? outputs + at * columns_of_values : out, f);
        }
        add_output_bias(f);
        if (curved) make_tangent(f);
    }

    // Where the averages (heads, count, columns_of_values) and the logsumexps (heads, count) of the next evaluations are
    // written; null: not kept.
    double *outputs = nullptr, *levels = nullptr;

    // On a sphere |<Q x, K y>| <= |Q| |K| r^2 with Frobenius norms, so that no tile needs its largest score.
    double steepness() const {
        if (loop.space != Space::sphere || query_bias || key_bias) return infinity<double>;
        double most = 0;
        for (int64_t head = 0; head < loop.heads; head++) {
            double squares_of[2] = {0, 0};
            for (int64_t index = head * loop.e * d; index < (head + 1) * loop.e * d; index++)
                squares_of[0] += query[index] * query[index], squares_of[1] += key[index] * key[index];
            const double bound = __builtin_sqrt(squares_of[0] * squares_of[1]);
            most = bound <= most ? most : bound;
        }
        return log2e * __builtin_fabs(loop.scale) * loop.radius * loop.radius * most;
    }

    // Points of the space, x = y / stretch. Roots and quotients are in separate loops, which vectorise.
    void enter(const double* y) {
        const bool sphere = loop.space == Space::sphere;
        const double unit = sphere ? 1 / loop.radius : 1;
        for (int64_t i = 0; i < count; i++)
            squares[i] = sphere ? dot(y + i * dim(), y + i * dim()) : quadratic(y + i * dim(), y + i * dim());
        for (int64_t i = 0; i < count; i += width<double>) {
            for (int lane = 0; lane < width<double>; lane++)
                stretch[i + lane] = __builtin_sqrt(squares[i + lane]) * unit;
            vector_at(ratios + i) = 1 / vector_at(stretch + i);
        }
        for (int64_t i = 0; i < count; i++)
            for (int64_t index = 0; index < dim(); index++) x[i * dim() + index] = y[i * dim() + index] * ratios[i];
    }

    void make_tangent(double* f) {
        const bool sphere = loop.space == Space::sphere;
        for (int64_t i = 0; i < count; i++) {
            const double *here = x + i * dim(), *velocity = f + i * dim();
            ratios[i] = sphere ? dot(here, velocity) : quadratic(here, velocity);
            squares[i] = sphere ? dot(here, here) : quadratic(here, here);
        }
        for (int64_t i = 0; i < count; i += width<double>) vector_at(ratios + i) /= vector_at(squares + i);
        for (int64_t i = 0; i < count; i++)
            for (int64_t index = i * dim(); index < (i + 1) * dim(); index++)
                f[index] = stretch[i] * (f[index] - x[index] * ratios[i]);
    }

    // rows = x matrix', for all tokens
    void project(const double* matrix, double factor, double* rows) const {
        const int64_t e = loop.e;
        if (loop.uniform) {
            const double entry = matrix[0] * factor;
            for (int64_t index = 0; index < count * dim(); index += width<double>)
                vector_at(rows + index) = entry * vector_at(x + index);
            return;
        }
        if (loop.diagonal) {
            for (int64_t index = 0; index < dim(); index++) {
                const double entry = matrix[index * dim() + index] * factor;
                for (int64_t i = 0; i < count; i++) rows[i * dim() + index] = x[i * dim() + index] * entry;
            }
            return;
        }
        for (int64_t i = 0; i < count; i++)
            for (int64_t feature = 0; feature < e; feature++)
                rows[i * e + feature] = factor * dot(matrix + feature * dim(), x + i * dim());
    }

    // Queries and keys of a head, with biases and positions: scores are their products plus `problem.bias` / log2(e).
    void prepare(int64_t head) {
        const int64_t e = loop.e;
        project(query + head * e * dim(), loop.squared ? 1 : loop.scale, q);
        project(key + head * e * dim(), 1, k);
        if (query_bias) add_bias(query_bias + head * e, loop.squared ? 1 : loop.scale, q);
        if (key_bias) add_bias(key_bias + head * e, 1, k);
        if (turns) turn(q, 1), turn(k, 1);
        problem.bias.data = masses && !loop.averaged ? log_masses : nullptr;
        if (loop.squared) square();
        if (loop.bias != 0) {
            for (int64_t j = 0; j < count; j++) bias[j] = log2e * loop.bias;
            problem.bias.data = bias;
        }
    }

    // Values: points, weighted by mass where rows are averages, with a column of ones where values have a bias.
    void prepare_values() {
        problem.v.data = x;
        if (!value_bias && !(loop.averaged && masses)) return;
        for (int64_t j = 0; j < count; j++) {
            const double mass = loop.averaged && masses ? masses[j] : 1;
            double* row = v + j * columns_of_values;
            for (int64_t index = 0; index < dim(); index++) row[index] = mass * x[j * dim() + index];
            if (value_bias) row[dim()] = mass;
        }
        problem.v.data = v;
    }

    void attend(int64_t head, double* output, double* level) {
        const int64_t e = loop.e;
        prepare(head);
        if (head == 0) prepare_values();
        problem.output.data = output;
        problem.logsumexp.data = level;
        double reach[2];
        problem.reach = nullptr;
        if (!problem.calm && count >= few && (loop.mode == Mode::softmax || loop.mode == Mode::exponential)) {
            measure<double>(problem, 0, reach);
            problem.reach = reach;
        }
        const int64_t groups = (count + group<double> - 1) / group<double>;
        // waking threads costs about as long as this many multiplications (module.cpp)
        if (loop.workers > 1 && double(count) * double(count) * double(8 + e + dim()) >= 1e6)
            return loop.run_tasks(loop, groups, this, [](void* field, int64_t task, int worker) {
                const FlushTiny guard;
                ((const Field*)field)->meet(task, worker);
            });
        const FlushTiny guard;
        for (int64_t task = 0; task < groups; task++) meet(task, 0);
    }

    void add_bias(const double* bias_of, double factor, double* rows) const {
        for (int64_t i = 0; i < count; i++)
            for (int64_t feature = 0; feature < loop.e; feature++) rows[i * loop.e + feature] += factor * bias_of[feature];
    }

    // Turn pairs of coordinates by the angles of the positions, or back for `sign` -1.
    void turn(double* rows, double sign) const {
        for (int64_t i = 0; i < count; i++)
            for (int64_t pair = 0; pair < loop.pairs; pair++) {
                const double* angle = turns + (i * loop.pairs + pair) * 2;
                const double cosine = angle[0], sine = sign * angle[1];
                double *first = rows + i * loop.e + 2 * pair, *second = first + 1;
                const double even = *first, odd = *second;
                *first = even * cosine - odd * sine, *second = even * sine + odd * cosine;
            }
    }

    // One group of queries against all keys.
    ATTRACTOR_INLINE void meet(int64_t task, int worker) const {
        const Range rows = {task * group<double>, least((task + 1) * group<double>, count)};
        with_columns<double>(rows.stop - rows.start, [&](auto vectors) {
            forward_mode<double, decltype(vectors)::value>(problem, 0, rows, scratch + worker * vectors_of(loop));
        });
    }

    // L2 as softmax: 2 scale <q - c, k - c> - scale |k - c|^2, with the mean key c
    void square() {
        const int64_t e = loop.e;
        for (int64_t feature = 0; feature < e; feature++) {
            double centre = 0;
            for (int64_t j = 0; j < count; j++) centre += k[j * e + feature];
            centre /= double(count);
            for (int64_t j = 0; j < count; j++) {
                k[j * e + feature] -= centre;
                q[j * e + feature] = 2 * loop.scale * (q[j * e + feature] - centre);
            }
        }
        for (int64_t j = 0; j < count; j++) {
            double sum = 0;
            for (int64_t feature = 0; feature < e; feature++) sum += k[j * e + feature] * k[j * e + feature];
            bias[j] = (masses ? log_masses[j] : 0) - log2e * loop.scale * sum;
        }
        problem.bias.data = bias;
    }

    // The factor of averages where masses are 1/n.
    double mean() const { return loop.averaged && !masses ? 1 / double(count) : 1; }

    // f = sum over heads of V_h times its output
    void collect(int64_t head, const double* output, double* f) const {
        if (factors) {
            const double factor = factors[head] * mean();
            for (int64_t index = 0; index < count * dim(); index++)
                f[index] = head ? f[index] + factor * output[index] : factor * output[index];
            return;
        }
        const double *map = value + head * dim() * dim(), *shift = value_bias ? value_bias + head * dim() : nullptr;
        for (int64_t i = 0; i < count; i++)
            for (int64_t index = 0; index < dim(); index++) {
                const double* row = output + i * columns_of_values;
                double moved = dot(map + index * dim(), row);
                if (shift) moved += shift[index] * row[dim()];
                moved *= mean();
                f[i * dim() + index] = head ? f[i * dim() + index] + moved : moved;
            }
    }

    void add_output_bias(double* f) const {
        if (!loop.output_bias) return;
        for (int64_t i = 0; i < count; i++)
            for (int64_t index = 0; index < dim(); index++) f[i * dim() + index] += loop.output_bias[index];
    }
};

}  // namespace attractor::ATTRACTOR_ISA

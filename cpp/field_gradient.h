// Gradients of one evaluation of the field (field.h): products of a vector with its Jacobian, transposed.
//
// With G_i the gradient of output i, g_ij = <G_i, v_j> (0 for j = i if the self term is skipped) and w_ij the weights,
// the gradients of the scores are those of backward.h. Here one pass over the pairs serves the sums over keys and those
// over queries: exponentials are computed once. Lanes are queries; sums over queries are kept for each lane and added
// up at the end of a tile of keys.
#pragma once

#include "field.h"
#include "step_record.h"

namespace attractor::ATTRACTOR_ISA {

constexpr int64_t gradient_tile = 32;    // keys of a tile
constexpr int64_t gradient_chunk = 128;  // queries of a task; fixed, so that results do not depend on the threads

// One head: rows of queries (q, G, log2 of the normaliser, term) and of keys (k, v, bias), and their gradients.
struct PairGradients {
    int64_t e, c;
    const double *q, *k, *v, *G, *bias, *level, *term;
    double *grad_q, *grad_k, *grad_v, *grad_bias;  // those of keys are partial sums over the queries of a chunk
};

// sums[j] += sum over the lanes' columns of slopes q, of tile G, and of slopes
template <int NQ, int E, int C>
void add_to_keys(const Vector<double>* tile, const Vector<double>* slopes, int64_t count, const Vector<double>* q,
                 const Vector<double>* G, int64_t features, int64_t channels, Vector<double>* sums) {
    const int64_t e = E ? E : features, c = C ? C : channels;
    for (int64_t j = 0; j < count; j++) {
        const Vector<double>*weight = tile + j * NQ, *slope = slopes + j * NQ;
        Vector<double>* to = sums + j * (e + c + 1);
        auto add = [&](const Vector<double>* factor, const Vector<double>* vectors, int64_t number)
                       __attribute__((always_inline)) {
            for (int64_t index = 0; index < number; index++) {
                Vector<double> total = factor[0] * vectors[index * NQ];
#pragma GCC unroll 4
                for (int column = 1; column < NQ; column++) total += factor[column] * vectors[index * NQ + column];
                to[index] += total;
            }
            to += number;
        };
        add(slope, q, e);
        add(weight, G, c);
        Vector<double> total = slope[0];
#pragma GCC unroll 4
        for (int column = 1; column < NQ; column++) total += slope[column];
        *to += total;
    }
}

template <int NQ>
void add_all_to_keys(const Vector<double>* tile, const Vector<double>* slopes, int64_t count, const Vector<double>* q,
                     const Vector<double>* G, int64_t e, int64_t c, Vector<double>* sums) {
    if (e == 3 && c == 3) return add_to_keys<NQ, 3, 3>(tile, slopes, count, q, G, e, c, sums);
    if (e == 2 && c == 2) return add_to_keys<NQ, 2, 2>(tile, slopes, count, q, G, e, c, sums);
    add_to_keys<NQ, 0, 0>(tile, slopes, count, q, G, e, c, sums);
}

// Scores become weights in `tile`, and g becomes the gradients of scores in `slopes`.
template <int NQ, Mode mode>
void weigh_slopes(Vector<double>* tile, Vector<double>* slopes, int64_t count, const Vector<double>* term) {
    if constexpr (mode == Mode::linear) return;
    if constexpr (mode == Mode::softmax) exp2_all<double, Domain::below>(tile, count * NQ);
    if constexpr (mode == Mode::exponential) exp2_all<double, Domain::any>(tile, count * NQ);
    for (int64_t j = 0; j < count; j++)
#pragma GCC unroll 4
        for (int column = 0; column < NQ; column++) {
            Vector<double>&weight = tile[j * NQ + column], &slope = slopes[j * NQ + column];
            if constexpr (mode == Mode::softmax) slope = weight * (slope + term[column]);
            // an infinite weight times a zero gradient is 0
            if constexpr (mode == Mode::exponential) slope = slope == 0 ? Vector<double>{} : weight * slope;
            if constexpr (mode == Mode::sigmoid) {
                const Vector<double> x = weight;
                weight = sigmoid2(x);
                slope = weight * (sigmoid2(-x) * slope);
            }
        }
}

inline int64_t pair_scratch(int64_t e, int64_t c) {
    const int64_t groups = gradient_chunk / width<double> + columns;
    return groups * (2 * e + c + 2) + 2 * gradient_tile * columns + gradient_tile * (e + c + 1) + width<double>;
}

// The gradients of the queries `rows`, and what they give to the gradients of all keys.
template <int NQ, Mode mode>
void compute_pair_gradients(const Problem& problem, const PairGradients& pairs, Range rows, Vector<double>* memory) {
    using V = Vector<double>;
    constexpr int64_t height = NQ * width<double>;
    const int64_t e = pairs.e, c = pairs.c, groups = (rows.stop - rows.start + height - 1) / height;
    const int64_t each = (2 * e + c + 2) * NQ;
    const double factor = mode == Mode::linear ? 1 : log2e;
    V *tile = memory + groups * each, *slopes = tile + gradient_tile * NQ, *sums = slopes + gradient_tile * NQ;
    const uint8_t* visible = (const uint8_t*)problem.visible.data;
    auto lanes_of = [&](int64_t group) {
        return Range{rows.start + group * height, least(rows.start + (group + 1) * height, rows.stop)};
    };
    for (int64_t group = 0; group < groups; group++) {
        const Range lanes = lanes_of(group);
        const int64_t count = lanes.stop - lanes.start;
        V* q = memory + group * each;
        V *G = q + e * NQ, *level = G + c * NQ, *term = level + NQ, *grad = term + NQ;
        pack<double, NQ>(pairs.q + lanes.start * e, e, count, e, factor, q);
        pack<double, NQ>(pairs.G + lanes.start * c, c, count, c, 1, G);
        pack_column<double, NQ>(pairs.level ? pairs.level + lanes.start : nullptr, count, 1,
                                mode == Mode::softmax ? infinity<double> : 0, level);
        pack_column<double, NQ>(pairs.term ? pairs.term + lanes.start : nullptr, count, 1, 0, term);
        for (int64_t index = 0; index < e * NQ; index++) grad[index] = V{};
    }
    const Range keys = visible_keys(problem, rows);
    const V zero[NQ] = {};
    for (int64_t start = keys.start; start < keys.stop; start += gradient_tile) {
        const Range here = {start, least(start + gradient_tile, keys.stop)};
        const int64_t count = here.stop - here.start, number = count * (e + c + 1);
        for (int64_t index = 0; index < number + width<double>; index++) sums[index] = V{};
        for (int64_t group = 0; group < groups; group++) {
            const Range lanes = lanes_of(group), seen = visible_keys(problem, lanes);
            if (seen.stop <= here.start || here.stop <= seen.start) continue;
            V* q = memory + group * each;
            V *G = q + e * NQ, *level = G + c * NQ, *term = level + NQ, *grad = term + NQ;
            scores<double, NQ, false>(q, pairs.k + start * e, e, e, count, pairs.bias ? pairs.bias + start : nullptr,
                                      level, tile, nullptr);
            scores<double, NQ, false>(G, pairs.v + start * c, c, c, count, nullptr, zero, slopes, nullptr);
            if (!all_visible(problem, lanes, here)) {
                hide<double, NQ>(problem, visible, lanes, here, false, mode == Mode::linear ? 0 : -infinity<double>,
                                 tile);
                hide<double, NQ>(problem, visible, lanes, here, false, 0, slopes);
            }
            if (problem.skip_self) drop_self<double, NQ>(problem, lanes, here, false, slopes);
            weigh_slopes<NQ, mode>(tile, slopes, count, term);
            weighted_sum<double, NQ>(slopes, count, pairs.k + start * e, e, e, grad);
            if (problem.skip_self) drop_self<double, NQ>(problem, lanes, here, false, tile);
            add_all_to_keys<NQ>(tile, slopes, count, q, G, e, c, sums);
        }
        for (int64_t index = 0; index < number; index += width<double>) {
            V totals[width<double>];
            for (int lane = 0; lane < width<double>; lane++) totals[lane] = sums[index + lane];
            sums[index / width<double>] = lane_sums<double>(totals);
        }
        const double* totals = (const double*)sums;
        for (int64_t j = here.start; j < here.stop; j++, totals += e + c + 1) {
            for (int64_t feature = 0; feature < e; feature++)
                pairs.grad_k[j * e + feature] += totals[feature] / factor;
            for (int64_t channel = 0; channel < c; channel++) pairs.grad_v[j * c + channel] += totals[e + channel];
            pairs.grad_bias[j] += totals[e + c];
        }
    }
    for (int64_t group = 0; group < groups; group++) {
        const Range lanes = lanes_of(group);
        const V* grad = memory + group * each + (e + c + 2) * NQ;
        unpack<double, NQ>(grad, nullptr, lanes.stop - lanes.start, e, 1, e, pairs.grad_q + lanes.start * e);
    }
}

template <int D>
class FieldGradient {
    using V = Vector<double>;
    Field<D>& field;
    const NativeLoop& loop;
    const ParameterGradients to;
    const int64_t d, e, c, chunks;
    double *velocity, *grad_velocity, *grad_x, *G, *level, *term, *grad_q, *grad_keys, *normal;
    V* scratch;

    static int64_t chunks_of(const NativeLoop& m) { return (m.width + gradient_chunk - 1) / gradient_chunk; }
    // gradients of keys, values and biases of one chunk of queries
    static int64_t key_numbers(const NativeLoop& m) { return m.width * (m.e + Field<D>::value_columns(m) + 1); }
    static int64_t scratch_vectors(const NativeLoop& m) { return pair_scratch(m.e, Field<D>::value_columns(m)); }

public:
    static int64_t room(const NativeLoop& m) {
        return 4 * Arena::padded(m.width * m.d) + Arena::padded(m.width * Field<D>::value_columns(m)) +
               2 * Arena::padded(m.width) + Arena::padded(m.width * m.e) +
               chunks_of(m) * Arena::padded(key_numbers(m)) +
               Arena::padded(width<double> * m.workers * scratch_vectors(m));
    }

    FieldGradient(Field<D>& field_, const ParameterGradients& to_, Arena& arena)
        : field(field_),
          loop(field_.loop),
          to(to_),
          d(field_.dim()),
          e(loop.e),
          c(field_.columns_of_values),
          chunks(chunks_of(loop)) {
        const int64_t size = loop.width * d;
        velocity = arena.take(size), grad_velocity = arena.take(size), grad_x = arena.take(size);
        normal = arena.take(size), G = arena.take(loop.width * c);
        level = arena.take(loop.width), term = arena.take(loop.width), grad_q = arena.take(loop.width * e);
        grad_keys = arena.take(chunks * Arena::padded(key_numbers(loop)));
        scratch = (V*)arena.take(width<double> * loop.workers * scratch_vectors(loop));
    }

    // Add J'(y) grad to `grad_y`, and the gradients of the parameters. `outputs` and `levels` are those of the
    // evaluation at y.
    void operator()(const double* y, double* outputs, const double* levels, const double* grad, double* grad_y) {
        const int64_t count = field.count;
        const bool curved = loop.space != Space::euclidean;
        if (curved)
            field.enter(y);
        else
            __builtin_memcpy(field.x, y, sizeof(double) * size_t(count * d));
        for (int64_t head = 0; head < loop.heads; head++) field.collect(head, outputs + head * count * c, velocity);
        field.add_output_bias(velocity);
        enter_tangent(grad);
        if (to.output_bias)
            for (int64_t i = 0; i < count; i++) add(1, grad_velocity + i * d, d, to.output_bias);
        for (int64_t head = 0; head < loop.heads; head++)
            through_head(head, outputs + head * count * c, levels ? levels + head * count : nullptr);
        if (curved)
            leave_space(grad_y);
        else
            add(1, grad_x, count * d, grad_y);
    }

    // Add to `grad_y` the gradient through y -> y / stretch(y), given that of its values x; `along` is a further
    // gradient of the stretch.
    void through_retraction(const double* x, double stretch, const double* grad, double along, double* grad_y) const {
        along -= field.dot(grad, x) / stretch;
        for (int64_t index = 0; index < d; index++)
            grad_y[index] += grad[index] / stretch + along * normal_of(x, index);
    }

    // The gradient of the stretch, W x.
    double normal_of(const double* x, int64_t index) const {
        return loop.space == Space::sphere ? x[index] / (loop.radius * loop.radius)
                                           : field.dot(loop.matrix + index * d, x);
    }

private:
    static ATTRACTOR_INLINE void add(double factor, const double* from, int64_t count, double* to) {
        for (int64_t index = 0; index < count; index++) to[index] += factor * from[index];
    }

    // Through f = s (v - x r) with r = <x, v> / <x, x> in the metric of the space: the gradient of v, what x gets, and
    // in `term` the gradient of s.
    void enter_tangent(const double* grad) {
        const int64_t count = field.count;
        if (loop.space == Space::euclidean) {
            __builtin_memcpy(grad_velocity, grad, sizeof(double) * size_t(count * d));
            for (int64_t index = 0; index < count * d; index++) grad_x[index] = 0;
            return;
        }
        const bool sphere = loop.space == Space::sphere;
        for (int64_t i = 0; i < count; i++) {
            const double *x = field.x + i * d, *v = velocity + i * d, *g = grad + i * d;
            double* n = normal + i * d;  // W x, up to a factor on the sphere
            for (int64_t index = 0; index < d; index++)
                n[index] = sphere ? x[index] : field.dot(loop.matrix + index * d, x);
            const double square = field.dot(n, x), r = field.dot(n, v) / square, s = field.stretch[i];
            const double along = s * field.dot(x, g) / square;
            double by_stretch = 0;
            for (int64_t index = 0; index < d; index++) {
                const double moved = sphere ? v[index] : field.dot(loop.matrix + index * d, v);
                grad_velocity[i * d + index] = s * g[index] - along * n[index];
                grad_x[i * d + index] = -r * s * g[index] - along * (moved - 2 * r * n[index]);
                by_stretch += g[index] * (v[index] - x[index] * r);
            }
            field.ratios[i] = by_stretch;
        }
    }

    // Through x = y / s; `field.ratios` has the gradients of s so far.
    void leave_space(double* grad_y) const {
        for (int64_t i = 0; i < field.count; i++)
            through_retraction(field.x + i * d, field.stretch[i], grad_x + i * d, field.ratios[i],
                               grad_y + i * d);
    }

    void through_head(int64_t head, const double* outputs, const double* levels) {
        const int64_t count = field.count;
        const double mean = field.mean();
        field.prepare(head);
        if (head == 0) field.prepare_values();
        through_values(head, outputs, mean);
        const bool softmax = loop.mode == Mode::softmax;
        for (int64_t i = 0; softmax && i < count; i++) {
            // a row that sees no key has weights 0
            level[i] = levels[i] > -infinity<double> ? log2e * levels[i] : infinity<double>;
            double product = 0;
            for (int64_t channel = 0; channel < c; channel++) product += G[i * c + channel] * outputs[i * c + channel];
            term[i] = -product;
        }
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            double* keys = grad_keys + chunk * Arena::padded(key_numbers(loop));
            for (int64_t index = 0; index < count * (e + c + 1); index++) keys[index] = 0;
        }
        const int64_t tasks = (count + gradient_chunk - 1) / gradient_chunk;
        if (loop.workers > 1 && tasks > 1 && double(count) * double(count) * double(8 + e + d) >= 1e6) {
            loop.run_tasks(loop, tasks, this, [](void* self, int64_t task, int worker) {
                const FlushTiny guard;
                ((FieldGradient*)self)->run_chunk(task, worker);
            });
        } else {
            const FlushTiny guard;
            for (int64_t task = 0; task < tasks; task++) run_chunk(task, 0);
        }
        for (int64_t task = 1; task < tasks; task++)
            add(1, grad_keys + task * Arena::padded(key_numbers(loop)), count * (e + c + 1), grad_keys);
        double *grad_k = grad_keys, *grad_v = grad_k + count * e, *grad_bias = grad_v + count * c;
        through_bias(grad_k, grad_bias);
        for (int64_t j = 0; j < count; j++) {
            const double mass = loop.averaged && field.masses ? field.masses[j] : 1;
            add(mass, grad_v + j * c, d, grad_x + j * d);
            if (!to.masses) continue;
            if (!loop.averaged) {
                to.masses[j] += grad_bias[j] / field.masses[j];
            } else {
                to.masses[j] += field.dot(grad_v + j * c, field.x + j * d);
                if (c > d) to.masses[j] += grad_v[j * c + d];
            }
        }
        through_projection(head, grad_k);
    }

    void run_chunk(int64_t task, int worker) {
        const int64_t count = field.count;
        double* keys = grad_keys + task * Arena::padded(key_numbers(loop));
        const Problem& problem = field.problem;
        const PairGradients pairs = {e,
                                     c,
                                     field.q,
                                     field.k,
                                     (const double*)problem.v.data,
                                     G,
                                     (const double*)problem.bias.data,
                                     loop.mode == Mode::softmax ? level : nullptr,
                                     term,
                                     grad_q,
                                     keys,
                                     keys + count * e,
                                     keys + count * (e + c)};
        const Range rows = {task * gradient_chunk, least((task + 1) * gradient_chunk, count)};
        V* memory = scratch + worker * scratch_vectors(loop);
        with_columns<double>(rows.stop - rows.start, [&](auto vectors) {
            constexpr int NQ = decltype(vectors)::value;
            switch (problem.mode) {
                case Mode::softmax: return compute_pair_gradients<NQ, Mode::softmax>(problem, pairs, rows, memory);
                case Mode::exponential:
                    return compute_pair_gradients<NQ, Mode::exponential>(problem, pairs, rows, memory);
                case Mode::sigmoid: return compute_pair_gradients<NQ, Mode::sigmoid>(problem, pairs, rows, memory);
                case Mode::linear: return compute_pair_gradients<NQ, Mode::linear>(problem, pairs, rows, memory);
            }
        });
    }

    // G = V' times the gradient of the velocity, and the gradients of V and of its bias.
    void through_values(int64_t head, const double* outputs, double mean) {
        const int64_t count = field.count;
        if (field.factors) {
            const double factor = field.factors[head] * mean;
            for (int64_t index = 0; index < count * d; index++) G[index] = factor * grad_velocity[index];
            return;
        }
        const double* map = field.value + head * d * d;
        const double* shift = field.value_bias ? field.value_bias + head * d : nullptr;
        for (int64_t i = 0; i < count; i++) {
            const double *g = grad_velocity + i * d, *output = outputs + i * c;
            for (int64_t channel = 0; channel < d; channel++) {
                double sum = 0;
                for (int64_t index = 0; index < d; index++) sum += map[index * d + channel] * g[index];
                G[i * c + channel] = mean * sum;
            }
            if (shift) G[i * c + d] = mean * field.dot(shift, g);
            if (to.value)
                for (int64_t index = 0; index < d; index++)
                    add(mean * g[index], output, d, to.value + (head * d + index) * d);
            if (shift && to.value_bias) add(mean * output[d], g, d, to.value_bias + head * d);
        }
    }

    // L2 scores as those of softmax: 2 scale <q - c, k - c> - scale |k - c|^2. The mean key c changes nothing.
    void through_bias(double* grad_k, const double* grad_bias) {
        const int64_t count = field.count;
        if (to.scale)
            for (int64_t index = 0; index < count * e; index++) *to.scale += grad_q[index] * field.q[index];
        if (!loop.squared) {
            for (int64_t index = 0; index < count * e; index++) grad_q[index] *= loop.scale;
            return;
        }
        for (int64_t j = 0; j < count; j++) {
            double square = 0;
            for (int64_t feature = 0; feature < e; feature++) {
                const double key = field.k[j * e + feature];
                grad_k[j * e + feature] -= 2 * loop.scale * key * grad_bias[j];
                square += key * key;
            }
            if (to.scale) *to.scale -= loop.scale * square * grad_bias[j];
        }
        for (int64_t index = 0; index < count * e; index++) grad_q[index] *= 2 * loop.scale;
    }

    // Through queries and keys: gradients of the matrices, of their biases and of the points.
    void through_projection(int64_t head, double* grad_k) {
        const int64_t count = field.count;
        if (field.turns) field.turn(grad_q, -1), field.turn(grad_k, -1);
        through_matrix(field.query + head * e * d, grad_q, to.query ? to.query + head * e * d : nullptr,
                       to.query_bias ? to.query_bias + head * e : nullptr, count);
        through_matrix(field.key + head * e * d, grad_k, to.key ? to.key + head * e * d : nullptr,
                       to.key_bias ? to.key_bias + head * e : nullptr, count);
    }

    void through_matrix(const double* matrix, const double* grad, double* grad_matrix, double* grad_bias,
                        int64_t count) {
        for (int64_t i = 0; i < count; i++) {
            const double *here = grad + i * e, *x = field.x + i * d;
            double* sum = grad_x + i * d;
            for (int64_t feature = 0; feature < e; feature++)
                for (int64_t index = 0; index < field.dim(); index++)
                    sum[index] += here[feature] * matrix[feature * d + index];
            if (grad_matrix)
                for (int64_t feature = 0; feature < e; feature++) add(here[feature], x, d, grad_matrix + feature * d);
            if (grad_bias) add(1, here, e, grad_bias);
        }
    }
};

}  // namespace attractor::ATTRACTOR_ISA

// Fixed steps of one member's tokens with noise (solvers/steppers/fixed_step.py).
//
// The recipe of step number k, of length h, for the tokens x_i of member m in d dimensions. Everything is float64.
//
// 1. Random numbers. `Philox(step, token, member, stream, block)` are the four normal numbers of random_numbers.h with
//    the key (seed mod 2^32, seed div 2^32) and the counter
//        c0 = k, counted from the start of the run;   c1 = index of the token;   c2 = index of the member (`draws`);
//        c3 = stream << 24 | block.
//    Coordinate c of the vector xi_i of token i is number c mod 4 of block c div 4 of stream 0. Coordinate c of the
//    vector xi that all tokens share is the same of stream 1 with c1 = 0.
// 2. Amplitudes. Python passes a_i (`amplitudes`) and b (`common`):
//        euler:    a_i = sqrt(2 eps_i h),       b = sqrt(2 eps_c h),   strengths at the start of the step;
//        strang2:  a_i = sqrt(2 eps_i h F_i),   F_i = 1 - (d - 2) h kappa eps_i / 3 with the curvature kappa of the space,
//                  strengths in the middle of the step (b is not 0 in flat space only).
//    The ambient increment is w_i = a_i xi_i + b xi.
// 3. White noise. In flat space n_i = w_i, on the sphere n_i = P_x w_i, and on the ellipsoid n_i = P_x (W^-1/2 w_i), with
//    P_x v = v - x <x, v> / <x, x>, in the scalar product of W on the ellipsoid. Noise of the kind "layer": n_i = w_i.
// 4. The step, with the lifted field g(y) = |y|/|x| v(x), x = N(y) (field.h), and N(y) the point of the space in the
//    direction of y (the identity in flat space):
//        euler:    x_i <- N(x_i + h g_i + n_i), with g_i = g(x)_i, which is kept from the end of the step before;
//        strang2:  x <- N(x + (h/4) (g(x) + g(x + (h/2) g(x))))                      half a step of Heun's method,
//                  x_i <- N(cos(|n_i|/r) x_i + sinc(|n_i|/r) n_i), n_i at the new x   along a geodesic; x + n in flat space,
//                  x <- N(x + (h/4) (g(x) + g(x + (h/2) g(x))))                      the other half,
//                  with the length |n| in the metric of the space, r the radius (1 on ellipsoids), sinc a = sin(a) / a.
//        Then g(x) is evaluated at the end, for the next step.
// 5. A member stops before a step whose end, or whose velocities there, are not finite, and after one in which a token
//    is longer than `bound`.
#pragma once

#include "field.h"
#include "random_numbers.h"

namespace attractor::ATTRACTOR_ISA {

template <int D>
class NoisySteps {
    const NativeLoop& loop;
    const NoiseOptions& noise;
    const int64_t row;
    Arena arena;
    Field<D> field;
    double *y, *f, *next, *slope, *middle, *increment, *turn, *cosine, *shared;

public:
    NoisySteps(const NativeLoop& m, int64_t row_, void* memory)
        : loop(m), noise(m.random), row(row_), arena(memory), field(m, row_, arena) {
        const int64_t size = m.width * m.d;
        y = arena.take(size), f = arena.take(size), next = arena.take(size), slope = arena.take(size);
        middle = arena.take(size), increment = arena.take(size);
        turn = arena.take(m.width), cosine = arena.take(m.width), shared = arena.take(m.d + 4);
        copy(m.y + row * size, y), copy(m.f + row * size, f);
    }

    static size_t room(const NativeLoop& m) {
        return sizeof(double) * size_t(Field<D>::room(m) + 6 * Arena::padded(m.width * m.d) +
                                       2 * Arena::padded(m.width) + Arena::padded(m.d + 4));
    }

    void run() {
        if (loop.fresh) field(y, f);
        int64_t flags = 0, done = 0;
        while (done < noise.count && !flags) {
            if (noise.method == NoiseMethod::euler)
                euler(done);
            else
                strang(done);
            if (!is_finite(next) || !is_finite(slope)) {
                flags = Flag::failed;
                break;
            }
            swap(y, next), swap(f, slope);
            if (noise.save_rows[done] >= 0) save(noise.save_rows[done]);
            done++;
            if (is_far()) flags = Flag::check;
        }
        const int64_t size = loop.width * loop.d;
        copy(y, loop.y + row * size), copy(f, loop.f + row * size);
        noise.done[row] = done, loop.flags[row] = flags, loop.evaluations[row] += field.evaluations;
    }

private:
    int64_t size() const { return field.count * field.dim(); }
    void copy(const double* from, double* to) const { __builtin_memcpy(to, from, sizeof(double) * size_t(size())); }

    static void swap(double*& a, double*& b) {
        double* kept = a;
        a = b, b = kept;
    }

    void save(int64_t place) const {
        copy(y, loop.saved + (place * loop.columns + loop.who[row]) * loop.n * field.dim());
    }

    bool is_finite(const double* points) const {
        double sum = 0;  // of zeros
        for (int64_t index = 0; index < size(); index++) sum += 0 * points[index];
        return sum == 0;
    }

    bool is_far() const {
        bool far = false;
        for (int64_t i = 0; i < field.count; i++) {
            const double* point = y + i * field.dim();
            const double square = field.dot(point, point);
            if (!(square < 1e280)) far |= !(field.length(point, square) <= loop.bound);
            else far |= square > loop.bound * loop.bound;
        }
        return far;
    }

    void euler(int64_t step) {
        draw(step);
        if (!noise.layer) whiten(y);
        for (int64_t index = 0; index < size(); index++) next[index] = y[index] + noise.step * f[index] + increment[index];
        field.retract(next);
        field(next, slope);
    }

    void strang(int64_t step) {
        heun(y, f);
        draw(step);
        whiten(next);
        follow_geodesics();
        field(next, slope);
        heun(next, slope);
        field(next, slope);
    }

    // next = a half step of Heun's method from points x, which may be `next`, with velocities `here`.
    void heun(const double* x, double* here) {
        const double half = noise.step / 2;
        for (int64_t index = 0; index < size(); index++) middle[index] = x[index] + half * here[index];
        field(middle, increment);
        for (int64_t index = 0; index < size(); index++)
            next[index] = x[index] + half / 2 * (here[index] + increment[index]);
        field.retract(next);
    }

    // increment = a_i xi_i + b xi
    void draw(int64_t step) {
        const int64_t d = field.dim(), blocks = (d + 3) / 4;
        const double* amplitude = noise.amplitudes + step * noise.amplitude_steps + row * noise.amplitude_members;
        const double b = noise.common[step * noise.common_steps];
        const uint64_t number = uint64_t(noise.first + step), member = uint64_t(noise.draws[row]);
        Words lanes;
        for (int lane = 0; lane < width<double>; lane++) lanes[lane] = uint64_t(lane);
        Vector<double> z[4];
        for (int64_t block = 0; b != 0 && block < blocks; block += width<double>) {
            Words counter[4] = {words(number), words(0), words(member), lanes + (uint64_t(block) | 1 << 24)};
            normals(counter, noise.seed, z);
            for (int64_t lane = 0; lane < width<double> && block + lane < blocks; lane++)
                for (int part = 0; part < 4; part++) shared[4 * (block + lane) + part] = b * z[part][lane];
        }
        for (int64_t block = 0; block < blocks; block++)
            for (int64_t first = 0; first < field.count; first += width<double>) {
                Words counter[4] = {words(number), lanes + uint64_t(first), words(member), words(uint64_t(block))};
                normals(counter, noise.seed, z);
                const int64_t rows = least(width<double>, field.count - first), left = least(4, d - 4 * block);
                for (int64_t lane = 0; lane < rows; lane++) {
                    const int64_t i = first + lane;
                    const double a = amplitude[i * noise.amplitude_tokens];
                    double* to = increment + i * d + 4 * block;
                    for (int64_t part = 0; part < left; part++) to[part] = a * z[part][lane];
                }
            }
        if (b != 0)
            for (int64_t i = 0; i < field.count; i++)
                for (int64_t index = 0; index < d; index++) increment[i * d + index] += shared[index];
    }

    // The increments of tokens at x as tangent vectors that are white in the metric of the space.
    void whiten(const double* x) {
        if (loop.space == Space::euclidean) return;
        const int64_t d = field.dim();
        const bool sphere = loop.space == Space::sphere;
        for (int64_t i = 0; i < field.count; i++) {
            double* here = increment + i * d;
            if (!sphere) {
                for (int64_t index = 0; index < d; index++) middle[index] = field.dot(noise.inverse_root + index * d, here);
                for (int64_t index = 0; index < d; index++) here[index] = middle[index];
            }
            const double* point = x + i * d;
            const double share = sphere ? field.dot(point, here) / field.dot(point, point)
                                        : field.quadratic(point, here) / field.quadratic(point, point);
            for (int64_t index = 0; index < d; index++) here[index] -= point[index] * share;
        }
    }

    void follow_geodesics() {
        const int64_t d = field.dim();
        if (loop.space == Space::euclidean) {
            for (int64_t index = 0; index < size(); index++) next[index] += increment[index];
            return;
        }
        const bool sphere = loop.space == Space::sphere;
        const double unit = sphere ? 1 / loop.radius : 1;
        for (int64_t i = 0; i < field.count; i++) {
            const double* here = increment + i * d;
            turn[i] = sphere ? field.dot(here, here) : field.quadratic(here, here);
        }
        for (int64_t i = 0; i < field.count; i += width<double>) {
            const Vector<double> angle = roots(vector_at(turn + i)) * unit;
            Vector<double> sine;
            sines(angle * 0.6366197723675814, sine, vector_at(cosine + i));  // 2 / pi
            vector_at(turn + i) = angle > 0 ? sine / angle : splat(1.0);
        }
        for (int64_t i = 0; i < field.count; i++)
            for (int64_t index = i * d; index < (i + 1) * d; index++)
                next[index] = next[index] * cosine[i] + increment[index] * turn[i];
        field.retract(next);
    }
};

// The same steps for one head of isotropic attention on the sphere in D dimensions: a lane is a token, so that all work is
// on whole vectors. Coordinates are arrays (D, blocks) of vectors; lanes behind the last token are copies of the first.
template <int D>
class NoisyLanes {
    using V = Vector<double>;
    static constexpr int lanes = width<double>;
    const NativeLoop& loop;
    const NoiseOptions& noise;
    const int64_t row, n, blocks;
    Arena arena;
    const double* masses;
    const double score, gain;  // of <x, y> in the exponent of 2, and of the sums
    V *y, *f, *next, *slope, *middle, *increment, *points, *stretch;
    int64_t evaluations = 0;

    static int64_t blocks_of(int64_t n) { return (n + lanes - 1) / lanes; }

public:
    // Whether scores are so moderate that no largest one has to be found. (The own value of a token is radial; leaving it
    // out, `skip_self`, would change velocities by rounding only, which noise hides.)
    static bool suits(const NativeLoop& m, int64_t row) {
        if (m.space != Space::sphere || m.heads != 1 || !m.uniform || !m.factors || m.squared || m.bias != 0 ||
            m.causal || m.window || m.visible || m.turns || m.query_bias || m.key_bias || m.value_bias ||
            m.output_bias || m.n < 2 ||
            (m.mode != Mode::softmax && m.mode != Mode::exponential) || (m.mode == Mode::exponential) != m.averaged)
            return false;
        return __builtin_fabs(score_of(m, row)) * m.radius * m.radius < moderate<double>;
    }

    static double score_of(const NativeLoop& m, int64_t row) {
        return log2e * m.scale * m.query[row * m.query_stride] * m.key[row * m.query_stride];
    }

    static size_t room(const NativeLoop& m) {
        return sizeof(V) * size_t((7 * D + 1) * blocks_of(m.n)) + 8 * sizeof(double) * Arena::step;
    }

    NoisyLanes(const NativeLoop& m, int64_t row_, void* memory)
        : loop(m),
          noise(m.random),
          row(row_),
          n(m.n),
          blocks(blocks_of(m.n)),
          arena(memory),
          masses(m.masses ? m.masses + row_ * m.mass_stride : nullptr),
          score(score_of(m, row_)),
          gain(m.factors[row_ * m.factor_stride] * (m.averaged && !m.masses ? 1 / double(m.n) : 1)) {
        y = take(), f = take(), next = take(), slope = take(), middle = take(), increment = take(), points = take();
        stretch = (V*)arena.take(blocks * lanes);
        read(m.y, y), read(m.f, f);
    }

    void run() {
        if (loop.fresh) field(y, f);
        int64_t flags = 0, done = 0;
        for (; done < noise.count; done++) {
            if (noise.method == NoiseMethod::euler)
                euler(done);
            else
                strang(done);
            V sum = {};  // of zeros
            for (int64_t index = 0; index < D * blocks; index++) sum += 0 * next[index] + 0 * slope[index];
            double total = 0;
            for (int lane = 0; lane < lanes; lane++) total += sum[lane];
            if (!(total == 0)) {
                flags = Flag::failed;
                break;
            }
            V* kept = y;
            y = next, next = kept;
            kept = f;
            f = slope, slope = kept;
            if (noise.save_rows[done] >= 0)
                write(y, loop.saved + (noise.save_rows[done] * loop.columns + loop.who[row]) * n * D);
        }
        write(y, loop.y + row * n * D), write(f, loop.f + row * n * D);
        noise.done[row] = done, loop.flags[row] = flags, loop.evaluations[row] += evaluations;
    }

private:
    V* take() { return (V*)arena.take(D * blocks * lanes); }

    void read(const double* all, V* to) const {
        const double* from = all + row * n * D;
        for (int64_t i = 0; i < blocks * lanes; i++)
            for (int c = 0; c < D; c++) ((double*)to)[c * blocks * lanes + i] = from[(i < n ? i : 0) * D + c];
    }

    void write(const V* from, double* to) const {
        for (int64_t i = 0; i < n; i++)
            for (int c = 0; c < D; c++) to[i * D + c] = ((const double*)from)[c * blocks * lanes + i];
    }

    ATTRACTOR_INLINE V dot(const V* a, const V* b, int64_t block) const {
        V sum = a[block] * b[block];
        for (int c = 1; c < D; c++) sum += a[c * blocks + block] * b[c * blocks + block];
        return sum;
    }

    void retract(V* to) const {
        for (int64_t block = 0; block < blocks; block++) {
            const V ratio = loop.radius / roots(dot(to, to, block));
            for (int c = 0; c < D; c++) to[c * blocks + block] *= ratio;
        }
    }

    void euler(int64_t step) {
        draw(step);
        if (!noise.layer) project(y);
        for (int64_t index = 0; index < D * blocks; index++)
            next[index] = y[index] + noise.step * f[index] + increment[index];
        retract(next);
        field(next, slope);
    }

    void strang(int64_t step) {
        heun(y, f);
        draw(step);
        project(next);
        for (int64_t block = 0; block < blocks; block++) {
            const V angle = roots(dot(increment, increment, block)) * (1 / loop.radius);
            V sine, cosine;
            sines(angle * 0.6366197723675814, sine, cosine);  // 2 / pi
            sine = angle > 0 ? sine / angle : splat(1.0);
            for (int64_t index = block; index < D * blocks; index += blocks)
                next[index] = next[index] * cosine + increment[index] * sine;
        }
        retract(next);
        field(next, slope);
        heun(next, slope);
        field(next, slope);
    }

    void heun(const V* x, V* here) {
        const double half = noise.step / 2;
        for (int64_t index = 0; index < D * blocks; index++) middle[index] = x[index] + half * here[index];
        field(middle, increment);
        for (int64_t index = 0; index < D * blocks; index++)
            next[index] = x[index] + half / 2 * (here[index] + increment[index]);
        retract(next);
    }

    void draw(int64_t step) {
        static_assert(D <= 4, "one block of numbers");
        const double* amplitude = noise.amplitudes + step * noise.amplitude_steps + row * noise.amplitude_members;
        const double b = noise.common[step * noise.common_steps];
        const Words number = words(uint64_t(noise.first + step)), member = words(uint64_t(noise.draws[row]));
        Words places;
        for (int lane = 0; lane < lanes; lane++) places[lane] = uint64_t(lane);
        V z[4], shared[4] = {};
        if (b != 0) {
            Words counter[4] = {number, words(0), member, words(1 << 24)};
            normals(counter, noise.seed, shared);
        }
        for (int64_t block = 0; block < blocks; block++) {
            Words counter[4] = {number, places + uint64_t(block * lanes), member, words(0)};
            normals(counter, noise.seed, z);
            V a = splat(amplitude[0]);
            if (noise.amplitude_tokens)
                for (int64_t lane = 0; lane < lanes && block * lanes + lane < n; lane++)
                    a[lane] = amplitude[block * lanes + lane];
            for (int c = 0; c < D; c++) increment[c * blocks + block] = b != 0 ? a * z[c] + b * shared[c] : a * z[c];
        }
    }

    // The increments of tokens at x as tangent vectors.
    void project(const V* x) {
        for (int64_t block = 0; block < blocks; block++) {
            const V share = dot(x, increment, block) / dot(x, x, block);
            for (int64_t index = block; index < D * blocks; index += blocks) increment[index] -= x[index] * share;
        }
    }

    // The lifted field at `at`.
    void field(const V* at, V* to) {
        evaluations++;
        const double unit = 1 / loop.radius;
        for (int64_t block = 0; block < blocks; block++) {
            stretch[block] = roots(dot(at, at, block)) * unit;
            const V ratio = 1 / stretch[block];
            for (int64_t index = block; index < D * blocks; index += blocks) points[index] = at[index] * ratio;
        }
        int64_t block = 0;
        for (; block + 4 <= blocks; block += 4) attend<4>(block, to);
        if (block + 2 <= blocks) attend<2>(block, to), block += 2;
        if (block < blocks) attend<1>(block, to);
    }

    // The field at the tokens of G blocks. Groups of vectors hide the latency of powers.
    template <int G>
    ATTRACTOR_INLINE void attend(int64_t first, V* to) const {
        V query[G][D], sum[G] = {}, total[G][D] = {};
        for (int g = 0; g < G; g++)
            for (int c = 0; c < D; c++) query[g][c] = score * points[c * blocks + first + g];
        const double* keys = (const double*)points;
        for (int64_t j = 0; j < n; j++) {
            V key[D], power[G];
            for (int c = 0; c < D; c++) key[c] = splat(keys[c * blocks * lanes + j]);
            for (int g = 0; g < G; g++) {
                power[g] = query[g][0] * key[0];
                for (int c = 1; c < D; c++) power[g] += query[g][c] * key[c];
            }
            for (int g = 0; g < G; g++) power[g] = exp2<Domain::inside>(power[g]);
            if (masses)
                for (int g = 0; g < G; g++) power[g] *= masses[j];
            for (int g = 0; g < G; g++) {
                sum[g] += power[g];
                for (int c = 0; c < D; c++) total[g][c] += power[g] * key[c];
            }
        }
        for (int g = 0; g < G; g++) {
            const int64_t block = first + g;
            const V factor = loop.mode == Mode::softmax ? gain / sum[g] : splat(gain);
            V radial = {};
            for (int c = 0; c < D; c++) total[g][c] *= factor, radial += total[g][c] * points[c * blocks + block];
            radial /= dot(points, points, block);
            for (int c = 0; c < D; c++)
                to[c * blocks + block] = stretch[block] * (total[g][c] - points[c * blocks + block] * radial);
        }
    }
};

}  // namespace attractor::ATTRACTOR_ISA

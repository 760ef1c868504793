// Steps of many small systems on a GPU: each system is integrated by one thread block, with one thread for each token, its own step size
// and its own end. With GRID, one larger system is integrated by all blocks, which wait for each other. The algorithm is that of the native loop (cpp/integration.h); device_loop.py compiles this file with the macros
//
//   REAL, WIDE           the type of points, and whether it is double
//   D, E                 dimensions of tokens and of heads (E only where keys are not the tokens)
//   MODE                 0 softmax, 1 exponential, 2 sigmoid, 3 linear, 4 hardmax
//   FEATURES             whether queries and keys are projected; otherwise scores are <x_i, P x_j> with P = K'Q and keys are the tokens
//   SQUARED              scores are minus squared distances
//   CAUSAL, WINDOWED, SKIP_SELF, HIDE_SELF (under hardmax), WEIGHTED (masses differ), MATRICES (values are matrices, not numbers)
//   TURNED               pairs of coordinates of queries and keys that positions turn
//   SPACE                0 Euclidean, 1 sphere, 2 ellipsoid
//   SHIFTED              whether scores may be too large for a common shift, so that the largest one is computed first
//   MERGING              whether close tokens are merged
//   RULES                whether termination rules are checked
//   SHARED_SLOPES        whether the slopes of a step are in shared memory
//   THREADS, BLOCKS      threads of a block, and blocks that a multiprocessor should hold
//   SPLIT                threads of a token, which share its keys: a power of 2 up to 32
//   GRID, TILE           whether all blocks together integrate one system; then keys are read in tiles of so many
//   NOISE                0 none, or a method with noise: 1 Euler, 2 Strang's splitting; then also
//   LAYER_NOISE          whether noise is added before normalisation, instead of being that of the space
//   RECORD, REVERSE      whether steps are recorded for gradients, and whether this is the reverse sweep; then HEADS, and ROWS keys of a tile
//   STAGES, ERRORS, EXTRA, PARTS, ORDER and the tableau A, ERROR, PART: row s of A has the weights of the slopes from which slope s is
//                        computed; rows after STAGES belong to the dense output
//
// tests/solvers/cuda_emulation.h compiles the same file for a CPU.

typedef long long Long;

#ifndef EMULATED
#define DEVICE __device__ __forceinline__
#define CONSTANT __constant__
#define MEMORY ((REAL*)shared_memory)
#define INFINITE __longlong_as_double(0x7ff0000000000000LL)
#endif

#ifndef EMULATED
// All threads of a grid wait for each other; all its blocks are resident.
DEVICE void wait_for_grid(unsigned* arrived) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        const unsigned last = (atomicAdd(arrived, 1u) / gridDim.x + 1) * gridDim.x;
        while ((int)(*(volatile unsigned*)arrived - last) < 0) {}
        __threadfence();
    }
    __syncthreads();
}

extern __shared__ __align__(16) unsigned char shared_memory[];
#endif

#define MOST (WIDE ? 1.7e308 : 3.4e38)

#if !NOISE
constexpr int slopes = STAGES + 1 + EXTRA;
CONSTANT double tableau[slopes][slopes] = A, error_weights[ERRORS][STAGES + 1] = ERROR, part_weights[PARTS - 3][slopes] = PART;
#endif
constexpr int keys_row = ((FEATURES ? E : D) + 1 + (WIDE ? 1 : 3)) / (WIDE ? 2 : 4) * (WIDE ? 2 : 4);  // a key and its bias, aligned
constexpr int points_row = FEATURES ? (D + (WIDE ? 1 : 3)) / (WIDE ? 2 : 4) * (WIDE ? 2 : 4) : 0;

// Rows of the state of members, each (members) numbers.
enum State {
    TIME, TIME_LOW, STEP, RETRIED, NEXT, FLAGS, TAKEN, STREAK, LAST, ANCHOR_TIME, REST, IMPLICIT, STEPS, WAIT, SUSPECT, CALM, EVALUATIONS,
    ACCEPTED, REJECTED, COUNT, SLACK, NODES, MERGES, SIZE, HOLD, NOTED, WHO, STATES
};
enum Flag { check = 1, arrived = 2, failed = 4, interpolated = 8, at_start = 16, stiff = 32 };
enum Rule { consensus_rule = 0, collapse_rule = 1, steady_rule = 2 };

// The argument; device_loop.py has the same fields in the same order. Strides between members are 0 where they share one array.
struct Run {
    Long members, columns, saves, attempts, interaction_stride, value_stride, mass_stride, turn_stride;
    REAL *y, *f, *anchor, *inside, *saved, *masses, *near_anchor;
    const REAL *interaction, *query, *key, *value, *shifts, *matrix;
    double *state, *totals, *log;  // the log has time, two nodes and mass (4, members, width)
    int *row_of, *node_of;
    REAL *workspace, *partials;  // of a grid: what else is in shared memory, and results of blocks
    unsigned* arrived;           // number of arrivals at barriers of the grid, 0 at the start
    const double* save_times;
    const REAL* turns;  // cosines and sines of the angles by which positions turn queries and keys (n, pairs, 2)
    int width, n, heads, window, fresh, named_times, order[3];
    double start, end, rtol, atol, first_step, safety, shrink, grow, bound, scale, bias, radius, consensus, collapse, steady;
    double noise, patience, enough_rest, calm_growth, tiny, least_time, least_move, unresolved, given_up;
    double stability, stiff_steps, calm_steps, first_wait, merge, ties;
    // of a run with noise: standard deviations of the steps, where they are saved, and the index of members in the random numbers
    const double *amplitudes, *common, *inverse_root;
    const int* save_rows;
    const Long* draws;
    Long amplitude_steps, amplitude_members, amplitude_tokens, common_steps, first;
    unsigned seed[2];
    double noise_step;
    // of a run whose gradients are needed (device_gradient.cu): for each member the number of steps, and how many states are kept, at
    // every so many steps; length and end of each step; points and slopes at the starts of those steps
    int *record;
    double* record_steps;
    REAL* kept;
    Long record_room, record_slots;
    // and for its reverse sweep: states that are computed again, results that were read and their gradients, and gradients
    REAL* again;
    const Long *read_first, *read_step;
    const double* read_place;
    const REAL* read_grads;
    REAL *grad_start, *grad_masses, *grad_law;
};

struct Vector {
    REAL v[D];
};

struct alignas(16) Word {
    float v[4];
};

// A key and its bias, and a point where it is not the key, as they lie in shared memory.
struct alignas(16) Key {
    REAL v[keys_row];
};
#if FEATURES
struct alignas(16) Point {
    REAL v[points_row];
};
#else
typedef Key Point;
#endif

#ifndef EMULATED
DEVICE double power_of_two(double x) {
    // 2^x = 2^k 2^r with |r| <= 1/2; the polynomial interpolates at Chebyshev nodes, with relative error 2e-17
    if (SHIFTED || WEIGHTED || MODE != 0) x = x < -1020.0 ? -1020.0 : x;  // otherwise no score is that small
    const double magic = 6755399441055744.0, shifted = x + magic;
    const double r = x - (shifted - magic);
    double p = 4.4558179083360645e-10;
    p = fma(p, r, 7.074194297288521e-09), p = fma(p, r, 1.0178057087733941e-07), p = fma(p, r, 1.3215432535912375e-06), p = fma(p, r, 1.5252733841556773e-05);
    p = fma(p, r, 0.00015403530463724353), p = fma(p, r, 0.001333355814640647), p = fma(p, r, 0.009618129107587256), p = fma(p, r, 0.055504108664821625);
    p = fma(p, r, 0.24022650695910158), p = fma(p, r, 0.6931471805599453), p = fma(p, r, 1.0);
    const int k = __double2loint(shifted);
    if (MODE != 0 && x > 1022.0) return x > 1024.0 ? INFINITE : 2.0 * (p * exp2((double)(k - 1)));
    return __hiloint2double(__double2hiint(p) + (k << 20), __double2loint(p));
}
DEVICE float power_of_two(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}
DEVICE double zero_if(bool condition, double x) { return __hiloint2double(condition ? 0 : __double2hiint(x), __double2loint(x)); }
DEVICE float zero_if(bool condition, float x) { return condition ? 0.0f : x; }
DEVICE double times(double a, double b) { return __dmul_rn(a, b); }
DEVICE float times(float a, float b) { return __fmul_rn(a, b); }
DEVICE double reciprocal(double x) { return 1.0 / x; }
DEVICE float reciprocal(float x) { return __frcp_rn(x); }
#endif

DEVICE REAL dot(const REAL* a, const REAL* b) {
    REAL sum = a[0] * b[0];
#pragma unroll
    for (int c = 1; c < D; c++) sum = fma(a[c], b[c], sum);
    return sum;
}

DEVICE double larger(double a, double b) { return a > b ? a : b; }

// The distance to the next floating-point number above a positive value.
DEVICE double spacing(double value) { return __longlong_as_double(__double_as_longlong(value) + 1) - value; }

// One system: the thread's token, and what the block shares.
struct System {
    const Run& run;
    const Long row;
    const int i, part, lane;
    int count;  // tokens of the system; merging reduces them
    double evaluations;
    int buffer, turn;  // which of two copies of the keys, and of the results of blocks, is written next
    REAL mass;

    DEVICE System(const Run& r)
        : run(r), row(GRID ? 0 : blockIdx.x), i((GRID ? blockIdx.x * (THREADS / SPLIT) : 0) + threadIdx.x / SPLIT), part(threadIdx.x % SPLIT),
          lane(threadIdx.x & 31), count(r.n), evaluations(0), buffer(0), turn(0), mass(0) {}

    // Memory that the threads of a system share: two copies of keys and points, sums of warps, the arrays of a merge, and slopes. That of
    // a grid is global, but for tiles of keys and points, sums of warps and slopes.
    DEVICE REAL* memory() const { return GRID ? run.workspace : MEMORY; }
    DEVICE REAL* keys() const { return memory() + buffer * run.width * keys_row; }
    DEVICE REAL* points() const { return memory() + (2 * keys_row + buffer * points_row) * run.width; }
    DEVICE REAL* sums() const { return MEMORY + (GRID ? TILE : 2 * run.width) * (keys_row + points_row); }
    DEVICE REAL* board() const { return GRID ? memory() + 2 * (keys_row + points_row) * run.width : sums() + 128; }
    DEVICE REAL* slope_memory() const {
        return GRID ? sums() + 128 : board() + run.width * (2 * D + 3) + (WIDE ? 1 : 2) * (run.width + 2);
    }

    DEVICE bool mine() const { return i < count; }
    DEVICE bool writes() const { return mine() && part == 0; }
    DEVICE bool leads() const { return threadIdx.x == 0 && (!GRID || blockIdx.x == 0); }
    DEVICE int thread() const { return GRID ? blockIdx.x * THREADS + threadIdx.x : threadIdx.x; }
    DEVICE int threads() const { return GRID ? gridDim.x * THREADS : THREADS; }

    // All threads of the system wait for each other.
    DEVICE void barrier() const {
#if GRID
        wait_for_grid(run.arrived);
#else
        __syncthreads();
#endif
    }

    // The result of `join` over all threads, for each of K numbers.
    template <int K, class Join>
    DEVICE void reduce(REAL (&values)[K], Join join) {
#pragma unroll
        for (int k = 0; k < K; k++)
            for (int apart = 16; apart; apart >>= 1) values[k] = join(values[k], __shfl_xor_sync(0xffffffffu, values[k], apart));
        if (!GRID && THREADS <= 32) return;
        __syncthreads();
        if (!lane)
            for (int k = 0; k < K; k++) sums()[k * 32 + (threadIdx.x >> 5)] = values[k];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < K; k++) {
            values[k] = sums()[k * 32];
            for (int warp = 1; warp < THREADS / 32; warp++) values[k] = join(values[k], sums()[k * 32 + warp]);
        }
#if GRID
        REAL* const results = run.partials + turn * 4 * gridDim.x;
        if (threadIdx.x == 0)
            for (int k = 0; k < K; k++) results[k * gridDim.x + blockIdx.x] = values[k];
        barrier();
#pragma unroll
        for (int k = 0; k < K; k++) {
            values[k] = 0;
            for (int block = lane; block < gridDim.x; block += 32) values[k] = join(values[k], results[k * gridDim.x + block]);
            for (int apart = 16; apart; apart >>= 1) values[k] = join(values[k], __shfl_xor_sync(0xffffffffu, values[k], apart));
        }
        turn ^= 1;
#endif
    }

    // The largest of each of K numbers >= 0 over all threads; NaN counts as infinite.
    template <int K>
    DEVICE void largest(REAL (&values)[K]) {
        for (int k = 0; k < K; k++) values[k] = values[k] <= (REAL)MOST ? values[k] : (REAL)INFINITE;
        reduce(values, [](REAL a, REAL b) { return b > a ? b : a; });
    }

    // Sums of two numbers over all threads.
    DEVICE void add_up(REAL (&values)[2]) {
        reduce(values, [](REAL a, REAL b) { return a + b; });
    }

    // Call use(key, point, index) for the keys of this thread.
    template <class Use>
    DEVICE void for_each_key(const Key* all, const Point* from, Use use) const {
        const int begin = first_key(), end = last_key();
#if GRID
        Key* const tile = (Key*)MEMORY;
        Point* const tile_points = FEATURES ? (Point*)(MEMORY + TILE * keys_row) : (Point*)tile;
        for (int base = 0; base < count; base += TILE) {
            const int size = count - base < TILE ? count - base : TILE;
            __syncthreads();
            copy(tile, all + base, size);
            if (FEATURES) copy(tile_points, from + base, size);
            __syncthreads();
            const int first = begin > base ? begin - base : 0, last = end < base + size ? end - base : size;
            if (mine())
#pragma unroll 16
                for (int j = first + part; j < last; j += SPLIT) use(tile[j], tile_points[j], base + j);
        }
#else
        if (mine())
#pragma unroll 16
            for (int j = begin + part; j < end; j += SPLIT) use(all[j], from[j], j);
#endif
    }

    // Copy rows to shared memory by 16 bytes.
    template <class Row>
    DEVICE static void copy(Row* to, const Row* from, int count) {
        for (int word = threadIdx.x; word < count * (int)(sizeof(Row) / sizeof(Word)); word += THREADS) ((Word*)to)[word] = ((const Word*)from)[word];
    }

    // ------------------------------------------------------------------ the space

    DEVICE REAL quadratic(const REAL* a, const REAL* b) const {
        if (SPACE != 2) return dot(a, b);
        REAL sum = 0;
        for (int r = 0; r < D; r++) sum += dot(run.matrix + r * D, a) * b[r];
        return sum;
    }

    // The ratio of y to its projection onto the space.
    DEVICE REAL stretch_of(const REAL* y) const {
        return SPACE == 0 ? (REAL)1 : SPACE == 1 ? (REAL)(sqrt(dot(y, y)) / (REAL)run.radius) : (REAL)sqrt(quadratic(y, y));
    }

    // The same for retraction: exactly 1 for a point on the space up to rounding.
    DEVICE REAL settled_stretch(const REAL* y) const {
        const REAL here = stretch_of(y);
        return fabs(here - 1) <= (REAL)(WIDE ? 8.9e-16 : 4.8e-7) ? (REAL)1 : here;
    }

    DEVICE void retract(Vector& y) const {
        if (SPACE == 0) return;
        const REAL here = settled_stretch(y.v);
#pragma unroll
        for (int c = 0; c < D; c++) y.v[c] /= here;
    }

    // ------------------------------------------------------------------ the law

    DEVICE REAL weight(REAL score) const {
        if (MODE == 3) return score;
        if (MODE == 2) return reciprocal((REAL)1 + power_of_two(-score));
        return power_of_two(score);
    }

    // The score, minus a shift that is the same for all keys.
    DEVICE static REAL score(const REAL* query, const Key& key, REAL shift) {
        constexpr int features = FEATURES ? E : D;
        REAL sum = fma(query[0], key.v[0], (WEIGHTED && MODE == 0) || SQUARED ? key.v[features] - shift : -shift);
#pragma unroll
        for (int c = 1; c < features; c++) sum = fma(query[c], key.v[c], sum);
        return sum;
    }

    DEVICE int first_key() const { return WINDOWED && i >= run.window ? i - run.window + 1 : 0; }

    DEVICE int last_key() const {
        const int end = WINDOWED && i + run.window < count ? i + run.window : count;
        return CAUSAL && i + 1 < end ? i + 1 : end;
    }

    // The velocity of the token in coordinates of the ambient space, at y outside or on the space.
    DEVICE Vector field(const Vector& y) {
        Vector x = y, total;
        evaluations++;
        // x = y / stretch has length radius, or 1 in the metric of an ellipsoid
        const REAL radius = SPACE == 1 ? (REAL)run.radius : (REAL)1, square = SPACE == 0 ? (REAL)1 : quadratic(y.v, y.v);
        const REAL root = SPACE == 0 ? (REAL)1 : (REAL)rsqrt(square), stretch = square * root / radius;
#pragma unroll
        for (int c = 0; c < D; c++) {
            total.v[c] = 0;
            if (SPACE != 0) x.v[c] = y.v[c] * (radius * root);
        }
        for (int head = 0; head < run.heads; head++) attend(head, x, total);
        if (SPACE != 0) {
            const REAL along = quadratic(x.v, total.v) / (radius * radius);
#pragma unroll
            for (int c = 0; c < D; c++) total.v[c] = stretch * (total.v[c] - x.v[c] * along);
        }
        return total;
    }

    // Add the part of a head to the velocity at x.
    DEVICE void attend(int head, const Vector& x, Vector& total) {
        REAL query[FEATURES ? E : D];
        Vector mean;
        average(head, x, query, mean);
        add_values(head, mean, total);
    }

    DEVICE void add_values(int head, const Vector& mean, Vector& total) const {
#if MATRICES
        const REAL* V = run.value + row * run.value_stride + head * D * D;
        for (int c = 0; c < D; c++) total.v[c] += dot(V + c * D, mean.v);
#else
        const REAL value = run.value[row * run.value_stride + head];
#pragma unroll
        for (int c = 0; c < D; c++) total.v[c] = fma(value, mean.v[c], total.v[c]);
#endif
    }

    // The query of a head at x, and the mean of the points by its weights; returns log2 of the normaliser of softmax.
    DEVICE REAL average(int head, const Vector& x, REAL (&query)[FEATURES ? E : D], Vector& mean) {
        Key* const all = (Key*)keys();
        Point* const from = (Point*)(FEATURES ? points() : keys());
        REAL shift = MODE == 0 && !SHIFTED ? run.shifts[(run.interaction_stride ? row * run.heads : 0) + head] : (REAL)0;
#if FEATURES
        REAL key[E];
        const REAL* Q = run.query + row * run.interaction_stride + head * E * D;
        const REAL* K = run.key + row * run.interaction_stride + head * E * D;
        for (int e = 0; e < E; e++) query[e] = project(Q + e * D, x.v), key[e] = project(K + e * D, x.v);
        if (TURNED) rotate(query), rotate(key);
        REAL offset = WEIGHTED && MODE == 0 ? mass_bias() : (REAL)0;
        if (SQUARED) {
            // -|q - k|^2 = 2 <q - c, k - c> - |k - c|^2 up to a term of the query, with the first key c
            if (leads())
                for (int e = 0; e < E; e++) all[0].v[e] = key[e];
            barrier();
            REAL size = 0;
            for (int e = 0; e < E; e++) {
                const REAL centre = all[0].v[e];
                key[e] -= centre, query[e] = (REAL)(2 * run.scale) * (query[e] - centre);
                size = fma(key[e], key[e], size);
            }
            offset -= (REAL)run.scale * size;
            barrier();
        } else {
            for (int e = 0; e < E; e++) query[e] *= (REAL)run.scale;
        }
        if (writes()) {
            for (int e = 0; e < E; e++) all[i].v[e] = key[e];
            all[i].v[E] = MODE == 4 ? mass : offset;
            for (int c = 0; c < D; c++) from[i].v[c] = MODE != 0 && MODE != 4 && WEIGHTED ? mass * x.v[c] : x.v[c];
        }
#else
        // the scale is part of the matrix
        const REAL* P = run.interaction + row * run.interaction_stride + head * D * D;
#pragma unroll
        for (int c = 0; c < D; c++) query[c] = dot(P + c * D, x.v);
        if (writes()) {
#pragma unroll
            for (int c = 0; c < D; c++) all[i].v[c] = x.v[c];
            all[i].v[D] = MODE == 0 ? mass_bias() : mass;
        }
#endif
        barrier();
        if (SHIFTED && MODE == 0) {
            shift = mine() ? score(query, all[first_key()], 0) : (REAL)0;
            for_each_key(all, from, [&](const Key& key_j, const Point&, int) {
                const REAL here = score(query, key_j, 0);
                shift = here > shift ? here : shift;
            });
#pragma unroll
            for (int apart = 1; apart < SPLIT; apart *= 2) {
                const REAL other = __shfl_xor_sync(0xffffffffu, shift, apart);
                shift = other > shift ? other : shift;
            }
        }
#if MODE == 4
        const REAL least = smallest_tied(all, from, query);
#endif
        REAL normaliser = 0, sum[D];
#pragma unroll
        for (int c = 0; c < D; c++) sum[c] = 0;
        const REAL minus = MODE == 0 ? shift : -(REAL)run.bias;
        for_each_key(all, from, [&](const Key& key_j, const Point& point_j, int j) {
            const Key key = key_j;
#if FEATURES
            const Point at = point_j;
#else
            const Key& at = key;
#endif
#if MODE == 4
            REAL w = !(HIDE_SELF && j == i) && exact_score(query, key) >= least ? (WEIGHTED ? key.v[E] : (REAL)1) : (REAL)0;
#else
            REAL w = weight(score(query, key, minus));
#endif
            if (MODE == 0 || MODE == 4) normaliser += w;
            if (!FEATURES && MODE != 0 && WEIGHTED) w *= at.v[D];
            if (SKIP_SELF) w = zero_if(j == i, w);
#pragma unroll
            for (int c = 0; c < D; c++) sum[c] = fma(w, at.v[c], sum[c]);
        });
#pragma unroll
        for (int apart = 1; apart < SPLIT; apart *= 2) {
            normaliser += __shfl_xor_sync(0xffffffffu, normaliser, apart);
#pragma unroll
            for (int c = 0; c < D; c++) sum[c] += __shfl_xor_sync(0xffffffffu, sum[c], apart);
        }
        const REAL factor = MODE == 0 || MODE == 4 ? (REAL)1 / normaliser : WEIGHTED ? (REAL)1 : (REAL)1 / (REAL)count;
#pragma unroll
        for (int c = 0; c < D; c++) mean.v[c] = factor * sum[c];
        // the other buffer is written next, so that no thread waits for those that still read this one
        buffer ^= 1;
        if (SQUARED) barrier();
        return MODE == 0 ? minus + log2(normaliser) : (REAL)0;
    }

    // Products of hardmax are summed in one order, without fused operations, as in laws/kernels/hardmax.py.
    DEVICE static REAL project(const REAL* row, const REAL* x) {
        if (MODE != 4) return dot(row, x);
        REAL sum = times(row[0], x[0]);
#pragma unroll
        for (int c = 1; c < D; c++) sum += times(row[c], x[c]);
        return sum;
    }

#if FEATURES
    DEVICE void rotate(REAL (&vector)[E]) const {
        const REAL* angles = run.turns + row * run.turn_stride + (mine() ? i : 0) * TURNED * 2;
#pragma unroll
        for (int pair = 0; pair < TURNED; pair++) {
            const REAL even = vector[2 * pair], odd = vector[2 * pair + 1], cosine = angles[2 * pair], sine = angles[2 * pair + 1];
            vector[2 * pair] = even * cosine - odd * sine, vector[2 * pair + 1] = even * sine + odd * cosine;
        }
    }

    DEVICE static REAL exact_score(const REAL* query, const Key& key) {
        REAL sum = times(query[0], key.v[0]);
#pragma unroll
        for (int e = 1; e < E; e++) sum += times(query[e], key.v[e]);
        return sum;
    }

    // The smallest score that ties with the largest one.
    DEVICE REAL smallest_tied(const Key* all, const Point* from, const REAL* query) {
        REAL top = -(REAL)INFINITE, longest[1] = {0};
        for_each_key(all, from, [&](const Key& key, const Point&, int j) {
            if ((HIDE_SELF && j == i) || (WEIGHTED && key.v[E] == 0)) return;
            const REAL here = exact_score(query, key);
            top = here > top ? here : top;
        });
#pragma unroll
        for (int apart = 1; apart < SPLIT; apart *= 2) {
            const REAL other = __shfl_xor_sync(0xffffffffu, top, apart);
            top = other > top ? other : top;
        }
        if (run.ties == 0) return top;
        REAL own = 0, square = 0;
        for (int e = 0; e < E; e++) own += mine() ? all[i].v[e] * all[i].v[e] : (REAL)0, square += query[e] * query[e];
        longest[0] = sqrt(own);
        largest(longest);
        return top - (REAL)run.ties * longest[0] * sqrt(square);
    }
#endif

    DEVICE REAL mass_bias() const { return WEIGHTED ? (REAL)log2(mass) : (REAL)0; }
};

#if NOISE
// Fixed steps with noise (cpp/noisy_steps.h, which has the recipe).
struct NoisySteps {
    const Run& run;
    System system;
    Vector x, f;

    DEVICE double& state(int name) const { return run.state[name * run.members + system.row]; }

    DEVICE NoisySteps(const Run& r) : run(r), system(r) {
        const Long at = (system.row * r.width + system.i) * D;
        for (int c = 0; c < D; c++) {
            x.v[c] = system.i < r.width ? r.y[at + c] : (REAL)(c == 0);
            f.v[c] = system.i < r.width ? r.f[at + c] : (REAL)0;
        }
        if (WEIGHTED && system.i < r.width) system.mass = r.masses[system.row * r.mass_stride + system.i];
    }

    DEVICE void integrate() {
        if (run.fresh) f = system.field(x);
        int flags = 0;
        Long done = 0;
        while (done < run.attempts && !flags) {
            Vector next = x, slope = f;
            if (NOISE == 1) {
                const Vector moved = whiten(draw(done), x);
#pragma unroll
                for (int c = 0; c < D; c++) next.v[c] = x.v[c] + (REAL)run.noise_step * f.v[c] + moved.v[c];
                system.retract(next);
            } else {
                heun(next, slope);
                follow_geodesic(next, whiten(draw(done), next));
                slope = system.field(next);
                heun(next, slope);
            }
            slope = system.field(next);
            REAL wrong[2] = {0, 0};
            if (system.mine()) {
                for (int c = 0; c < D; c++)
                    if (!(fabs(next.v[c]) <= (REAL)MOST && fabs(slope.v[c]) <= (REAL)MOST)) wrong[0] = 1;
                if (SPACE == 0) wrong[1] = !(sqrt(dot(next.v, next.v)) <= (REAL)run.bound);
            }
            system.largest(wrong);
            if (wrong[0] > 0) {
                flags = failed;
                break;
            }
            x = next, f = slope;
            if (run.save_rows[done] >= 0) write(run.saved + (run.save_rows[done] * run.columns + (Long)state(WHO)) * run.n * D, x);
            done++;
            if (wrong[1] > 0) flags = check;
        }
        write(run.y + system.row * run.width * D, x), write(run.f + system.row * run.width * D, f);
        if (system.leads()) state(TAKEN) = done, state(FLAGS) = flags, state(EVALUATIONS) = system.evaluations;
    }

private:
    DEVICE void write(REAL* to, const Vector& value) const {
        if (system.writes())
            for (int c = 0; c < D; c++) to[system.i * D + c] = value.v[c];
    }

    // Half a step of Heun's method from points with velocities `slope`.
    DEVICE void heun(Vector& point, const Vector& slope) {
        const REAL half = (REAL)(run.noise_step / 2);
        Vector middle;
#pragma unroll
        for (int c = 0; c < D; c++) middle.v[c] = point.v[c] + half * slope.v[c];
        const Vector there = system.field(middle);
#pragma unroll
        for (int c = 0; c < D; c++) point.v[c] += half / 2 * (slope.v[c] + there.v[c]);
        system.retract(point);
    }

    // Four normal numbers of a counter (cpp/random_numbers.h).
    DEVICE void normals(unsigned token, unsigned stream, unsigned block, Long step, double (&z)[4]) const {
        unsigned c0 = (unsigned)(run.first + step), c1 = token, c2 = (unsigned)run.draws[system.row], c3 = stream << 24 | block;
        unsigned k0 = run.seed[0], k1 = run.seed[1];
#pragma unroll
        for (int round = 0; round < 10; round++) {
            const unsigned high = __umulhi(0xD2511F53u, c0), low = 0xD2511F53u * c0;
            const unsigned other = __umulhi(0xCD9E8D57u, c2), rest = 0xCD9E8D57u * c2;
            c0 = other ^ c1 ^ k0, c1 = rest, c2 = high ^ c3 ^ k1, c3 = low;
            k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
        }
        const unsigned r[4] = {c0, c1, c2, c3};
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            const double length = sqrt(-2.0 * log((r[2 * pair] + 0.5) * 2.3283064365386963e-10));
            double sine, cosine;
            sincospi((r[2 * pair + 1] + 0.5) * 4.656612873077393e-10, &sine, &cosine);
            z[2 * pair] = length * cosine, z[2 * pair + 1] = length * sine;
        }
    }

    // The ambient increment a_i xi_i + b xi.
    DEVICE Vector draw(Long step) const {
        const int token = system.mine() ? system.i : 0;
        const double a = run.amplitudes[step * run.amplitude_steps + system.row * run.amplitude_members + token * run.amplitude_tokens];
        const double b = run.common[step * run.common_steps];
        double sum[D], z[4];
#pragma unroll
        for (int c = 0; c < D; c++) sum[c] = 0;
#pragma unroll
        for (int block = 0; block < (D + 3) / 4; block++) {
            if (a != 0) {
                normals(token, 0, block, step, z);
#pragma unroll
                for (int c = 4 * block; c < 4 * block + 4 && c < D; c++) sum[c] = a * z[c % 4];
            }
            if (b != 0) {
                normals(0, 1, block, step, z);
#pragma unroll
                for (int c = 4 * block; c < 4 * block + 4 && c < D; c++) sum[c] += b * z[c % 4];
            }
        }
        Vector result;
#pragma unroll
        for (int c = 0; c < D; c++) result.v[c] = (REAL)sum[c];
        return result;
    }

    // An increment of a token at `point` as a tangent vector that is white in the metric of the space.
    DEVICE Vector whiten(const Vector& increment, const Vector& point) const {
        if (SPACE == 0 || LAYER_NOISE) return increment;
        Vector here = increment;
        if (SPACE == 2)
            for (int r = 0; r < D; r++) {
                REAL sum = 0;
                for (int c = 0; c < D; c++) sum += (REAL)run.inverse_root[r * D + c] * increment.v[c];
                here.v[r] = sum;
            }
        const REAL share = system.quadratic(point.v, here.v) / system.quadratic(point.v, point.v);
#pragma unroll
        for (int c = 0; c < D; c++) here.v[c] -= point.v[c] * share;
        return here;
    }

    DEVICE void follow_geodesic(Vector& point, const Vector& move) const {
        REAL sine = 1, cosine = 1;
        if (SPACE != 0) {
            const REAL angle = sqrt(system.quadratic(move.v, move.v)) / (SPACE == 1 ? (REAL)run.radius : (REAL)1);
            sincospi(angle * (REAL)0.3183098861837907, &sine, &cosine);
            sine = angle > 0 ? sine / angle : (REAL)1;
        }
#pragma unroll
        for (int c = 0; c < D; c++) point.v[c] = point.v[c] * cosine + move.v[c] * sine;
        system.retract(point);
    }
};

DEVICE void integrate_member(const Run& run) { NoisySteps(run).integrate(); }
#else
// The slopes of a step of one thread's token, in shared memory where they fit there. They are indexed at run time: in registers they would leave
// room for few threads.
struct Slopes {
    REAL* const own;
    DEVICE Slopes(REAL* memory) : own(memory) {}
    DEVICE REAL at(int q, int c) const { return own[(q * D + c) * (SHARED_SLOPES ? THREADS : 1)]; }
    DEVICE void set(int q, int c, REAL value) { own[(q * D + c) * (SHARED_SLOPES ? THREADS : 1)] = value; }
    DEVICE Vector operator[](int q) const {
        Vector slope;
#pragma unroll
        for (int c = 0; c < D; c++) slope.v[c] = at(q, c);
        return slope;
    }
    DEVICE void put(int q, const Vector& slope) {
#pragma unroll
        for (int c = 0; c < D; c++) set(q, c, slope.v[c]);
    }
};

// A member's integration (cpp/integration.h).
struct Integration {
    const Run& run;
    System system;
    Vector y;  // the start of the step, on the space
    Slopes k;  // k[0] at the start, k[STAGES] at the end
    Vector* const parts;  // coefficients of the interpolant (PARTS)
    Vector end;
    double t, t_low, h, taken;
    bool retried;
    int flags, next;
    double accepted, rejected;
    bool has_parts;

    DEVICE double& state(int name) const { return run.state[name * run.members + system.row]; }

    DEVICE Integration(const Run& r, REAL* local, Vector* local_parts)
        : run(r), system(r), k(SHARED_SLOPES ? system.slope_memory() + threadIdx.x : local), parts(local_parts), flags(0), accepted(0), rejected(0) {
        const Long at = (system.row * r.width + system.i) * D;
        const int i = system.i;
        if (!r.fresh) {
            t = state(TIME), t_low = state(TIME_LOW), h = state(STEP), retried = state(RETRIED) != 0, next = (int)state(NEXT);
            system.count = (int)state(COUNT);
        } else {
            t = r.start, t_low = 0, h = 0, retried = false, next = 0;
        }
        taken = 0;
        for (int c = 0; c < D; c++) {
            y.v[c] = i < r.width ? r.y[at + c] : (REAL)(c == 0);
            k.set(0, c, i < r.width ? r.f[at + c] : (REAL)0);
        }
        if (WEIGHTED && i < r.width) system.mass = r.masses[system.row * r.mass_stride + i];
    }

    DEVICE void integrate() {
        if (run.stability > 0 && !run.fresh && state(IMPLICIT) != 0) {
            if (system.leads()) state(FLAGS) = 0, atomicAdd(run.totals + 3, 1.0);
            return;
        }
        if (run.fresh) initialise(), begin();
        for (Long attempt = 0; attempt < run.attempts && !flags; attempt++) advance((run.end - t) - t_low);
        write();
    }

    // The state of a member at the start; its size is given.
    DEVICE void initialise() {
        if (system.leads()) {
            for (int name = 0; name < STATES; name++)
                if (name != SIZE) state(name) = 0;
            state(LAST) = INFINITE, state(HOLD) = -INFINITE, state(NOTED) = -1, state(WAIT) = run.first_wait;
            state(NODES) = run.n, state(ANCHOR_TIME) = run.start, state(WHO) = (double)system.row;
        }
        system.barrier();
    }

    // ------------------------------------------------------------------ steps

    // y + h (sum of weighted slopes), by a row of the tableau.
    DEVICE Vector combine(int row, REAL step) const {
        REAL sum[D];
#pragma unroll
        for (int c = 0; c < D; c++) sum[c] = 0;
#pragma unroll 1
        for (int q = 0; q < row; q++) {
            const REAL weight = (REAL)tableau[row][q];
            if (weight != 0)
#pragma unroll
                for (int c = 0; c < D; c++) sum[c] = fma(weight, k.at(q, c), sum[c]);
        }
        Vector result;
#pragma unroll
        for (int c = 0; c < D; c++) result.v[c] = fma(step, sum[c], y.v[c]);
        return result;
    }

    DEVICE void evaluate_stages(int first, int last, double step) {
#pragma unroll 1
        for (int s = first; s <= last; s++) {
            const Vector inner = combine(s, (REAL)step);
            if (s == STAGES) end = inner;
            k.put(s, system.field(inner));
        }
    }

    DEVICE REAL norm(const REAL* a) const { return sqrt(dot(a, a)); }

    DEVICE double error(double step) {
        const REAL before = dot(y.v, y.v), after = dot(end.v, end.v);
        const REAL scale = (REAL)run.atol + (REAL)run.rtol * sqrt(before > after ? before : after);
        REAL sizes[ERRORS];
        bool finite = true;
#pragma unroll
        for (int e = 0; e < ERRORS; e++) {
            REAL sum[D];
#pragma unroll
            for (int c = 0; c < D; c++) sum[c] = 0;
#pragma unroll 1
            for (int q = 0; q <= STAGES; q++) {
                const REAL weight = (REAL)error_weights[e][q];
                if (weight != 0)
#pragma unroll
                    for (int c = 0; c < D; c++) sum[c] = fma(weight, k.at(q, c), sum[c]);
            }
#pragma unroll
            for (int c = 0; c < D; c++) sum[c] *= (REAL)step;
            sizes[e] = norm(sum) / scale;
        }
#pragma unroll
        for (int c = 0; c < D; c++) finite &= fabs(k.at(STAGES, c)) <= (REAL)MOST;
        REAL here = sizes[ERRORS - 1];
        if (ERRORS == 2) {
            const REAL both = sqrt(here * here + (REAL)0.01 * sizes[0] * sizes[0]);
            here = both > 0 ? here * here / both : both;
        }
        REAL worst[1] = {!system.mine() ? (REAL)0 : finite ? here : (REAL)INFINITE};
        system.largest(worst);
        return (double)worst[0];
    }

    DEVICE double factor(double error, bool fits) const {
        const double ideal = run.safety * pow(error > run.tiny ? error : run.tiny, -1.0 / ORDER);
        const double most = fits && !retried ? run.grow : 1;
        return ideal < run.shrink ? run.shrink : ideal > most ? most : ideal;
    }

    DEVICE void advance(double left) {
        double now = h < left ? h : left;
        now = left < 1.000001 * now ? left : now;
        has_parts = false;
        evaluate_stages(1, STAGES, now);
        const double size = error(now);
        const bool fits = size <= 1;
        double grown = now * factor(size, fits);
        if (fits && now < h && grown < h) grown = h;  // a step shortened to reach the end does not limit the next one
        h = grown < run.end - run.start ? grown : run.end - run.start;
        retried = !fits;
        if (fits) {
            accepted++;
            if (RECORD) keep_step(now);
            accept(now, now == left);
        } else {
            rejected++;
            if (is_stuck()) flags |= failed;
        }
    }

    DEVICE Long recorded_member() const { return run.fresh ? system.row : (Long)state(WHO); }

    // Record a step that begins at the present state. States are kept at every `stride`-th step; when there is no room, every other one.
    DEVICE void keep_step(double now) {
        const Long member = recorded_member();
        int* const record = run.record + 3 * member;
        const int number = record[0], stride = record[1] > 0 ? record[1] : 1;
        int count = record[2], next_stride = stride;
        const Long size = (Long)run.width * D, mine = system.i * D;
        REAL* const kept = run.kept + member * run.record_slots * 2 * size;
        if (number % stride == 0) {
            if (count == run.record_slots) {
                next_stride = 2 * stride, count = (count + 1) / 2;
                if (system.writes())
                    for (int slot = 1; slot < count; slot++)
                        for (int half = 0; half < 2; half++)
                            for (int c = 0; c < D; c++) kept[(2 * slot + half) * size + mine + c] = kept[(4 * slot + half) * size + mine + c];
            }
            if (number % next_stride == 0) {
                if (system.writes())
                    for (int c = 0; c < D; c++) kept[2 * count * size + mine + c] = y.v[c], kept[(2 * count + 1) * size + mine + c] = k.at(0, c);
                count++;
            }
        }
        system.barrier();
        if (system.leads()) {
            record[0] = number + 1, record[1] = next_stride, record[2] = count;
            run.record_steps[(member * run.record_room + number) * 2] = now;
        }
        system.barrier();
    }

    DEVICE void advance_time(double now, bool there) {
        const double move = now + t_low, total = t + move;
        t_low = there ? 0 : (t - (total - (total - t))) + (move - (total - t));
        t = there ? run.end : total;
    }

    DEVICE void accept(double now, bool there) {
        if (run.stability > 0 && is_stiff(now)) flags |= stiff;  // before dense output, which overwrites slopes
        const REAL stretch = SPACE == 0 ? (REAL)1 : system.settled_stretch(end.v);
        Vector y_next, f_next;
#pragma unroll
        for (int c = 0; c < D; c++) y_next.v[c] = end.v[c] / stretch, f_next.v[c] = k.at(STAGES, c) / stretch;
        advance_time(now, there);
        if (RECORD && system.leads()) {
            const Long member = recorded_member();
            run.record_steps[(member * run.record_room + run.record[3 * member] - 1) * 2 + 1] = t;
        }
        taken = now;
        save(y_next, now);
        const bool merged = MERGING && merge(y_next, f_next, now);
        if (RULES || SPACE == 0 || merged) {
            const bool owing = run.named_times && next < run.saves;
            flags |= terminate(y_next, f_next, now, merged, owing);
            if (flags & interpolated) write_polynomial(now);
        }
        if (there) flags |= arrived;
        y = y_next, k.put(0, f_next);
    }

    // ------------------------------------------------------------------ dense output

    DEVICE void interpolate(double step) {
        if (has_parts) return;
        has_parts = true;
        if (EXTRA) evaluate_stages(STAGES + 1, slopes - 1, step);
#pragma unroll
        for (int c = 0; c < D; c++) {
            const REAL moved = end.v[c] - y.v[c];
            parts[0].v[c] = moved;
            parts[1].v[c] = (REAL)step * k.at(0, c) - moved;
            parts[2].v[c] = 2 * moved - (REAL)step * (k.at(STAGES, c) + k.at(0, c));
        }
#pragma unroll 1
        for (int part = 3; part < PARTS; part++) {
            REAL sum[D];
#pragma unroll
            for (int c = 0; c < D; c++) sum[c] = 0;
#pragma unroll 1
            for (int q = 0; q < slopes; q++) {
                const REAL weight = (REAL)part_weights[part - 3][q];
                if (weight != 0)
#pragma unroll
                    for (int c = 0; c < D; c++) sum[c] = fma(weight, k.at(q, c), sum[c]);
            }
#pragma unroll
            for (int c = 0; c < D; c++) parts[part].v[c] = (REAL)step * sum[c];
        }
    }

    // The token a time `lag` (<= 0) before the end of the step, on the space.
    DEVICE Vector inside(double lag, double step) {
        interpolate(step);
        const REAL x = (REAL)(1 + lag / step);
        Vector result;
#pragma unroll
        for (int c = 0; c < D; c++) result.v[c] = 0;
#pragma unroll 1
        for (int part = PARTS - 1; part >= 0; part--)
#pragma unroll
            for (int c = 0; c < D; c++) result.v[c] = (result.v[c] + parts[part].v[c]) * (part % 2 ? 1 - x : x);
#pragma unroll
        for (int c = 0; c < D; c++) result.v[c] += y.v[c];
        system.retract(result);
        return result;
    }

    DEVICE void save(const Vector& now, double step) {
        for (; next < run.saves && run.save_times[next] <= t; next++) {
            const double lag = (run.save_times[next] - t) - t_low;
            Vector point = now;
            if (lag == 0 || step == 0)
                system.retract(point);
            else
                point = inside(lag, step);
            const Long column = run.fresh ? system.row : (Long)state(WHO);
            REAL* to = run.saved + (next * run.columns + column) * run.n * D;
#if MERGING
            // merged tokens get the same point
            REAL* board = system.keys();
            system.barrier();
            if (system.writes())
                for (int c = 0; c < D; c++) board[system.i * D + c] = point.v[c];
            system.barrier();
            for (int token = system.thread(); token < run.n; token += system.threads()) {
                const int from = run.row_of[system.row * run.n + token];
                for (int c = 0; c < D; c++) to[token * D + c] = board[from * D + c];
            }
            system.barrier();
#else
            if (system.i < run.n && system.part == 0)
                for (int c = 0; c < D; c++) to[system.i * D + c] = point.v[c];
#endif
        }
    }

    DEVICE void write_polynomial(double step) {
        if (!has_parts) interpolate(step);  // before a merge it has been computed
        if (system.i >= run.width) return;
        REAL* to = run.inside + (system.row * (1 + PARTS) * run.width + system.i) * D;
        const Long size = (Long)run.width * D;
        for (int c = 0; c < D; c++) to[c] = y.v[c];
        for (int part = 0; part < PARTS; part++)
            for (int c = 0; c < D; c++) to[(1 + part) * size + c] = parts[part].v[c];
    }

    // ------------------------------------------------------------------ merging

#if MERGING
    // Merge close tokens in rounds (cpp/merging.h); returns whether any merged: then masses and slopes have changed.
    DEVICE bool merge(Vector& point, Vector& slope, double step) {
        REAL* near = run.near_anchor + (system.row * run.width + system.i) * D;
        REAL moved[1] = {0};
        if (system.mine())
            for (int c = 0; c < D; c++) moved[0] += (point.v[c] - near[c]) * (point.v[c] - near[c]);
        system.largest(moved);
        double slack = state(SLACK);
        if (2 * sqrt((double)moved[0]) < slack) return false;
        bool merged = false;
        const Board board(system.board(), run.width);
        int& left = *board.left;
        const int count_before = system.count, i = system.i;
        if (i < run.width && system.part == 0) board.target[i] = i, board.share[i] = 1;
        for (;;) {
            system.barrier();
            if (system.writes()) {
                for (int c = 0; c < D; c++) board.points[i * D + c] = point.v[c];
                board.masses[i] = system.mass;
            }
            system.barrier();
            REAL nearest = (REAL)INFINITE;
            int who = -1;
            if (system.mine())
                for (int j = 0; j < system.count; j++) {
                    const REAL square = apart(board.points + j * D, point.v);
                    if (j != i && square < nearest) nearest = square, who = j;
                }
            if (i < run.width && system.part == 0) board.neighbour[i] = who, board.part[i] = nearest;
            REAL inverse[1] = {system.mine() ? (REAL)1 / sqrt(nearest) : (REAL)0};
            system.largest(inverse);  // infinite where tokens coincide
            const double gap = system.count < 2 ? INFINITE : (double)inverse[0] > MOST ? 0.0 : 1.0 / (double)inverse[0];
            slack = gap - run.merge;
            if (system.mine())
                for (int c = 0; c < D; c++) near[c] = point.v[c];
            if (!(gap < run.merge)) break;
            if (!merged && RULES) interpolate(step);  // the polynomial is that of the tokens before they merge
            system.barrier();
            if (system.leads()) left = join(board);
            system.barrier();
            const int now_left = left;
            if (now_left == system.count) break;
            // `place` and `part` of a row: its new row, and its share of it
            if (i < count_before && system.part == 0)
                board.share[i] *= board.part[board.target[i]], board.target[i] = board.neighbour[board.target[i]];
            for (int token = system.thread(); token < run.n; token += system.threads()) {
                int& row = run.row_of[system.row * run.n + token];
                row = board.neighbour[row];
            }
            merged = true;
            system.count = now_left;
            if (system.mine()) {
                for (int c = 0; c < D; c++) point.v[c] = board.points[i * D + c];
                system.mass = board.masses[i];
                system.retract(point);
            } else {
                system.mass = 0;
            }
        }
        if (system.leads()) state(SLACK) = slack;
        if (merged) {
            if (RULES && step > 0) shrink_rows(board, count_before);
            system.barrier();
            slope = system.field(point);
        }
        system.barrier();
        return merged;
    }

    // Shared arrays of a merge: points and masses of the rows, then for each row before the merge its present row and its share.
    struct Board {
        REAL *points, *masses, *share, *part, *rows;
        int *neighbour, *target, *left;
        DEVICE Board(REAL* memory, int width) {
            points = memory, masses = points + width * D, share = masses + width, part = share + width, rows = part + width;
            neighbour = (int*)(rows + width * D), target = neighbour + width, left = target + width;
        }
    };

    DEVICE static REAL apart(const REAL* a, const REAL* b) {
        REAL square = 0;
        for (int c = 0; c < D; c++) square += (a[c] - b[c]) * (a[c] - b[c]);
        return square;
    }

    // One thread: merge mutual nearest neighbours, log them, move the remaining rows to the front and count them. Then `neighbour` and
    // `part` have the new row and the share of every row.
    DEVICE int join(const Board& board) {
        const int count = system.count;
        int *neighbour = board.neighbour, *node_of = run.node_of + system.row * run.width;
        int close = 0, mutual = 0, left = 0;
        for (int a = 0; a < count; a++) {
            const bool fits = sqrt((double)board.part[a]) < run.merge;
            close += fits, mutual += fits && neighbour[neighbour[a]] == a;
        }
        if (8 * mutual < close) {
            // many tokens at one point all have the same nearest neighbour: pair them in their order instead
            for (int a = 0; a < count; a++) neighbour[a] = -1;
            for (int a = 0; a < count; a++)
                for (int b = a + 1; neighbour[a] < 0 && b < count; b++)
                    if (neighbour[b] < 0 && sqrt((double)apart(board.points + a * D, board.points + b * D)) < run.merge)
                        neighbour[a] = b, neighbour[b] = a, board.part[a] = board.part[b] = 0;
        }
        for (int a = 0; a < count; a++) {
            const int b = neighbour[a];
            if (b >= 0 && neighbour[b] == a && (b > a) && sqrt((double)board.part[a]) < run.merge) {
                const double one = (double)board.masses[a], two = (double)board.masses[b], total = one + two;
                const REAL share = (REAL)(total > 0 ? one / total : 0.5), rest = (REAL)(total > 0 ? two / total : 0.5);
                const int made = (int)state(MERGES);
                double* log = run.log + system.row * run.width + made;
                const Long next_column = run.members * run.width;
                log[0] = t, log[next_column] = node_of[a], log[2 * next_column] = node_of[b], log[3 * next_column] = total;
                state(MERGES) = made + 1;
                node_of[a] = (int)state(NODES);
                state(NODES) = state(NODES) + 1;
                for (int c = 0; c < D; c++) board.points[a * D + c] = share * board.points[a * D + c] + rest * board.points[b * D + c];
                board.masses[a] = (REAL)total;
                board.part[a] = share, board.part[b] = rest;
                neighbour[b] = -2 - left;  // its new row, when its turn comes
            } else if (b < -1) {
                neighbour[a] = -2 - b;
                continue;
            } else {
                board.part[a] = 1;
            }
            for (int c = 0; c < D; c++) board.points[left * D + c] = board.points[a * D + c];
            board.masses[left] = board.masses[a], node_of[left] = node_of[a];
            neighbour[a] = left++;
        }
        for (int a = left; a < count; a++) node_of[a] = 0;
        return left;
    }

    // Combine the rows of the step's polynomial as the tokens were merged; rows that stand for no token are copies of the first.
    DEVICE void shrink_rows(const Board& board, int count_before) {
        for (int part = -1; part < PARTS; part++) {
            system.barrier();
            if (system.i < count_before && system.part == 0)
                for (int c = 0; c < D; c++) board.rows[system.i * D + c] = part < 0 ? y.v[c] : parts[part].v[c];
            system.barrier();
            REAL sum[D];
            for (int c = 0; c < D; c++) sum[c] = 0;
            for (int old = 0; old < count_before; old++)
                if (board.target[old] == (system.mine() ? system.i : 0))
                    for (int c = 0; c < D; c++) sum[c] += board.share[old] * board.rows[old * D + c];
            for (int c = 0; c < D; c++)
                if (part < 0)
                    y.v[c] = sum[c];
                else
                    parts[part].v[c] = sum[c];
        }
        system.barrier();
    }
#else
    DEVICE bool merge(Vector&, Vector&, double) { return false; }
#endif

    // ------------------------------------------------------------------ stiffness and termination

    DEVICE bool is_stiff(double now) {
        double steps = state(STEPS), suspect = state(SUSPECT), calm = state(CALM);
        const double wait = state(WAIT);
        bool found = false;
        steps++;
        if (steps >= wait || suspect != 0) {
            const Vector inner = combine(STAGES - 1, (REAL)now);
            REAL sizes[2] = {0, 0};
            if (system.mine())
                for (int c = 0; c < D; c++) {
                    const REAL dy = end.v[c] - inner.v[c], df = k.at(STAGES, c) - k.at(STAGES - 1, c);
                    sizes[0] += dy * dy, sizes[1] += df * df;
                }
            system.add_up(sizes);
            const double rate = sizes[0] > 0 ? sqrt((double)sizes[1] / (double)sizes[0]) : 0;
            if (rate * now > run.stability) {
                calm = 0;
                found = ++suspect >= run.stiff_steps;
                if (found) steps = suspect = 0;
            } else if (suspect == 0 || ++calm >= run.calm_steps) {
                steps = suspect = calm = 0;
            }
        }
        system.barrier();
        if (system.leads()) state(STEPS) = steps, state(SUSPECT) = suspect, state(CALM) = calm;
        system.barrier();
        return found;
    }

    DEVICE double time_spacing() const { return spacing(larger(t - run.start, run.least_time)); }

    // Largest norm, speed and distance from the first token, and whether a token left its anchor.
    DEVICE void measure(const Vector& point, const Vector& slope, REAL (&sizes)[4]) {
        REAL* board = system.keys();
        for (int k = 0; k < 4; k++) sizes[k] = 0;
        if (RULES) {
            system.barrier();
            if (system.leads())
                for (int c = 0; c < D; c++) board[c] = point.v[c];
            system.barrier();
        }
        if (system.mine()) {
            sizes[0] = norm(point.v), sizes[1] = norm(slope.v);
            if (RULES) {
                const REAL* anchor = run.anchor + (system.row * run.width + system.i) * D;
                REAL gap = 0, gone = 0;
                for (int c = 0; c < D; c++) {
                    gap += (point.v[c] - board[c]) * (point.v[c] - board[c]);
                    gone += (point.v[c] - anchor[c]) * (point.v[c] - anchor[c]);
                }
                const REAL noise = (REAL)run.noise * ((REAL)run.atol + (REAL)run.rtol * sizes[0]);
                sizes[2] = sqrt(gap), sizes[3] = sqrt(gone) > noise;
            }
        }
        system.largest(sizes);
    }

    DEVICE void move_anchor(const Vector& point) {
        if (system.mine())
            for (int c = 0; c < D; c++) run.anchor[(system.row * run.width + system.i) * D + c] = point.v[c];
    }

    DEVICE int terminate(const Vector& point, const Vector& slope, double now, bool merged, bool owing) {
        if (merged && RULES) {
            move_anchor(point);
            system.barrier();
            if (system.leads()) state(ANCHOR_TIME) = t, state(REST) = 0;
            system.barrier();
        }
        REAL sizes[4];
        measure(point, slope, sizes);
        const double norm = sizes[0], speed = sizes[1], gap = sizes[2];
        if (SPACE == 0 && (now < run.unresolved * time_spacing() || !(norm <= run.bound))) return check;
        if (!RULES) return 0;
        const bool away = sizes[3] > 0;
        const double left = run.end - t, passed = t - run.start, size = larger(norm, run.tiny);
        const double calm = speed * larger(left, passed) / (run.steady * size);
        const double streak = calm <= 1 && calm <= run.calm_growth * state(LAST) ? state(STREAK) + 1 : 0;
        const double rest = away ? 0 : state(REST) + 1;
        const double since = away ? t : state(ANCHOR_TIME);
        const bool resting = rest >= run.enough_rest && t - since >= run.end - t;
        const bool alone = MERGING && system.count == 1;
        const int noted = (int)state(NOTED);
        for (int place = 0; place < 3; place++) {
            const int rule = run.order[place];
            if (rule < 0) break;
            const bool met = rule == steady_rule      ? (calm <= 1 && streak >= run.patience) || resting
                             : rule == consensus_rule ? 2 * gap / (run.consensus * size) <= 1
                                                      : state(SIZE) > 0 && norm / (run.collapse * state(SIZE)) <= 1;
            if (met && !(noted >= 0 && owing) && t >= state(HOLD))
                return rule == steady_rule || alone || noted >= 0 ? check : check | interpolated;
            if (!met && noted == rule) return check;
        }
        if (run.steady >= 0) {
            system.barrier();
            if (away) move_anchor(point);
            if (system.leads()) {
                state(STREAK) = streak, state(LAST) = calm, state(REST) = rest;
                if (away) state(ANCHOR_TIME) = t;
            }
            system.barrier();
        }
        return 0;
    }

    DEVICE bool is_met_at_start(bool merged) {
        if (merged && RULES) {
            move_anchor(y);
            if (system.leads()) state(ANCHOR_TIME) = t, state(REST) = 0;
            system.barrier();
        }
        REAL sizes[4];
        measure(y, k[0], sizes);
        if (SPACE == 0 && !((double)sizes[0] <= run.bound)) return true;
        if (!RULES) return false;
        const double size = larger(sizes[0], run.tiny);
        if (run.consensus >= 0 && 2 * (double)sizes[2] / (run.consensus * size) <= 1) return true;
        if (run.collapse >= 0 && state(SIZE) > 0 && (double)sizes[0] / (run.collapse * state(SIZE)) <= 1) return true;
        system.barrier();
        if (run.steady >= 0 && system.leads()) state(REST) = state(REST) + 1;
        system.barrier();
        return false;
    }

    DEVICE bool is_stuck() {
        if (SPACE == 0) return h < run.given_up * time_spacing();
        REAL sizes[3] = {0, 0, 0};
        if (system.mine()) {
            sizes[0] = norm(y.v), sizes[1] = norm(k[0].v);
            for (int c = 0; c < D; c++)
                if (!(fabs(k.at(0, c)) <= (REAL)MOST)) sizes[2] = 1;
        }
        system.largest(sizes);
        return h * (double)sizes[1] < run.least_move * (double)sizes[0] || sizes[2] > 0;
    }

    // ------------------------------------------------------------------ begin and end

    DEVICE void begin() {
        // points that Python has not put on the space: such runs are integrated in another way
        if (SPACE != 0 && system.writes() && !(fabs(system.stretch_of(y.v) - 1) <= (REAL)(WIDE ? 4.5e-15 : 2.4e-6))) atomicAdd(run.totals + 5, 1.0);
        save(y, 0);
        has_parts = true;  // no polynomial belongs to the start
        Vector first;
#pragma unroll
        for (int c = 0; c < D; c++) first.v[c] = 0;
        const bool merged = MERGING && merge(y, first, 0);
        REAL sizes[2];
        Vector here = y;
        double guess = 0;
        const double longest = run.end - run.start;
        // the slope at the start, and one after a guess of the step (solvers/step_control.py)
#pragma unroll 1
        for (int pass = 0; pass < 2; pass++) {
            const Vector slope = system.field(here);
            const REAL scale = (REAL)run.atol + (REAL)run.rtol * norm(y.v);
            Vector change = slope;
            if (pass)
#pragma unroll
                for (int c = 0; c < D; c++) change.v[c] -= k.at(0, c);
            sizes[0] = system.mine() ? norm(y.v) / scale : (REAL)0, sizes[1] = system.mine() ? norm(change.v) / scale : (REAL)0;
            system.largest(sizes);
            if (pass == 0) {
                k.put(0, slope);
                if (is_met_at_start(merged)) flags |= check | at_start;
                const double value = sizes[0], speed = sizes[1];
                guess = value < 1e-5 || speed < 1e-5 ? 1e-6 : 0.01 * value / speed;
                guess = guess < longest ? guess : longest;
                t_low = speed;  // kept for the second pass
#pragma unroll
                for (int c = 0; c < D; c++) here.v[c] = fma((REAL)guess, slope.v[c], y.v[c]);
            } else {
                const double speed = t_low, bend = (double)sizes[1] / guess, steep = bend > speed ? bend : speed;
                double found = steep <= 1e-15 ? larger(guess * 1e-3, 1e-6) : pow(0.01 / steep, 1.0 / ORDER);
                found = 100 * guess < found ? 100 * guess : found;
                found = found < longest ? found : longest;
                found = found > 0 && found <= 1.7e308 ? found : (1e-6 < longest ? 1e-6 : longest);
                h = run.first_step > 0 ? (run.first_step < longest ? run.first_step : longest) : found;
                t_low = 0;
            }
        }
    }

    DEVICE void write() {
        const int i = system.i;
        if (i < run.width && system.part == 0) {
            // rows that stand for no token are copies of the first
            const Long at = (system.row * run.width + i) * D;
            for (int c = 0; c < D; c++) run.y[at + c] = y.v[c], run.f[at + c] = k.at(0, c);
            if (MERGING) run.masses[system.row * run.mass_stride + i] = system.mine() ? system.mass : (REAL)0;
        }
#if MERGING
        system.barrier();
        if (i < run.width && i >= system.count) {
            const Long first = system.row * run.width * D, at = first + i * D;
            for (int c = 0; c < D; c++) {
                run.y[at + c] = run.y[first + c], run.f[at + c] = run.f[first + c];
                run.near_anchor[at + c] = run.near_anchor[first + c];
                if (RULES) run.anchor[at + c] = run.anchor[first + c];
            }
        }
#endif
        if (system.leads()) {
            state(TIME) = t, state(TIME_LOW) = t_low, state(STEP) = h, state(RETRIED) = retried, state(NEXT) = next;
            state(FLAGS) = flags, state(TAKEN) = taken, state(COUNT) = system.count;
            state(EVALUATIONS) = system.evaluations, state(ACCEPTED) = accepted, state(REJECTED) = rejected;
            // totals: evaluations, accepted and rejected steps, members that did more or less than arrive, merges
            atomicAdd(run.totals, system.evaluations), atomicAdd(run.totals + 1, accepted), atomicAdd(run.totals + 2, rejected);
            if (flags != arrived) atomicAdd(run.totals + 3, 1.0);
            if (MERGING && state(MERGES) > 0) atomicAdd(run.totals + 4, 1.0);
        }
    }
};

// Slopes and coefficients are indexed at run time: they are apart from the rest, which stays in registers.
#if !REVERSE
DEVICE void integrate_member(const Run& run) {
    REAL local[SHARED_SLOPES ? 1 : slopes * D];
    Vector parts[PARTS];
    Integration integration(run, local, parts);
    integration.integrate();
}
#endif
#endif


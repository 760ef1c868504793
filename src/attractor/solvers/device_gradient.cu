// The reverse sweep through the accepted steps of a run (cpp/reverse_sweep.h), after device_loop.cu. Steps are computed again from the
// states that were kept; their lengths are constants. Scores are bilinear and the loop's terms j = i are not left out.

constexpr int terms = D * D + (MATRICES ? D * D : 1);  // numbers of the gradient of a head: of its interaction and of its value
constexpr REAL natural = MODE == 3 ? 1 : 0.6931471805599453;  // derivative of an exponent by a score

// What a token gives to the gradients of others: point, query, gradient of its mean, log2 of its normaliser, product of gradient and mean,
// and log2 of its mass (softmax) or its mass.
struct alignas(16) Row {
    REAL x[D], query[D], grad[D], level, product, mass;
};

struct ReverseSweep {
    const Run& run;
    Integration steps;
    System& system;
    Vector *const inputs, *const parts;       // gradients of slopes, and of coefficients of the interpolant
    REAL* const law;                          // gradients of interactions and values of all heads
    REAL grad_mass;
    Row* const rows;                          // of all tokens
    Row* const tile;                          // of a grid: a part of them
    Long read, first_read;
    const Long size;

    DEVICE ReverseSweep(const Run& r, REAL* local, Vector* local_parts, Vector* grads, Vector* grad_parts, REAL* grad_law)
        : run(r), steps(r, local, local_parts), system(steps.system), inputs(grads), parts(grad_parts), law(grad_law), grad_mass(0),
          rows((Row*)(GRID ? (REAL*)run.workspace + 2 * (keys_row + points_row) * run.width : after_slopes())), tile((Row*)after_slopes()),
          read(run.read_first[system.row + 1] - 1), first_read(run.read_first[system.row]), size((Long)run.width * D) {
        for (int term = 0; term < HEADS * terms; term++) law[term] = 0;
    }

    DEVICE REAL* after_slopes() {
        const unsigned long long at = (unsigned long long)(steps.system.slope_memory() + (SHARED_SLOPES ? slopes * D * THREADS : 0));
        return (REAL*)((at + 15) / 16 * 16);
    }

    DEVICE const REAL* kept(Long slot) const { return run.kept + (system.row * run.record_slots + slot) * 2 * size; }
    DEVICE REAL* again(Long slot) const { return run.again + (system.row * run.record_slots + slot) * 2 * size; }
    DEVICE double length(Long number) const { return run.record_steps[(system.row * run.record_room + number) * 2]; }

    DEVICE void load(const REAL* from) {
        if (system.i >= run.width) return;
        for (int c = 0; c < D; c++) steps.y.v[c] = from[system.i * D + c], steps.k.set(0, c, from[size + system.i * D + c]);
    }

    DEVICE void store(REAL* to) const {
        if (system.writes())
            for (int c = 0; c < D; c++) to[system.i * D + c] = steps.y.v[c], to[size + system.i * D + c] = steps.k.at(0, c);
    }

    DEVICE void sweep() {
        const int *record = run.record + 3 * system.row, total = record[0], stride = record[1] > 0 ? record[1] : 1, count = record[2];
        Vector next, slope;  // gradients of the state after a step and of the slope there
        clear(next), clear(slope);
        for (int slot = count - 1; slot >= 0; slot--) {
            const int start = slot * stride, stop = start + stride < total ? start + stride : total;
            load(kept(slot));
            for (int number = start; number < stop - 1; number++) {
                store(again(number - start));
                steps.evaluate_stages(1, STAGES, length(number));
                advance();
            }
            system.barrier();
            for (int number = stop - 1; number >= start; number--) {
                if (number < stop - 1) load(again(number - start));
                reverse_step(number, next, slope);
            }
        }
        if (total) {
            load(kept(0));
            through_field(steps.y, slope, next);
        } else if (system.i < run.width) {
            for (int c = 0; c < D; c++) steps.y.v[c] = run.y[(system.row * run.width + system.i) * D + c];
        }
        for (; read >= first_read; read--) {  // results at the start itself
            const Vector given = read_grad();
            if (run.read_place[read] == 0)
                retract_gradient(steps.y, given, next);
            else
                add(1, given, next);
        }
        write(next);
    }

private:
    DEVICE static void clear(Vector& to) {
        for (int c = 0; c < D; c++) to.v[c] = 0;
    }
    DEVICE static void add(REAL factor, const Vector& from, Vector& to) {
        for (int c = 0; c < D; c++) to.v[c] = fma(factor, from.v[c], to.v[c]);
    }

    // The start of the next step, as in Integration::accept.
    DEVICE void advance() {
        const REAL stretch = SPACE == 0 ? (REAL)1 : system.settled_stretch(steps.end.v);
        for (int c = 0; c < D; c++) steps.y.v[c] = steps.end.v[c] / stretch, steps.k.set(0, c, steps.k.at(STAGES, c) / stretch);
    }

    DEVICE Vector read_grad() const {
        Vector given;
        clear(given);
        if (system.mine())
            for (int c = 0; c < D; c++) given.v[c] = run.read_grads[read * size + system.i * D + c];
        return given;
    }

    // Replace the gradients of the state after a step and of its slope by those of the state before it.
    DEVICE void reverse_step(int number, Vector& next, Vector& slope) {
        const double h = length(number);
        Vector before, last;
        clear(before), clear(last);
        for (int q = 0; q < slopes; q++) clear(inputs[q]);
        steps.evaluate_stages(1, STAGES, h);
        through_reads(number, h, before, last, next);
        through_end(next, slope, last);
        through_field(steps.end, inputs[STAGES], last);
        give(STAGES, h, last, before);
#pragma unroll 1
        for (int stage = STAGES - 1; stage > 0; stage--) through_stage(stage, h, before);
        next = before, slope = inputs[0];
    }

    DEVICE void through_stage(int stage, double h, Vector& before) {
        Vector inner;
        clear(inner);
        through_field(steps.combine(stage, (REAL)h), inputs[stage], inner);
        give(stage, h, inner, before);
    }

    // Through point = y + h (sum of weighted slopes).
    DEVICE void give(int row, double h, const Vector& grad, Vector& before) {
        add(1, grad, before);
#pragma unroll 1
        for (int q = 0; q < row; q++) {
            const REAL weight = (REAL)(h * tableau[row][q]);
            if (weight != 0) add(weight, grad, inputs[q]);
        }
    }

    // Results read inside the step or at its end.
    DEVICE void through_reads(int number, double h, Vector& before, Vector& last, Vector& next) {
        bool inside = false;
        for (; read >= first_read && run.read_step[read] == number; read--) {
            const double place = run.read_place[read];
            const Vector given = read_grad();
            if (place >= 1) {
                add(1, given, next);
                continue;
            }
            if (!inside) {
                steps.has_parts = false;
                steps.interpolate(h);
                for (int part = 0; part < PARTS; part++) clear(parts[part]);
            }
            inside = true;
            through_polynomial((REAL)place, given, before);
        }
        if (!inside) return;
        for (int c = 0; c < D; c++) {
            const REAL moved = parts[0].v[c] - parts[1].v[c] + 2 * parts[2].v[c];
            last.v[c] += moved, before.v[c] -= moved;
            inputs[0].v[c] += (REAL)h * (parts[1].v[c] - parts[2].v[c]);
            inputs[STAGES].v[c] -= (REAL)h * parts[2].v[c];
        }
        for (int part = 3; part < PARTS; part++)
            for (int q = 0; q < slopes; q++)
                if (part_weights[part - 3][q] != 0) add((REAL)(h * part_weights[part - 3][q]), parts[part], inputs[q]);
#pragma unroll 1
        for (int q = slopes - 1; q > STAGES; q--) through_stage(q, h, before);
    }

    DEVICE void through_polynomial(REAL place, const Vector& given, Vector& before) {
        Vector point, grad;
        clear(point), clear(grad);
        for (int part = PARTS - 1; part >= 0; part--)
            for (int c = 0; c < D; c++) point.v[c] = (point.v[c] + steps.parts[part].v[c]) * (part % 2 ? 1 - place : place);
        add(1, steps.y, point);
        retract_gradient(point, given, grad);
        REAL factor = 1;
        for (int part = 0; part < PARTS; part++) {
            factor *= part % 2 ? 1 - place : place;
            add(factor, grad, parts[part]);
        }
        add(1, grad, before);
    }

    // Through the next state x = end / s and its slope f = F / s, with the slope F at the end.
    DEVICE void through_end(const Vector& next, const Vector& slope, Vector& last) {
        if (SPACE == 0) {
            add(1, next, last), add(1, slope, inputs[STAGES]);
            return;
        }
        const REAL stretch = system.stretch_of(steps.end.v);
        Vector x;
        for (int c = 0; c < D; c++) x.v[c] = steps.end.v[c] / stretch;
        add(1 / stretch, slope, inputs[STAGES]);
        const Vector F = steps.k[STAGES];
        through_retraction(x, stretch, next, -dot(slope.v, F.v) / (stretch * stretch), last);
    }

    DEVICE Vector normal_of(const Vector& x) const {  // the gradient of the stretch
        Vector normal;
        for (int r = 0; r < D; r++) normal.v[r] = SPACE == 2 ? dot(run.matrix + r * D, x.v) : x.v[r] / (REAL)(run.radius * run.radius);
        return normal;
    }

    // Add the gradient through y -> x = y / s(y), given that of x; `along` is a further gradient of s.
    DEVICE void through_retraction(const Vector& x, REAL stretch, const Vector& grad, REAL along, Vector& to) const {
        along -= dot(grad.v, x.v) / stretch;
        add(1 / stretch, grad, to), add(along, normal_of(x), to);
    }

    DEVICE void retract_gradient(const Vector& point, const Vector& grad, Vector& to) const {
        if (SPACE == 0) return add(1, grad, to);
        const REAL stretch = system.stretch_of(point.v);
        Vector x;
        for (int c = 0; c < D; c++) x.v[c] = point.v[c] / stretch;
        through_retraction(x, stretch, grad, 0, to);
    }

    DEVICE REAL average(int head, const Vector& x, REAL (&query)[D], Vector& mean) {
        const REAL level = system.average(head, x, query, mean);
        if (!system.mine()) clear(mean);
        return level;
    }

    // Add to `to` the gradient through the lifted field at y, and to the gradients of the law.
    DEVICE void through_field(const Vector& y_of_token, const Vector& grad_of_token, Vector& to) {
        Vector y = y_of_token, grad = grad_of_token;
        if (!system.mine()) {  // threads without a token give nothing
            clear(grad);
            for (int c = 0; c < D; c++) y.v[c] = c == 0;
        }
        const REAL stretch = SPACE == 0 ? (REAL)1 : system.stretch_of(y.v);
        Vector x = y, velocity, mean, by_velocity = grad, by_x;
        REAL query[D], level = 0;
        for (int c = 0; c < D; c++) x.v[c] = y.v[c] / stretch;
        clear(velocity), clear(by_x);
        for (int head = 0; head < HEADS; head++) {
            level = average(head, x, query, mean);
            system.add_values(head, mean, velocity);
        }
        REAL by_stretch = 0;
        if (SPACE != 0) {
            // f = s (v - x r), r = <x, v> / <x, x> in the metric of the space
            Vector normal = x;
            if (SPACE == 2) normal = normal_of(x);
            const REAL square = dot(normal.v, x.v), r = dot(normal.v, velocity.v) / square, along = stretch * dot(x.v, grad.v) / square;
            for (int c = 0; c < D; c++) {
                const REAL moved = SPACE == 2 ? dot(run.matrix + c * D, velocity.v) : velocity.v[c];
                by_velocity.v[c] = stretch * grad.v[c] - along * normal.v[c];
                by_x.v[c] = -r * stretch * grad.v[c] - along * (moved - 2 * r * normal.v[c]);
                by_stretch = fma(grad.v[c], velocity.v[c] - x.v[c] * r, by_stretch);
            }
        }
#pragma unroll 1
        for (int head = HEADS - 1; head >= 0; head--) {
            if (head < HEADS - 1) level = average(head, x, query, mean);
            through_head(head, x, mean, level, query, by_velocity, by_x);
        }
        if (SPACE == 0)
            add(1, by_x, to);
        else
            through_retraction(x, stretch, by_x, by_stretch, to);
    }

    // The weight of a pair and its derivative by the score; `level` is that of the query.
    DEVICE static REAL weigh(REAL score, REAL level, REAL bias, REAL& derivative) {
        if (MODE == 0) return derivative = power_of_two(score - level);
        if (MODE == 3) return derivative = 1, score + bias;
        if (MODE == 1) return derivative = power_of_two(score + bias);
        const REAL w = reciprocal((REAL)1 + power_of_two(-(score + bias)));
        return derivative = w * (1 - w), w;
    }

    DEVICE bool sees(int query, int key) const {
        if (CAUSAL && key > query) return false;
        return !WINDOWED || (key > query - run.window && key < query + run.window);
    }

    DEVICE void through_head(int head, const Vector& x, const Vector& mean, REAL level, const REAL* query, const Vector& by_velocity, Vector& by_x) {
        REAL* const to = law + head * terms;
        const REAL first = system.part == 0 && system.mine() ? (REAL)1 : (REAL)0;  // threads that share a token count once
        Row own;
        own.level = level, own.product = 0;
        own.mass = MODE == 0 ? system.mass_bias() : WEIGHTED ? system.mass : (REAL)1 / (REAL)system.count;
#if MATRICES
        const REAL* V = run.value + system.row * run.value_stride + head * D * D;
        for (int c = 0; c < D; c++) {
            REAL sum = 0;
            for (int r = 0; r < D; r++) sum = fma(V[r * D + c], by_velocity.v[r], sum);
            own.grad[c] = sum;
            for (int r = 0; r < D; r++) to[D * D + r * D + c] = fma(first * by_velocity.v[r], mean.v[c], to[D * D + r * D + c]);
        }
#else
        const REAL value = run.value[system.row * run.value_stride + head];
        for (int c = 0; c < D; c++) own.grad[c] = value * by_velocity.v[c];
        to[D * D] = fma(first, dot(by_velocity.v, mean.v), to[D * D]);
#endif
        for (int c = 0; c < D; c++) own.x[c] = x.v[c], own.query[c] = query[c];
        if (MODE == 0) own.product = dot(own.grad, mean.v);
        // all threads have passed a barrier, in `average`, since they last read the rows
        if (system.writes()) rows[system.i] = own;
        system.barrier();
        REAL by_query[D], by_key[D], by_mass = 0;
        for (int c = 0; c < D; c++) by_query[c] = by_key[c] = 0;
        const REAL bias = (REAL)run.bias;
        const auto use = [&](const Row& row, int j) {
            if (sees(system.i, j)) {
                REAL derivative;
                weigh(dot(own.query, row.x) + (MODE == 0 ? row.mass : (REAL)0), own.level, bias, derivative);
                const REAL slope = derivative * (dot(own.grad, row.x) - own.product) * (MODE == 0 ? (REAL)1 : row.mass);
#pragma unroll
                for (int c = 0; c < D; c++) by_query[c] = fma(slope, row.x[c], by_query[c]);
            }
            if (sees(j, system.i)) {
                REAL derivative;
                const REAL w = weigh(dot(row.query, own.x) + (MODE == 0 ? own.mass : (REAL)0), row.level, bias, derivative);
                const REAL along = dot(row.grad, own.x), share = MODE == 0 ? (REAL)1 : own.mass;
                const REAL slope = natural * derivative * (along - row.product) * share;
                by_mass += MODE == 0 ? derivative * (along - row.product) : w * along;
#pragma unroll
                for (int c = 0; c < D; c++) by_key[c] = fma(slope, row.query[c], fma(w * share, row.grad[c], by_key[c]));
            }
        };
#if GRID
        for (int base = 0; base < system.count; base += ROWS) {
            const int here = system.count - base < ROWS ? system.count - base : ROWS;
            __syncthreads();
            System::copy(tile, rows + base, here);
            __syncthreads();
            if (system.mine())
                for (int j = system.part; j < here; j += SPLIT) use(tile[j], base + j);
        }
#else
        if (system.mine())
#pragma unroll 4
            for (int j = system.part; j < system.count; j += SPLIT) use(rows[j], j);
#endif
#pragma unroll
        for (int apart = 1; apart < SPLIT; apart *= 2) {
            by_mass += __shfl_xor_sync(0xffffffffu, by_mass, apart);
#pragma unroll
            for (int c = 0; c < D; c++) {
                by_query[c] += __shfl_xor_sync(0xffffffffu, by_query[c], apart);
                by_key[c] += __shfl_xor_sync(0xffffffffu, by_key[c], apart);
            }
        }
        const REAL* P = run.interaction + system.row * run.interaction_stride + head * D * D;
        for (int r = 0; r < D; r++) {
            by_query[r] *= natural;
            for (int c = 0; c < D; c++) {
                by_x.v[c] = fma(by_query[r], P[r * D + c], by_x.v[c]);
                to[r * D + c] = fma(first * by_query[r], x.v[c], to[r * D + c]);
            }
        }
        for (int c = 0; c < D; c++) by_x.v[c] += by_key[c];
        if (WEIGHTED) grad_mass += MODE == 0 ? by_mass / system.mass : by_mass;
    }

    // Gradients of the start and of the masses, and for each block those of the law.
    DEVICE void write(const Vector& start) {
        if (system.writes()) {
            const Long at = system.row * run.width + system.i;
            for (int c = 0; c < D; c++) run.grad_start[at * D + c] = start.v[c];
            if (WEIGHTED) run.grad_masses[at] = grad_mass;
        }
        for (int term = 0; term < HEADS * terms; term++) {
            REAL sum = law[term];
            for (int apart = 16; apart; apart >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
            __syncthreads();
            if (!system.lane) system.sums()[threadIdx.x >> 5] = sum;
            __syncthreads();
            if (threadIdx.x) continue;
            for (int warp = 1; warp < THREADS / 32; warp++) sum += system.sums()[warp];
            run.grad_law[(Long)blockIdx.x * HEADS * terms + term] = sum;
        }
    }
};

DEVICE void integrate_member(const Run& run) {
    REAL local[SHARED_SLOPES ? 1 : slopes * D], law[HEADS * terms];
    Vector parts[PARTS], grads[slopes], grad_parts[PARTS];
    ReverseSweep(run, local, parts, grads, grad_parts, law).sweep();
}

// State and options of the native loop: adaptive steps of many independent systems, each with its own time and step
// size.
//
// Arrays hold one row for each member (system). Points (members, width, d) have `width` rows per member, of which
// `counts` are in use: merging reduces them. All numbers are float64. Pointers and sizes are set by native_loop.cpp
// from checked arrays.
#pragma once

#include "problem.h"

namespace attractor {

enum class Space : int { euclidean = 0, sphere = 1, ellipsoid = 2 };

enum class Rule : int64_t { consensus = 0, collapse = 1, steady = 2 };
constexpr int rules = 3;

// Why a member stopped; bits of `flags`. `check`: Python must apply the termination rules. `arrived`: the end time is
// reached. `failed`: the step size fell to rounding. `interpolated`: `inside` holds the polynomial of the last step.
// `at_start`: no step was taken yet. `stiff`: stability limits the steps.
enum Flag : int64_t { check = 1, arrived = 2, failed = 4, interpolated = 8, at_start = 16, stiff = 32 };

// A linear combination of slopes, without its zeros.
constexpr int most_slopes = 16;
struct Terms {
    int count = 0;
    int which[most_slopes];
    double weight[most_slopes];
};

// An embedded Runge-Kutta pair whose last slope is that of the end point, and its dense output (solvers/steppers/).
struct Tableau {
    int stages = 0, errors = 0, extra = 0, parts = 3, order = 1;
    Terms inner[most_slopes], end, error[2], extra_inner[4], part[4];
};

// Fixed steps with noise (noisy_steps.h). Strides are 0 where steps, members or tokens share an amplitude.
enum class NoiseMethod : int { euler = 1, strang2 = 2 };
struct NoiseOptions {
    NoiseMethod method = NoiseMethod::strang2;
    bool layer = false;  // noise is added before the retraction, as ambient noise
    uint64_t seed = 0;
    int64_t first = 0, count = 0;  // number of the first step, and how many to take
    double step = 0;
    int64_t amplitude_steps = 0, amplitude_members = 0, amplitude_tokens = 0, common_steps = 0;
    const double *amplitudes = nullptr, *common = nullptr;  // (steps or 1, members or 1, n or 1) and (steps or 1)
    const double* inverse_root = nullptr;                   // W^-1/2 of an ellipsoid, (d, d)
    const int64_t* draws = nullptr;                         // index of each member in the random numbers
    const int64_t* save_rows = nullptr;                     // where the end of each step is saved, or -1
    int64_t* done = nullptr;                                // steps of each member
};

struct NativeLoop {
    int64_t members = 0, width = 0, n = 0, d = 0, e = 0, heads = 1;
    Tableau tableau;
    Problem problem;  // one evaluation; a copy is filled in for each member

    // the law: query, key (heads, e, d), value (heads, d, d) or factors (heads); a stride is 0 where all members share
    // one
    Mode mode = Mode::softmax;
    bool squared = false;   // L2: scores are minus squared distances
    bool averaged = false;  // values are weighted by mass, not normalised
    bool causal = false, skip_self = false;
    bool diagonal = false, uniform = false;  // queries and keys are diagonal matrices, or multiples of the identity
    int64_t window = 0, query_stride = 0, value_stride = 0, factor_stride = 0, mass_stride = 0, visible_stride = 0;
    double scale = 1, bias = 0;
    const double *query = nullptr, *key = nullptr, *value = nullptr, *factors = nullptr;
    // biases of queries and keys (heads, e), of values (heads, d), and of the velocity (d); null: none
    const double *query_bias = nullptr, *key_bias = nullptr, *value_bias = nullptr, *output_bias = nullptr;
    int64_t query_bias_stride = 0, key_bias_stride = 0, value_bias_stride = 0;
    // rotary positions: cosine and sine (n, pairs, 2) of the angles by which pairs of coordinates are turned; null: none
    const double* turns = nullptr;
    int64_t pairs = 0, turn_stride = 0;
    const bool* visible = nullptr;  // (n, n)
    double* masses = nullptr;       // (width); null: 1/n each

    // the space: a radius, or a matrix (d, d)
    Space space = Space::euclidean;
    double radius = 1;
    const double* matrix = nullptr;

    // time and steps
    double start = 0, end = 0, rtol = 0, atol = 0, first_step = 0;
    double safety = 1, shrink = 1, grow = 1;  // of the step-size controller (solvers/step_control.py)
    bool fresh = false;                       // at the start: slopes and the first step size are still to be computed
    int64_t attempts = 1;
    // called for every accepted step: its length, and points and slopes where it begins; null: steps are not recorded
    void (*record)(const NativeLoop&, int64_t row, double length, const double* y, const double* f) = nullptr;
    void* steps_of = nullptr;
    double deadline = 0;  // on the clock of `is_late`
    bool (*is_late)(const NativeLoop&) = nullptr;
    // threads of one evaluation, and the function that runs work(context, task, worker) for every task on them
    int64_t workers = 1;
    void (*run_tasks)(const NativeLoop&, int64_t tasks, void* context, void (*work)(void*, int64_t, int)) = nullptr;
    double *y = nullptr, *f = nullptr, *t = nullptr, *t_low = nullptr, *h = nullptr, *taken = nullptr;
    bool* retried = nullptr;
    int64_t *counts = nullptr, *flags = nullptr, *evaluations = nullptr, *accepted = nullptr, *rejected = nullptr;

    // stiffness, if the limit of stability is positive (solvers/stiffness.py): members with an implicit method are skipped
    double stability = 0;
    int64_t stiff_steps = 0, calm_steps = 0;
    const bool* implicit = nullptr;
    const int64_t* wait = nullptr;
    int64_t *steps = nullptr, *suspect = nullptr, *calm = nullptr;

    // saved states (saves, columns, n, d): `who` is the column of a member
    int64_t saves = 0, columns = 0;
    bool named_times = false;
    const double* save_times = nullptr;
    double* saved = nullptr;
    const int64_t* who = nullptr;
    int64_t* next = nullptr;

    // termination: tolerances, below 0 for rules that are not used; `noted`: the rule that was met before, or -1;
    // `hold`: a time before which rules that are met do not stop the member. The constants are those of
    // solvers/termination.py, which passes them in.
    double consensus = -1, collapse = -1, steady = -1, bound = 0;
    int64_t order[rules] = {-1, -1, -1};  // rules in the order of their checks
    double noise = 0, patience = 0, enough_rest = 0, calm_growth = 0;
    double tiny = 0, least_time = 0, least_move = 0, unresolved_spacings = 0, failed_spacings = 0;
    const double *size = nullptr, *hold = nullptr;
    const int64_t* noted = nullptr;
    double *last = nullptr, *anchor = nullptr, *anchor_t = nullptr;
    int64_t *streak = nullptr, *rest = nullptr;
    double* inside = nullptr;  // (members, 1 + parts, width, d): start of the last step, and its polynomial

    NoiseOptions random;

    // merging, if the tolerance is positive; the log (members, width) of time, two nodes and mass
    double merge = 0;
    double *near_anchor = nullptr, *slack = nullptr, *log_time = nullptr, *log_mass = nullptr;
    int64_t *row_of = nullptr, *node_of = nullptr, *nodes = nullptr, *merges = nullptr, *log_left = nullptr,
            *log_right = nullptr;

    // gradients of the start (members, n, d), and of parameters, which the members of a group add to one array
    double *grad_start = nullptr, *grad_masses = nullptr, *grad_query = nullptr, *grad_key = nullptr,
           *grad_value = nullptr, *grad_query_bias = nullptr, *grad_key_bias = nullptr, *grad_value_bias = nullptr,
           *grad_output_bias = nullptr, *grad_scale = nullptr;
};

}  // namespace attractor

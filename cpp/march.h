// What the native loop is asked: adaptive steps of many independent systems, each with its own time and step.
//
// Arrays hold one row for each member. Points (members, width, d) have room for `width` tokens of which `counts` are there:
// merging makes them fewer. Everything is float64.
#pragma once

#include "problem.h"

namespace attractor {

enum class Space : int { flat = 0, sphere = 1, ellipsoid = 2 };

// Why a member stopped; bits of `flags`. `located`: `inside` holds the polynomial of its last step. `entered`: it is still at
// the start.
enum Flag : int64_t { look = 1, arrived = 2, failed = 4, located = 8, entered = 16 };

// A linear combination of slopes, without its zeros.
constexpr int most_slopes = 16;
struct Terms {
    int count = 0;
    int which[most_slopes];
    double weight[most_slopes];
};

// An embedded Runge-Kutta pair whose last slope is that of the end, and the polynomial inside its steps (solvers/steppers/).
struct Tableau {
    int stages = 0, errors = 0, extra = 0, parts = 3, order = 1;
    Terms inner[most_slopes], end, error[2], extra_inner[4], part[4];
};

struct March {
    int64_t members = 0, width = 0, n = 0, d = 0, e = 0, heads = 1;
    Tableau tableau;
    Problem problem;  // one evaluation; a copy is filled in for each member

    // the law: query, key (heads, e, d), value (heads, d, d) or factors (heads); a stride is 0 where members share
    Mode mode = Mode::softmax;
    bool squared = false;   // L2: scores are minus squared distances
    bool averaged = false;  // values are weighed by mass, not normalised
    bool causal = false, skip_self = false;
    bool diagonal = false, uniform = false;  // queries and keys are diagonal matrices, or multiples of the identity
    int64_t window = 0, query_stride = 0, value_stride = 0, factor_stride = 0, mass_stride = 0, visible_stride = 0;
    double scale = 1, bias = 0;
    const double *query = nullptr, *key = nullptr, *value = nullptr, *factors = nullptr;
    const uint8_t* visible = nullptr;
    double* masses = nullptr;  // (members, width); null: 1/n each

    // the space: a radius, or a matrix (d, d)
    Space space = Space::flat;
    double radius = 1;
    const double* matrix = nullptr;

    // the clock and the steps
    double start = 0, end = 0, rtol = 0, atol = 0, first_step = 0;
    double safety = 1, shrink = 1, grow = 1;  // of the controller (solvers/step_control.py)
    bool fresh = false;  // no step was taken yet: slopes and the first step are still to be found
    int64_t attempts = 1;
    double deadline = 0;  // as `late` understands it
    bool (*late)(const March&) = nullptr;
    // threads of one evaluation, and how it calls them: work(context, task, worker) for every task
    int64_t workers = 1;
    void (*share)(const March&, int64_t tasks, void* context, void (*work)(void*, int64_t, int)) = nullptr;
    double *y = nullptr, *f = nullptr, *t = nullptr, *t_low = nullptr, *h = nullptr, *taken = nullptr;
    bool* retried = nullptr;
    int64_t *counts = nullptr, *flags = nullptr, *evaluations = nullptr, *accepted = nullptr, *rejected = nullptr;

    // saved states (saves, all members, n, d): `who` is the column of a row
    int64_t saves = 0, columns = 0;
    bool named_times = false;
    const double* save_times = nullptr;
    double* saved = nullptr;
    int64_t *who = nullptr, *next = nullptr;

    // rules, tolerance below 0 where a rule is not asked for; numbers as in solvers/termination.py; `noted`: which rule was seen, or -1
    double consensus = -1, collapse = -1, steady = -1, bound = 0;
    int64_t order[3] = {-1, -1, -1};  // which rule is asked first
    double noise = 0, patience = 0, enough_rest = 0;
    const double* size = nullptr;
    const int64_t* noted = nullptr;
    double *last = nullptr, *anchor = nullptr, *anchor_t = nullptr;
    int64_t *streak = nullptr, *rest = nullptr;
    double* inside = nullptr;  // (members, 1 + parts, width, d): where the last step began, and its polynomial

    // merging, if the tolerance is positive; the log (members, width) of time, two nodes and mass
    double merge = 0;
    double *near_anchor = nullptr, *slack = nullptr, *log_time = nullptr, *log_mass = nullptr;
    int64_t *row_of = nullptr, *node_of = nullptr, *nodes = nullptr, *merges = nullptr, *log_left = nullptr,
            *log_right = nullptr;
};

}  // namespace attractor

// Operands and options of one call: plain pointers and strides, shared by all instruction sets.
#pragma once

#include <cstddef>
#include <cstdint>

namespace attractor {

enum class Mode : int { softmax = 0, exponential = 1, sigmoid = 2, linear = 3 };

constexpr int max_axes = 16;

// A tensor (batch..., rows, columns) in place. A broadcast batch axis has stride 0; columns are adjacent except in
// masks.
struct Operand {
    void* data = nullptr;
    int64_t batch[max_axes] = {};
    int64_t row = 0;
    int64_t column = 1;
};

// Shapes: q (n, e), k (m, e), v (m, c), bias (m), visible (n, m) bytes; output (n, c), logsumexp (n).
// q is scaled by log2(e) inside, so bias must come in units of log 2 too, except in linear mode.
struct Problem {
    int64_t n = 0, m = 0, e = 0, c = 0;
    int axes = 0;
    int64_t shape[max_axes] = {};
    int64_t members = 1;  // product of shape
    Mode mode = Mode::softmax;
    bool causal = false;
    int64_t window = 0;  // 0: none
    bool skip_self = false;
    int64_t offset = 0;  // query i has the position of key offset + i, for masks and skip_self
    // For each member, a bound on |k_j| and one on |bias_j|, of the problem's number type; null: not known.
    const void* reach = nullptr;
    bool calm = false;  // all scores are known to be moderate (forward.h)
    Operand q, k, v, bias, visible, output, logsumexp;
    // Backward: the gradient of the output, log2 of the normaliser (+inf for a row that sees no key), and the number
    // added to <grad output_i, v_j> in ds_ij: see backward.h. Then the results.
    Operand grad_output, log2sum, row_term, grad_q, grad_k, grad_v, grad_bias;
};

constexpr int64_t many_members = 8;  // members from which each thread takes whole members

// One member of the batch whose queries are `factor` / log2(e) times its keys; see symmetric.h.
struct Symmetric {
    int64_t n = 0, d = 0, padded = 0;  // tokens, features, and tokens rounded up to the size of the sums
    int64_t block = 0;                 // tokens of a block
    bool weighted = false, skip_self = false;
    bool same = false;  // the values are the keys
    double factor = 0.0, shift = 0.0;
    void *rows = nullptr, *keys = nullptr;  // the tokens in the layout of the kernel
    double* sums = nullptr;                 // (d + 1) padded numbers: of the values, and of the weights
    const double* others = nullptr;         // and as many that are added to them where results are written, or none
};

struct SymmetricKernels {
    bool (*recognise)(const Problem&, int64_t member,
                      Symmetric*);     // writes weighted, same, factor and shift if it applies
    int64_t (*block)(const Problem&);  // tokens of a block, or 0: it does not pay
    size_t (*row_bytes)(const Symmetric&);
    size_t (*key_bytes)(const Symmetric&);
    size_t (*scratch)(const Symmetric&);
    void (*pack)(const Problem&, int64_t member, const Symmetric&, int64_t block);
    void (*clear)(const Symmetric&, int64_t block);                              // the sums of its tokens
    void (*compute)(const Symmetric&, int64_t one, int64_t two, void* scratch);  // all pairs of two blocks,
    void (*add)(const Symmetric&, int64_t one, int64_t two, void* scratch);      // and what they give to the sums
    void (*write)(const Problem&, int64_t member, const Symmetric&, int64_t block);
    void (*small)(const Problem&, int64_t member, const Symmetric&,
                  void* scratch);  // all of it, for a member of one block
};

// One instruction set and one number type. A task is a group of rows (or of keys) of one member of the batch.
struct Kernels {
    int64_t (*group)();                                            // rows of a task,
    int64_t (*gang)();                                             // and of one of several groups
    size_t (*scratch)(const Problem&);                             // bytes a worker needs
    void (*measure)(const Problem&, int64_t member, void* reach);  // writes the two bounds of a member
    void (*forward)(const Problem&, int64_t task, void* scratch);
    void (*forward_ganged)(const Problem&, int64_t task, void* scratch);  // softmax of values, without a window
    void (*backward_queries)(const Problem&, int64_t task, void* scratch);
    void (*backward_keys)(const Problem&, int64_t task, void* scratch);
    void (*exp2)(const void* from, void* to, int64_t count);  // for tests of its accuracy
    double (*multiply_adds)(int64_t repeats, void* result);   // for peak rates: see ceilings.h
    double (*powers_of_two)(int64_t repeats, void* result);
    SymmetricKernels symmetric;
};

// Harmonics up to `order` at the n tokens `scale * points` of the unit circle or sphere; see zonal.h. Tables over (m,
// l) have rows of `stride` > order + 2 numbers on the sphere; on the circle they have one number for each m.
struct Harmonics {
    int64_t n = 0, order = 0, stride = 0, channels = 0;
    int dim = 0;
    const double* points = nullptr;
    int64_t row = 0;
    double scale = 0.0;
    const double* steps = nullptr;    // of the recurrence, on the sphere
    const double* weights = nullptr;  // analysis: (channels, n), or null for one channel of ones
    const double* series =
        nullptr;  // synthesis: blocks of four channels, and the rest; in a block (m, l, channel, re and im)
};

// Results of a row from its sums: channel 0 is the normaliser, channel 1 that of |v| if `first` is 2, then come the
// values.
struct Rows {
    int64_t columns = 0, first = 1;
    bool divide = true, skip_self = false;
    double stretch = 1.0, factor = 1.0;    // of the values, and of the results if they are not divided
    double limit = 0.0, size_limit = 0.0;  // smallest sums whose error is small enough
    double level = 0.0, logarithm = 0.0;   // the largest score, without and with the bias
    int64_t own = 0;                       // rows below it have an own key
    const double *keys = nullptr, *values = nullptr, *masses = nullptr;
    int64_t keys_row = 0, values_row = 0;
    double *output = nullptr, *logsumexp = nullptr;
    bool* good = nullptr;
};

struct Zonal {
    int64_t gathered, spread;  // tokens of a group in the two passes
    size_t (*gather_bytes)(const Harmonics&);
    size_t (*spread_bytes)(const Harmonics&);
    void (*gather)(const Harmonics&, int64_t start, int64_t stop, double* result, void* scratch);
    int64_t (*spread_out)(const Harmonics&, const Rows&, int64_t task,
                          void* scratch);  // returns the rows that are not good
};

struct NativeLoop;
struct MemberSteps;
struct ParameterGradients;

struct InstructionSet {
    const char* name;
    Kernels float32, float64;
    Zonal zonal;
    size_t (*loop_scratch)(const NativeLoop&);  // the native loop (loop.h): bytes a worker needs
    void (*loop_member)(const NativeLoop&, int64_t row, void* scratch);  // and the steps of one member
    // gradients through the steps of one member (reverse_sweep.h)
    size_t (*gradient_scratch)(const NativeLoop&, const MemberSteps&);
    void (*gradient_member)(const NativeLoop&, int64_t row, const MemberSteps&, const ParameterGradients&,
                            double* grad_start, void* scratch);
    size_t (*noisy_scratch)(const NativeLoop&);  // the same with noise (noisy_steps.h)
    void (*noisy_member)(const NativeLoop&, int64_t row, void* scratch);
};

// By name; throws if this machine cannot run it.
const InstructionSet& named(const char* name);

}  // namespace attractor

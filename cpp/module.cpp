// Python bindings: operands are addresses and strides, nothing is copied, and the GIL is released while the kernels
// run.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "neighbor_search.h"
#include "problem.h"
#include "symmetric_forward.h"
#include "threads.h"

namespace nb = nanobind;

namespace attractor {

void bind_native_loop(nb::module_& module);  // native_loop.cpp

extern const InstructionSet baseline_set;
#if defined(ATTRACTOR_WITH_AVX2)
extern const InstructionSet avx2_set;
#endif
#if defined(ATTRACTOR_WITH_AVX512)
extern const InstructionSet avx512_set;
#endif

namespace {

// The compiled instruction sets that this processor supports, the widest first.
std::vector<const InstructionSet*> usable() {
    std::vector<const InstructionSet*> sets;
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
#if defined(ATTRACTOR_EMULATE_AVX512)
    sets.push_back(&avx512_set);
#elif defined(ATTRACTOR_WITH_AVX512)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        sets.push_back(&avx512_set);
#endif
#if defined(ATTRACTOR_WITH_AVX2)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) sets.push_back(&avx2_set);
#endif
    sets.push_back(&baseline_set);
    return sets;
}

}  // namespace

const InstructionSet& named(const char* name) {
    for (const InstructionSet* set : usable())
        if (std::string(name) == set->name) return *set;
    throw std::invalid_argument("the instruction set '" + std::string(name) + "' is not one this machine can run");
}

void bind_spectral(nb::module_& module);  // spectral.cpp

namespace {

using Numbers = std::vector<int64_t>;

// (address, strides of the batch axes..., row stride, column stride), or nothing
Operand operand(const Numbers& numbers, int axes) {
    Operand result;
    if (numbers.empty()) return result;
    if (int(numbers.size()) != axes + 3) throw std::invalid_argument("an operand needs an address and all strides");
    result.data = reinterpret_cast<void*>(numbers[0]);
    for (int axis = 0; axis < axes; axis++) result.batch[axis] = numbers[1 + axis];
    result.row = numbers[1 + axes];
    result.column = numbers[2 + axes];
    return result;
}

struct Call {
    Problem problem;
    const Kernels *kernels, *float64;
    int threads;

    Call(const std::string& set, bool is_double, int threads_, const Numbers& shape, const Numbers& sizes, int mode,
         bool causal, int64_t window, bool skip_self, int64_t offset)
        : threads(threads_) {
        const InstructionSet& chosen = named(set.c_str());
        float64 = &chosen.float64;
        kernels = is_double ? &chosen.float64 : &chosen.float32;
        if (shape.size() > max_axes) throw std::invalid_argument("too many batch axes");
        if (sizes.size() != 4) throw std::invalid_argument("sizes are (n, m, e, c)");
        problem.n = sizes[0], problem.m = sizes[1], problem.e = sizes[2], problem.c = sizes[3];
        problem.axes = int(shape.size());
        for (int axis = 0; axis < problem.axes; axis++) {
            problem.shape[axis] = shape[axis];
            problem.members *= shape[axis];
        }
        problem.mode = Mode(mode);
        problem.causal = causal;
        problem.window = window;
        problem.skip_self = skip_self;
        problem.offset = offset;
    }

    // Bounds of all members, two numbers each; empty if another pass over the keys does not pay off.
    std::vector<double> measure() const {
        if (problem.n < 8 || (problem.mode != Mode::softmax && problem.mode != Mode::exponential)) return {};
        std::vector<double> reach(2 * size_t(problem.members));
        const size_t bytes = 2 * (kernels == float64 ? sizeof(double) : sizeof(float));
        parallel(problem.members, problem.members * problem.m > 20000 ? threads : 1, [&](int64_t member, int) {
            kernels->measure(problem, member, reinterpret_cast<char*>(reach.data()) + bytes * member);
        });
        return reach;
    }

    void run(void (*kernel)(const Problem&, int64_t, void*), int64_t rows, int64_t height) const {
        const int64_t groups = (rows + height - 1) / height;
        const int64_t tasks = problem.members * groups;
        // waking threads costs about as long as this many multiplications
        const double work = double(problem.members) * problem.n * problem.m * (8.0 + problem.e + problem.c);
        const int used = work < 1e6 ? 1 : threads;
        const size_t bytes = (kernels->scratch(problem) + 127) / 64 * 64;
        std::unique_ptr<char, decltype(&std::free)> memory(
            static_cast<char*>(std::aligned_alloc(64, bytes * size_t(used))), &std::free);
        if (!memory) throw std::bad_alloc();
        parallel(tasks, used, [&](int64_t task, int worker) { kernel(problem, task, memory.get() + bytes * worker); });
    }
};

template <class T>
using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu>;

// Shared memory of several processes, and a Python function of the seconds waited that tells whether all processes are
// alive. An exception in it, such as one from a signal, ends the waiting and is raised again by the call that waited.
struct Shared {
    Array<uint8_t> bytes;
    SharedMemory memory;
    std::exception_ptr error;

    Shared(Array<uint8_t> bytes_, int rank, int size, nb::callable alive)
        : bytes(bytes_),
          memory(reinterpret_cast<char*>(bytes.data()), int64_t(bytes.size()), rank, size,
                 [this, alive](double waited) { return is_alive(alive, waited); }) {}

private:
    bool is_alive(const nb::callable& alive, double waited) {
        nb::gil_scoped_acquire held;
        try {
            return nb::cast<bool>(alive(waited));
        } catch (...) {
            if (!error) error = std::current_exception();
            return false;
        }
    }
};

struct Forward : Call {
    Forward(const std::string& set, bool is_double, int threads, const Numbers& shape, const Numbers& sizes, int mode,
            bool causal, int64_t window, bool skip_self, int64_t offset, const Numbers& q, const Numbers& k,
            const Numbers& v, const Numbers& bias, const Numbers& visible, const Numbers& output,
            const Numbers& logsumexp)
        : Call(set, is_double, threads, shape, sizes, mode, causal, window, skip_self, offset) {
        const int axes = problem.axes;
        problem.q = operand(q, axes), problem.k = operand(k, axes), problem.v = operand(v, axes);
        problem.bias = operand(bias, axes), problem.visible = operand(visible, axes);
        problem.output = operand(output, axes), problem.logsumexp = operand(logsumexp, axes);
    }

    void attend() {
        nb::gil_scoped_release released;
        if (symmetric_forward(kernels->symmetric, problem, threads)) return;
        const std::vector<double> reach = measure();
        if (!reach.empty()) problem.reach = reach.data();
        if (ganged())
            run(kernels->forward_ganged, problem.n, kernels->gang());
        else
            run(kernels->forward, problem.n, kernels->group());
    }

    bool partial_sums(int part, int parts, Array<double> sums) {
        check(sums);
        nb::gil_scoped_release released;
        return symmetric_partial_sums(kernels->symmetric, problem, threads, part, parts, sums.data());
    }

    void finish(Array<double> sums) {
        check(sums);
        nb::gil_scoped_release released;
        symmetric_finish(kernels->symmetric, problem, threads, sums.data());
    }

    // Bytes of shared memory with which several processes can compute this problem; 0: they cannot.
    int64_t shared_bytes() {
        nb::gil_scoped_release released;
        members = symmetric_members(kernels->symmetric, problem, threads);
        return members.empty() ? 0 : symmetric_shared_bytes(members[0]);
    }

    bool attend_shared(Shared& shared) {
        if (members.empty()) throw std::logic_error("call shared_bytes first; it must not be 0");
        bool complete;
        {
            nb::gil_scoped_release released;
            complete = symmetric_shared(kernels->symmetric, problem, threads, members, shared.memory);
        }
        if (shared.error) std::rethrow_exception(std::exchange(shared.error, nullptr));
        return complete;
    }

private:
    std::vector<Symmetric> members;

    void check(const Array<double>& sums) const {
        if (int64_t(sums.size()) < problem.members * (problem.c + 1) * problem.m)
            throw std::invalid_argument("the array of sums is too small");
    }

    // Whether keys and values exceed the cache, so that several groups of rows should share each load, and there are
    // enough groups.
    bool ganged() const {
        const int64_t numbers = problem.e + problem.c, bytes = kernels == float64 ? sizeof(double) : sizeof(float);
        return problem.mode == Mode::softmax && problem.v.data && problem.c && !problem.window && numbers >= 32 &&
               problem.m * numbers * bytes >= 1 << 18 &&
               problem.members * (problem.n / kernels->gang()) >= 4 * int64_t(threads);
    }
};

void backward(const std::string& set, bool is_double, int threads, const Numbers& shape, const Numbers& sizes, int mode,
              bool causal, int64_t window, bool skip_self, int64_t offset, const Numbers& q, const Numbers& k,
              const Numbers& v, const Numbers& bias, const Numbers& visible, const Numbers& grad_output,
              const Numbers& log2sum, const Numbers& row_term, const Numbers& grad_q, const Numbers& grad_k,
              const Numbers& grad_v, const Numbers& grad_bias) {
    Call call(set, is_double, threads, shape, sizes, mode, causal, window, skip_self, offset);
    Problem& problem = call.problem;
    problem.q = operand(q, problem.axes), problem.k = operand(k, problem.axes), problem.v = operand(v, problem.axes);
    problem.bias = operand(bias, problem.axes), problem.visible = operand(visible, problem.axes);
    problem.grad_output = operand(grad_output, problem.axes), problem.log2sum = operand(log2sum, problem.axes);
    problem.row_term = operand(row_term, problem.axes), problem.grad_q = operand(grad_q, problem.axes);
    problem.grad_k = operand(grad_k, problem.axes), problem.grad_v = operand(grad_v, problem.axes);
    problem.grad_bias = operand(grad_bias, problem.axes);
    nb::gil_scoped_release released;
    if (problem.grad_q.data) call.run(call.kernels->backward_queries, problem.n, call.kernels->group());
    if (problem.grad_k.data || problem.grad_v.data || problem.grad_bias.data)
        call.run(call.kernels->backward_keys, problem.m, call.kernels->group());
}

std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
    for (const InstructionSet* set : usable()) names.push_back(set->name);
    return names;
}

void exp2(const std::string& set, bool is_double, int64_t from, int64_t to, int64_t count) {
    const InstructionSet& chosen = named(set.c_str());
    (is_double ? chosen.float64 : chosen.float32)
        .exp2(reinterpret_cast<const void*>(from), reinterpret_cast<void*>(to), count);
}

// Seconds and operations of a loop of only multiply-adds or powers, on several threads.
std::pair<double, double> ceiling(const std::string& set, bool is_double, bool powers, int threads, int64_t repeats) {
    const InstructionSet& chosen = named(set.c_str());
    const Kernels& kernels = is_double ? chosen.float64 : chosen.float32;
    nb::gil_scoped_release released;
    std::vector<double> done(size_t(threads), 0.0);
    std::vector<double> seeds(size_t(threads) * 8, 0.0);
    const auto start = std::chrono::steady_clock::now();
    parallel(threads, threads, [&](int64_t task, int) {
        void* seed = &seeds[size_t(task) * 8];
        done[size_t(task)] = (powers ? kernels.powers_of_two : kernels.multiply_adds)(repeats, seed);
    });
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    double total = 0;
    for (double one : done) total += one;
    return {took.count(), total};
}

// Points (n, axes) and room for n / 2 pairs; see neighbor_search.h.
template <int64_t (*search)(const double*, int64_t, int, double, int, int64_t*)>
int64_t find_pairs(nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu> points, double tolerance,
                   int threads, nb::ndarray<int64_t, nb::shape<-1, 2>, nb::c_contig, nb::device::cpu> pairs) {
    const int64_t n = int64_t(points.shape(0)), axes = int64_t(points.shape(1));
    if (axes < 1 || axes > 3 || int64_t(pairs.shape(0)) < n / 2)
        throw std::invalid_argument("one to three axes, and room for n / 2 pairs");
    nb::gil_scoped_release released;
    return search(points.data(), n, int(axes), tolerance, threads, pairs.data());
}

}  // namespace
}  // namespace attractor

NB_MODULE(_kernels, module) {
    module.doc() = "Compiled kernels; attractor.engines.fused and attractor.engines.spectral call them.";
    // a graph of autograd that is alive at exit holds the record of its run
    nb::set_leak_warnings(false);
    using attractor::Numbers;
    nb::class_<attractor::Forward>(module, "Forward")
        .def(nb::init<const std::string&, bool, int, const Numbers&, const Numbers&, int, bool, int64_t, bool, int64_t,
                      const Numbers&, const Numbers&, const Numbers&, const Numbers&, const Numbers&, const Numbers&,
                      const Numbers&>())
        .def("attend", &attractor::Forward::attend)
        .def("partial_sums", &attractor::Forward::partial_sums, nb::arg("part"), nb::arg("parts"),
             nb::arg("sums").noconvert())
        .def("finish", &attractor::Forward::finish, nb::arg("sums").noconvert())
        .def("shared_bytes", &attractor::Forward::shared_bytes)
        .def("attend_shared", &attractor::Forward::attend_shared);
    nb::class_<attractor::Shared>(module, "SharedMemory")
        .def(nb::init<attractor::Array<uint8_t>, int, int, nb::callable>(), nb::arg("bytes").noconvert(),
             nb::arg("rank"), nb::arg("size"), nb::arg("alive"));
    module.def("backward", &attractor::backward);
    module.def("instruction_sets", &attractor::instruction_sets);
    module.def("exp2", &attractor::exp2);
    attractor::bind_native_loop(module);
    attractor::bind_spectral(module);
    module.def("ceiling", &attractor::ceiling);
    module.def("cell_mates", &attractor::find_pairs<attractor::cell_mates>, nb::arg("points").noconvert(),
               nb::arg("tolerance"), nb::arg("threads"), nb::arg("pairs").noconvert());
    module.def("mutual_pairs", &attractor::find_pairs<attractor::mutual_pairs>, nb::arg("points").noconvert(),
               nb::arg("tolerance"), nb::arg("threads"), nb::arg("pairs").noconvert());
}

// Python bindings of the spectral engine: the two passes over tokens, and checks of their lengths.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "problem.h"
#include "threads.h"

namespace nb = nanobind;

namespace attractor {
namespace {

constexpr int64_t most_tasks = 64;  // partial sums of the analysis; their number must not depend on the threads

const double* numbers(int64_t address) { return reinterpret_cast<const double*>(address); }

struct Scratch {
    size_t bytes;
    std::unique_ptr<char, decltype(&std::free)> memory;
    Scratch(size_t needed, int workers)
        : bytes((needed + 127) / 64 * 64),
          memory(static_cast<char*>(std::aligned_alloc(64, bytes * size_t(workers))), &std::free) {
        if (!memory) throw std::bad_alloc();
    }
    void* of(int worker) const { return memory.get() + bytes * size_t(worker); }
};

Harmonics basis_of(int dim, const std::vector<int64_t>& sizes, int64_t points, int64_t row, double scale,
                   int64_t steps) {
    if ((dim != 2 && dim != 3) || sizes.size() != 4)
        throw std::invalid_argument("sizes are (n, order, stride, channels), dim 2 or 3");
    Harmonics basis;
    basis.n = sizes[0], basis.order = sizes[1], basis.stride = sizes[2], basis.channels = sizes[3];
    if (dim == 3 && basis.stride < basis.order + 3)
        throw std::invalid_argument("rows of tables must be longer than order + 2");
    basis.dim = dim;
    basis.points = numbers(points), basis.row = row, basis.scale = scale, basis.steps = numbers(steps);
    return basis;
}

// sums (channels, places, 2) of weight Q_lm (x + iy)^m over tokens.
void analyse(const std::string& set, int threads, int dim, const std::vector<int64_t>& sizes, int64_t points,
             int64_t row, double scale, int64_t steps, int64_t weights, int64_t sums) {
    const Zonal& zonal = named(set.c_str()).zonal;
    Harmonics basis = basis_of(dim, sizes, points, row, scale, steps);
    basis.weights = numbers(weights);
    nb::gil_scoped_release released;
    const int64_t groups = (basis.n + zonal.gathered - 1) / zonal.gathered;
    const int64_t length = (groups + most_tasks - 1) / most_tasks * zonal.gathered;
    const int64_t tasks = (basis.n + length - 1) / length;
    const int64_t places = dim == 3 ? (basis.order + 1) * basis.stride : basis.order + 1;
    const size_t count = size_t(2 * places * basis.channels);
    std::vector<double> parts(count * size_t(tasks));
    const Scratch scratch(zonal.gather_bytes(basis), threads);
    parallel(tasks, threads, [&](int64_t task, int worker) {
        const int64_t start = task * length, stop = start + length < basis.n ? start + length : basis.n;
        zonal.gather(basis, start, stop, parts.data() + count * size_t(task), scratch.of(worker));
    });
    double* result = const_cast<double*>(numbers(sums));
    for (size_t index = 0; index < count; index++) result[index] = 0.0;
    for (int64_t task = 0; task < tasks; task++)
        for (size_t index = 0; index < count; index++) result[index] += parts[count * size_t(task) + index];
}

// Results of all rows from the series of every channel; returns the number of rows that are not accurate enough.
int64_t synthesise(const std::string& set, int threads, int dim, const std::vector<int64_t>& sizes, int64_t points,
                   int64_t row, double scale, int64_t steps, int64_t series, const std::vector<int64_t>& whole,
                   const std::vector<double>& real, const std::vector<int64_t>& addresses) {
    const Zonal& zonal = named(set.c_str()).zonal;
    Harmonics basis = basis_of(dim, sizes, points, row, scale, steps);
    basis.series = numbers(series);
    if (whole.size() != 7 || real.size() != 6 || addresses.size() != 6)
        throw std::invalid_argument("the rows are not described");
    Rows rows;
    rows.columns = whole[0], rows.first = whole[1], rows.divide = whole[2], rows.skip_self = whole[3],
    rows.own = whole[4];
    rows.keys_row = whole[5], rows.values_row = whole[6];
    rows.stretch = real[0], rows.factor = real[1], rows.limit = real[2], rows.size_limit = real[3],
    rows.level = real[4];
    rows.logarithm = real[5];
    rows.keys = numbers(addresses[0]), rows.values = numbers(addresses[1]), rows.masses = numbers(addresses[2]);
    rows.output = const_cast<double*>(numbers(addresses[3])),
    rows.logsumexp = const_cast<double*>(numbers(addresses[4]));
    rows.good = reinterpret_cast<bool*>(addresses[5]);
    nb::gil_scoped_release released;
    const Scratch scratch(zonal.spread_bytes(basis), threads);
    std::atomic<int64_t> poor{0};
    parallel((basis.n + zonal.spread - 1) / zonal.spread, threads, [&](int64_t task, int worker) {
        const int64_t found = zonal.spread_out(basis, rows, task, scratch.of(worker));
        if (found) poor += found;
    });
    return poor;
}

// The largest of measure(i) over n rows; infinity if one of them is NaN.
template <class Measure>
double largest(int threads, int64_t n, const Measure& measure) {
    constexpr int64_t portion = 1 << 14;
    const int64_t tasks = (n + portion - 1) / portion;
    std::vector<double> found(size_t(tasks), 0.0);
    parallel(tasks, threads, [&](int64_t task, int) {
        double most = -std::numeric_limits<double>::infinity();
        bool sound = true;
        const int64_t stop = (task + 1) * portion < n ? (task + 1) * portion : n;
        for (int64_t i = task * portion; i < stop; i++) {
            const double one = measure(i);
            sound &= one == one;
            most = most < one ? one : most;
        }
        found[size_t(task)] = sound ? most : std::numeric_limits<double>::infinity();
    });
    double most = -std::numeric_limits<double>::infinity();
    for (double one : found) most = most < one ? one : most;
    return most;
}

// The largest deviation of a row's squared length from `expected`.
double unevenness(int threads, int64_t n, int dim, int64_t points, int64_t row, double expected) {
    nb::gil_scoped_release released;
    const double* from = numbers(points);
    return largest(threads, n, [=](int64_t i) {
        double square = -expected;
        for (int axis = 0; axis < dim; axis++) square += from[i * row + axis] * from[i * row + axis];
        return std::fabs(square);
    });
}

// The largest entry of v - factor k.
double deviation(int threads, int64_t n, int dim, int64_t v, int64_t v_row, int64_t k, int64_t k_row, double factor) {
    nb::gil_scoped_release released;
    const double *left = numbers(v), *right = numbers(k);
    return largest(threads, n, [=](int64_t i) {
        double most = 0.0, sum = 0.0;
        for (int axis = 0; axis < dim; axis++) {
            const double gap = std::fabs(left[i * v_row + axis] - factor * right[i * k_row + axis]);
            most = most < gap ? gap : most;
            sum += gap;  // NaN if one of them is NaN
        }
        return sum == sum ? most : sum;
    });
}

}  // namespace

void bind_spectral(nb::module_& module) {
    module.def("analyse", &analyse);
    module.def("synthesise", &synthesise);
    module.def("unevenness", &unevenness);
    module.def("deviation", &deviation);
}

}  // namespace attractor

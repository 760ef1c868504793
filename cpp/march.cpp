// The native loop as Python sees it: a March whose fields are set one by one, arrays by their addresses, then `run`.
#include "march.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "threads.h"

namespace nb = nanobind;

namespace attractor {

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

bool late(const March& march) { return now() > march.deadline; }

// Only where one member marches, for then no thread of the pool is taken.
void share(const March& march, int64_t tasks, void* context, void (*work)(void*, int64_t, int)) {
    parallel(tasks, int(march.workers), [&](int64_t task, int worker) { work(context, task, worker); });
}

Terms terms(const std::vector<double>& weights) {
    if (weights.size() > size_t(most_slopes)) throw std::invalid_argument("too many slopes");
    Terms result;
    for (size_t index = 0; index < weights.size(); index++) {
        if (weights[index] == 0) continue;
        result.which[result.count] = int(index);
        result.weight[result.count++] = weights[index];
    }
    if (!result.count) throw std::invalid_argument("a combination of slopes needs one that counts");
    return result;
}

using Rows = std::vector<std::vector<double>>;

void fill(const Rows& rows, size_t most, Terms* to) {
    if (rows.size() > most) throw std::invalid_argument("too many rows in a tableau");
    for (size_t index = 0; index < rows.size(); index++) to[index] = terms(rows[index]);
}

// inner: rows of stages 1, 2, ...; extra, parts: further slopes inside the step and the polynomial's parts from the fourth on
void set_tableau(March& march, int order, const Rows& inner, const std::vector<double>& end, const Rows& errors,
                 const Rows& extra, const Rows& parts) {
    Tableau& tableau = march.tableau;
    tableau.order = order;
    tableau.stages = int(inner.size()) + 1;
    tableau.errors = int(errors.size()), tableau.extra = int(extra.size()), tableau.parts = 3 + int(parts.size());
    if (tableau.stages + 1 + tableau.extra > most_slopes) throw std::invalid_argument("too many stages");
    fill(inner, most_slopes - 1, tableau.inner + 1);
    tableau.end = terms(end);
    fill(errors, 2, tableau.error);
    fill(extra, 4, tableau.extra_inner);
    fill(parts, 4, tableau.part);
}

// Up to `attempts` steps of every member, for about `seconds`.
void run(March& march, const std::string& set, int threads, double seconds) {
    const InstructionSet& chosen = named(set.c_str());
    march.late = late, march.share = share;
    march.workers = march.members == 1 ? threads : 1;
    march.deadline = now() + seconds;
    const size_t bytes = (chosen.march_scratch(march) + 127) / 64 * 64;
    const int used = int64_t(threads) < march.members ? threads : int(march.members);
    std::unique_ptr<char, decltype(&std::free)> memory(
        static_cast<char*>(std::aligned_alloc(64, bytes * size_t(used > 1 ? used : 1))), &std::free);
    if (!memory) throw std::bad_alloc();
    nb::gil_scoped_release released;
    parallel(march.members, used,
             [&](int64_t row, int worker) { chosen.march_member(march, row, memory.get() + bytes * worker); });
}

// Where an array lies: its address, or an object with a contiguous buffer.
uintptr_t address_of(nb::handle array) {
    if (PyLong_Check(array.ptr())) return nb::cast<uintptr_t>(array);
    Py_buffer view;
    if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_C_CONTIGUOUS)) throw nb::python_error();
    const uintptr_t address = reinterpret_cast<uintptr_t>(view.buf);
    PyBuffer_Release(&view);
    return address;
}

}  // namespace

#define NUMBER(name) .def_rw(#name, &March::name)
#define ADDRESS(name)                                                                    \
    .def_prop_rw(                                                                        \
        #name, [](const March& march) { return reinterpret_cast<uintptr_t>(march.name); }, \
        [](March& march, nb::handle array) { march.name = reinterpret_cast<decltype(march.name)>(address_of(array)); })

void bind_march(nb::module_& module) {
    nb::class_<March>(module, "March")
        .def(nb::init<>())
        .def("set_tableau", &set_tableau)
        .def("set_order", [](March& march, const std::vector<int64_t>& order) {
            for (size_t place = 0; place < 3; place++) march.order[place] = place < order.size() ? order[place] : -1;
        })
        .def_prop_rw("mode", [](const March& march) { return int(march.mode); },
                     [](March& march, int mode) { march.mode = Mode(mode); })
        .def_prop_rw("space", [](const March& march) { return int(march.space); },
                     [](March& march, int space) { march.space = Space(space); })
        .def_prop_ro("parts", [](const March& march) { return march.tableau.parts; })
        NUMBER(members) NUMBER(width) NUMBER(n) NUMBER(d) NUMBER(e) NUMBER(heads) NUMBER(squared) NUMBER(averaged)
        NUMBER(causal) NUMBER(skip_self) NUMBER(diagonal) NUMBER(uniform) NUMBER(window) NUMBER(query_stride) NUMBER(value_stride)
        NUMBER(factor_stride) NUMBER(mass_stride) NUMBER(visible_stride) NUMBER(scale) NUMBER(bias) NUMBER(radius)
        NUMBER(start) NUMBER(end) NUMBER(rtol) NUMBER(atol) NUMBER(first_step) NUMBER(fresh) NUMBER(attempts) NUMBER(safety) NUMBER(shrink) NUMBER(grow)
        NUMBER(saves) NUMBER(columns) NUMBER(named_times) NUMBER(consensus) NUMBER(collapse) NUMBER(steady)
        NUMBER(bound) NUMBER(noise) NUMBER(patience) NUMBER(enough_rest) NUMBER(merge)
        ADDRESS(query) ADDRESS(key) ADDRESS(value) ADDRESS(factors) ADDRESS(visible) ADDRESS(masses) ADDRESS(matrix)
        ADDRESS(y) ADDRESS(f) ADDRESS(t) ADDRESS(t_low) ADDRESS(h) ADDRESS(taken) ADDRESS(retried) ADDRESS(counts)
        ADDRESS(flags) ADDRESS(evaluations) ADDRESS(accepted) ADDRESS(rejected) ADDRESS(save_times) ADDRESS(saved)
        ADDRESS(who) ADDRESS(next) ADDRESS(size) ADDRESS(noted) ADDRESS(last) ADDRESS(anchor) ADDRESS(anchor_t)
        ADDRESS(streak) ADDRESS(rest) ADDRESS(inside) ADDRESS(near_anchor) ADDRESS(slack)
        ADDRESS(log_time) ADDRESS(log_mass) ADDRESS(row_of) ADDRESS(node_of) ADDRESS(nodes) ADDRESS(merges)
        ADDRESS(log_left) ADDRESS(log_right);
    module.def("run", &run);
}

}  // namespace attractor

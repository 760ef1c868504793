// Python bindings of the native loop: numbers are attributes, arrays are set by name, then `run`.
#include "native_loop.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "threads.h"

namespace nb = nanobind;

namespace attractor {

namespace {

using Shape = std::vector<int64_t>;

std::string text(const Shape& shape) {
    std::string result = "(";
    for (size_t axis = 0; axis < shape.size(); axis++) result += (axis ? ", " : "") + std::to_string(shape[axis]);
    return result + ")";
}

// A NativeLoop whose arrays are owned by Python objects: kept alive here, checked for type and contiguity when they are
// set and for shape before every run.
class Loop : public NativeLoop {
    std::unordered_map<std::string, std::pair<nb::object, Shape>> arrays;

public:
    template <auto member>
    static void set(Loop& loop, const std::string& name, nb::handle given) {
        using T = std::remove_pointer_t<std::decay_t<decltype(loop.*member)>>;
        if (given.is_none()) {
            loop.*member = nullptr;
            loop.arrays.erase(name);
            return;
        }
        nb::ndarray<T, nb::c_contig, nb::device::cpu> array;
        if (!nb::try_cast(given, array, false)) {
            const char* type = std::is_same_v<std::remove_const_t<T>, bool>      ? "bool"
                               : std::is_same_v<std::remove_const_t<T>, int64_t> ? "int64"
                                                                                 : "float64";
            throw nb::type_error(
                ("the array '" + name + "' must be a contiguous, writable array of " + type + " on the CPU").c_str());
        }
        loop.*member = array.data();
        Shape shape(array.ndim());
        for (size_t axis = 0; axis < shape.size(); axis++) shape[axis] = int64_t(array.shape(axis));
        loop.arrays[name] = {nb::borrow(given), std::move(shape)};
    }

    bool has(const char* name) const { return arrays.count(name); }

    const Shape& shape_of(const char* name, size_t axes) const {
        const auto found = arrays.find(name);
        if (found == arrays.end()) throw std::invalid_argument("the array '" + std::string(name) + "' is missing");
        const Shape& shape = found->second.second;
        if (shape.size() != axes)
            throw std::invalid_argument("the array '" + std::string(name) + "' must have " + std::to_string(axes) +
                                        " axes, got shape " + text(shape));
        return shape;
    }

    void require(const char* name, const Shape& expected) const {
        const Shape& shape = shape_of(name, expected.size());
        if (shape != expected)
            throw std::invalid_argument("the array '" + std::string(name) + "' must have shape " + text(expected) +
                                        ", got " + text(shape));
    }

    // The stride between members of an array (1 or members, ...): 0 where they share it.
    int64_t stride_of(const char* name, Shape each) const {
        each.insert(each.begin(), shape_of(name, each.size() + 1)[0] == 1 ? 1 : members);
        require(name, each);
        int64_t size = each[0] == 1 ? 0 : 1;
        for (size_t axis = 1; axis < each.size(); axis++) size *= each[axis];
        return size;
    }

    // Take sizes and strides from the arrays, which must agree with each other.
    void prepare() {
        const Shape &points = shape_of("y", 3), &states = shape_of("saved", 4), &projection = shape_of("query", 4);
        members = points[0], width = points[1], d = points[2];
        saves = states[0], columns = states[1], n = states[2];
        heads = projection[1], e = projection[2];
        for (const char* name : {"t", "t_low", "h", "taken", "retried", "counts", "flags", "evaluations", "accepted",
                                 "rejected", "who", "next", "size", "hold", "noted", "last", "anchor_t", "streak",
                                 "rest"})
            require(name, {members});
        if (stability > 0)
            for (const char* name : {"implicit", "wait", "steps", "suspect", "calm"}) require(name, {members});
        for (const char* name : {"y", "f", "anchor"}) require(name, {members, width, d});
        require("inside", {members, 1 + tableau.parts, width, d});
        require("save_times", {saves}), require("saved", {saves, columns, n, d});
        query_stride = stride_of("query", {heads, e, d});
        if (stride_of("key", {heads, e, d}) != query_stride)
            throw std::invalid_argument("queries and keys must be given for each member, or for all of them");
        if (has("factors"))
            factor_stride = stride_of("factors", {heads});
        else
            value_stride = stride_of("value", {heads, d, d});
        if (has("visible")) visible_stride = stride_of("visible", {n, n});
        if (has("masses")) mass_stride = stride_of("masses", {width});
        if (space == Space::ellipsoid) require("matrix", {d, d});
        if (merge > 0) {
            for (const char* name : {"slack", "merges", "nodes"}) require(name, {members});
            for (const char* name : {"masses", "node_of", "log_time", "log_mass", "log_left", "log_right"})
                require(name, {members, width});
            require("row_of", {members, n}), require("near_anchor", {members, width, d});
        }
        for (int64_t row = 0; row < members; row++) {
            if (who[row] < 0 || who[row] >= columns || next[row] < 0)
                throw std::invalid_argument("a member has no place among the saved states");
            if (counts[row] < 1 || counts[row] > width)
                throw std::invalid_argument("counts must lie between 1 and the width");
        }
    }
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

bool is_late(const NativeLoop& loop) { return now() > loop.deadline; }

// Only for a single member: then no thread of the pool is busy.
void run_tasks(const NativeLoop& loop, int64_t tasks, void* context, void (*work)(void*, int64_t, int)) {
    parallel(tasks, int(loop.workers), [&](int64_t task, int worker) { work(context, task, worker); });
}

Terms terms(const std::vector<double>& weights) {
    if (weights.size() > size_t(most_slopes)) throw std::invalid_argument("too many slopes");
    Terms result;
    for (size_t index = 0; index < weights.size(); index++) {
        if (weights[index] == 0) continue;
        result.which[result.count] = int(index);
        result.weight[result.count++] = weights[index];
    }
    if (!result.count) throw std::invalid_argument("a combination of slopes needs a weight that is not 0");
    return result;
}

using Rows = std::vector<std::vector<double>>;

void fill(const Rows& rows, size_t most, Terms* to) {
    if (rows.size() > most) throw std::invalid_argument("too many rows in a tableau");
    for (size_t index = 0; index < rows.size(); index++) to[index] = terms(rows[index]);
}

// inner: rows of stages 1, 2, ...; extra, parts: further slopes for the dense output, and its polynomial from the
// fourth part on
void set_tableau(Loop& loop, int order, const Rows& inner, const std::vector<double>& end, const Rows& errors,
                 const Rows& extra, const Rows& parts) {
    Tableau& tableau = loop.tableau;
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

constexpr std::pair<const char*, Rule> rule_names[] = {
    {"consensus", Rule::consensus}, {"collapsed", Rule::collapse}, {"steady", Rule::steady}};

Rule find_rule(const std::string& name) {
    for (const auto& [known, rule] : rule_names)
        if (name == known) return rule;
    throw std::invalid_argument("the native loop has no rule '" + name + "'");
}

// Termination rules (name, tolerance) in the order of their checks.
void set_rules(Loop& loop, const std::vector<std::pair<std::string, double>>& given) {
    if (given.size() > size_t(rules)) throw std::invalid_argument("too many termination rules");
    loop.consensus = loop.collapse = loop.steady = -1;
    for (int place = 0; place < rules; place++) loop.order[place] = -1;
    for (size_t place = 0; place < given.size(); place++) {
        const auto& [name, tolerance] = given[place];
        const Rule rule = find_rule(name);
        loop.order[place] = int64_t(rule);
        (rule == Rule::consensus ? loop.consensus : rule == Rule::collapse ? loop.collapse : loop.steady) = tolerance;
    }
}

void set_space(Loop& loop, const std::string& name) {
    loop.space = name == "euclidean"   ? Space::euclidean
                 : name == "sphere"    ? Space::sphere
                 : name == "ellipsoid" ? Space::ellipsoid
                                       : throw std::invalid_argument("the native loop has no space '" + name + "'");
}

#define ARRAY(name) \
    { #name, &Loop::set < &NativeLoop::name> }
void set_arrays(Loop& loop, const nb::kwargs& arrays) {
    static const std::unordered_map<std::string, void (*)(Loop&, const std::string&, nb::handle)> setters = {
        ARRAY(query),    ARRAY(key),         ARRAY(value),  ARRAY(factors),  ARRAY(visible),     ARRAY(masses),
        ARRAY(matrix),   ARRAY(y),           ARRAY(f),      ARRAY(t),        ARRAY(t_low),       ARRAY(h),
        ARRAY(taken),    ARRAY(retried),     ARRAY(counts), ARRAY(flags),    ARRAY(evaluations), ARRAY(accepted),
        ARRAY(rejected), ARRAY(save_times),  ARRAY(saved),  ARRAY(who),      ARRAY(next),        ARRAY(size),
        ARRAY(noted),    ARRAY(last),        ARRAY(anchor), ARRAY(anchor_t), ARRAY(streak),      ARRAY(rest),
        ARRAY(inside),   ARRAY(near_anchor), ARRAY(slack),  ARRAY(log_time), ARRAY(log_mass),    ARRAY(row_of),
        ARRAY(node_of),  ARRAY(nodes),       ARRAY(merges), ARRAY(log_left), ARRAY(log_right),   ARRAY(hold),
        ARRAY(implicit), ARRAY(wait),        ARRAY(steps),  ARRAY(suspect),  ARRAY(calm)};
    for (const auto& [key, array] : arrays) {
        const std::string name = nb::cast<std::string>(key);
        const auto setter = setters.find(name);
        if (setter == setters.end()) throw std::invalid_argument("the native loop has no array '" + name + "'");
        setter->second(loop, name, array);
    }
}
#undef ARRAY

// Up to `attempts` steps of every member, for about `seconds`.
void run(Loop& loop, const std::string& set, int threads, double seconds) {
    const InstructionSet& chosen = named(set.c_str());
    loop.prepare();
    loop.is_late = is_late, loop.run_tasks = run_tasks;
    loop.workers = loop.members == 1 ? threads : 1;
    loop.deadline = now() + seconds;
    const size_t bytes = (chosen.loop_scratch(loop) + 127) / 64 * 64;
    const int used = int64_t(threads) < loop.members ? threads : int(loop.members);
    std::unique_ptr<char, decltype(&std::free)> memory(
        static_cast<char*>(std::aligned_alloc(64, bytes * size_t(used > 1 ? used : 1))), &std::free);
    if (!memory) throw std::bad_alloc();
    nb::gil_scoped_release released;
    parallel(loop.members, used,
             [&](int64_t row, int worker) { chosen.loop_member(loop, row, memory.get() + bytes * size_t(worker)); });
}

}  // namespace

void bind_native_loop(nb::module_& module) {
    nb::class_<Loop>(module, "NativeLoop")
        .def(nb::init<>())
        .def("set_tableau", &set_tableau)
        .def("set_rules", &set_rules)
        .def("set_space", &set_space)
        .def("set_arrays", &set_arrays)
        .def("run", &run)
        .def_prop_rw(
            "mode", [](const Loop& loop) { return int(loop.mode); },
            [](Loop& loop, int mode) { loop.mode = Mode(mode); })
        .def_prop_ro("parts", [](const Loop& loop) { return loop.tableau.parts; })
        .def_rw("squared", &NativeLoop::squared)
        .def_rw("averaged", &NativeLoop::averaged)
        .def_rw("causal", &NativeLoop::causal)
        .def_rw("skip_self", &NativeLoop::skip_self)
        .def_rw("diagonal", &NativeLoop::diagonal)
        .def_rw("uniform", &NativeLoop::uniform)
        .def_rw("window", &NativeLoop::window)
        .def_rw("scale", &NativeLoop::scale)
        .def_rw("bias", &NativeLoop::bias)
        .def_rw("radius", &NativeLoop::radius)
        .def_rw("start", &NativeLoop::start)
        .def_rw("end", &NativeLoop::end)
        .def_rw("rtol", &NativeLoop::rtol)
        .def_rw("atol", &NativeLoop::atol)
        .def_rw("first_step", &NativeLoop::first_step)
        .def_rw("fresh", &NativeLoop::fresh)
        .def_rw("attempts", &NativeLoop::attempts)
        .def_rw("safety", &NativeLoop::safety)
        .def_rw("shrink", &NativeLoop::shrink)
        .def_rw("grow", &NativeLoop::grow)
        .def_rw("named_times", &NativeLoop::named_times)
        .def_rw("bound", &NativeLoop::bound)
        .def_rw("noise", &NativeLoop::noise)
        .def_rw("patience", &NativeLoop::patience)
        .def_rw("enough_rest", &NativeLoop::enough_rest)
        .def_rw("calm_growth", &NativeLoop::calm_growth)
        .def_rw("tiny", &NativeLoop::tiny)
        .def_rw("least_time", &NativeLoop::least_time)
        .def_rw("least_move", &NativeLoop::least_move)
        .def_rw("unresolved_spacings", &NativeLoop::unresolved_spacings)
        .def_rw("failed_spacings", &NativeLoop::failed_spacings)
        .def_rw("stability", &NativeLoop::stability)
        .def_rw("stiff_steps", &NativeLoop::stiff_steps)
        .def_rw("calm_steps", &NativeLoop::calm_steps)
        .def_rw("merge", &NativeLoop::merge);
    nb::dict flags, numbers;
    flags["check"] = int(Flag::check), flags["arrived"] = int(Flag::arrived), flags["failed"] = int(Flag::failed);
    flags["interpolated"] = int(Flag::interpolated), flags["at_start"] = int(Flag::at_start);
    flags["stiff"] = int(Flag::stiff);
    for (const auto& [name, rule] : rule_names) numbers[name] = int(rule);
    module.attr("native_loop_flags") = flags;
    module.attr("native_loop_rules") = numbers;
}

}  // namespace attractor

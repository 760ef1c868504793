// Python bindings of the native loop: numbers are attributes, arrays are set by name, then `run`.
#include "native_loop.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
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

#include "step_record.h"
#include "threads.h"

namespace nb = nanobind;

namespace attractor {

namespace {

using Shape = std::vector<int64_t>;

constexpr int64_t groups_of_members = 64;  // whose gradients of shared parameters are added in order

// The accepted steps of every member. States are kept at the start of every step until there are `slots` of them, then
// of every second, of every fourth, and so on.
class StepRecord {
public:
    struct Member {
        std::vector<double> lengths, states;
        int64_t stride = 1, kept = 0;
    };
    const int64_t size, slots;
    std::vector<Member> members;

    StepRecord(int64_t count, int64_t n, int64_t d, int64_t slots_)
        : size(n * d), slots(slots_ < 2 ? 2 : slots_), members(size_t(count)) {}

    void add(int64_t number, double length, const double* y, const double* f) {
        Member& member = members[size_t(number)];
        if (int64_t(member.lengths.size()) % member.stride == 0) {
            if (member.kept == slots) thin(member);
            if (int64_t(member.lengths.size()) % member.stride == 0) {
                member.states.insert(member.states.end(), y, y + size);
                member.states.insert(member.states.end(), f, f + size);
                member.kept++;
            }
        }
        member.lengths.push_back(length);
    }

    std::vector<int64_t> steps() const {
        std::vector<int64_t> counts;
        for (const Member& member : members) counts.push_back(int64_t(member.lengths.size()));
        return counts;
    }

    std::vector<double> lengths_of(int64_t number) const { return members.at(size_t(number)).lengths; }

    int64_t kept() const {
        int64_t most = 0;
        for (const Member& member : members) most = member.kept > most ? member.kept : most;
        return most;
    }

private:
    void thin(Member& member) const {
        const int64_t state = 2 * size;
        member.kept = (member.kept + 1) / 2, member.stride *= 2;
        for (int64_t index = 1; index < member.kept; index++)
            std::copy_n(member.states.begin() + 2 * index * state, state, member.states.begin() + index * state);
        member.states.resize(size_t(member.kept * state));
    }
};

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
        take(loop, loop.*member, name, given);
    }

    template <auto member>
    static void set_random(Loop& loop, const std::string& name, nb::handle given) {
        take(loop, loop.random.*member, name, given);
    }

    template <class T>
    static void take(Loop& loop, T*& pointer, const std::string& name, nb::handle given) {
        if (given.is_none()) {
            pointer = nullptr;
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
        pointer = array.data();
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

    // Strides of the parameters, masks and positions; sizes are set.
    void prepare_law() {
        const Shape& projection = shape_of("query", 4);
        heads = projection[1], e = projection[2];
        query_stride = stride_of("query", {heads, e, d});
        if (stride_of("key", {heads, e, d}) != query_stride)
            throw std::invalid_argument("queries and keys must be given for each member, or for all of them");
        if (has("factors"))
            factor_stride = stride_of("factors", {heads});
        else
            value_stride = stride_of("value", {heads, d, d});
        if (has("query_bias")) query_bias_stride = stride_of("query_bias", {heads, e});
        if (has("key_bias")) key_bias_stride = stride_of("key_bias", {heads, e});
        if (has("value_bias")) value_bias_stride = stride_of("value_bias", {heads, d});
        if (has("value_bias") && has("factors")) throw std::invalid_argument("values with a bias need a matrix");
        if (has("output_bias")) require("output_bias", {d});
        if (has("turns")) {
            pairs = shape_of("turns", 4)[2];
            turn_stride = stride_of("turns", {n, pairs, 2});
            if (2 * pairs > e) throw std::invalid_argument("more coordinates are turned than a head has");
            if (merge > 0) throw std::invalid_argument("tokens with positions cannot be merged");
        }
        if (has("visible")) visible_stride = stride_of("visible", {n, n});
        if (space == Space::ellipsoid) require("matrix", {d, d});
    }

    // Take sizes and strides from the arrays, which must agree with each other.
    void prepare() {
        prepare_sizes();
        for (const char* name : {"t", "t_low", "h", "taken", "retried", "counts", "flags", "evaluations", "accepted",
                                 "rejected", "who", "next", "size", "hold", "noted", "last", "anchor_t", "streak",
                                 "rest"})
            require(name, {members});
        if (stability > 0)
            for (const char* name : {"implicit", "wait", "steps", "suspect", "calm"}) require(name, {members});
        prepare_system();
        require("anchor", {members, width, d});
        require("inside", {members, 1 + tableau.parts, width, d});
        require("save_times", {saves});
        if (merge > 0) {
            for (const char* name : {"slack", "merges", "nodes"}) require(name, {members});
            for (const char* name : {"masses", "node_of", "log_time", "log_mass", "log_left", "log_right"})
                require(name, {members, width});
            require("row_of", {members, n}), require("near_anchor", {members, width, d});
        }
        for (int64_t row = 0; row < members; row++)
            if (next[row] < 0) throw std::invalid_argument("a member has no place among the saved states");
    }

    // The same for steps with noise.
    void prepare_noise() {
        prepare_sizes(), prepare_system();
        if (width != n) throw std::invalid_argument("tokens with noise are not merged");
        require("draws", {members}), require("done", {members});
        if (random.count < 1) throw std::invalid_argument("there must be steps to take");
        require("save_rows", {random.count});
        const Shape &shape = shape_of("amplitudes", 3), &each = shape_of("common", 1);
        require("amplitudes", {shape[0] == 1 ? 1 : random.count, shape[1] == 1 ? 1 : members, shape[2] == 1 ? 1 : n});
        require("common", {each[0] == 1 ? 1 : random.count});
        random.amplitude_steps = shape[0] == 1 ? 0 : shape[1] * shape[2];
        random.amplitude_members = shape[1] == 1 ? 0 : shape[2];
        random.amplitude_tokens = shape[2] == 1 ? 0 : 1;
        random.common_steps = each[0] == 1 ? 0 : 1;
        if (space == Space::ellipsoid && !random.layer) require("inverse_root", {d, d});
        for (int64_t step = 0; step < random.count; step++)
            if (random.save_rows[step] >= saves) throw std::invalid_argument("a step has no place among the saved states");
    }

    void prepare_sizes() {
        const Shape &points = shape_of("y", 3), &states = shape_of("saved", 4);
        members = points[0], width = points[1], d = points[2];
        saves = states[0], columns = states[1], n = states[2];
    }

    void prepare_system() {
        for (const char* name : {"counts", "flags", "evaluations", "who"}) require(name, {members});
        for (const char* name : {"y", "f"}) require(name, {members, width, d});
        require("saved", {saves, columns, n, d});
        prepare_law();
        if (has("masses")) mass_stride = stride_of("masses", {width});
        for (int64_t row = 0; row < members; row++) {
            if (who[row] < 0 || who[row] >= columns)
                throw std::invalid_argument("a member has no place among the saved states");
            if (counts[row] < 1 || counts[row] > width)
                throw std::invalid_argument("counts must lie between 1 and the width");
        }
    }

    // Check the arrays of a run's gradients against its record.
    void prepare_gradient(const StepRecord& record) {
        const Shape& points = shape_of("grad_start", 3);
        members = points[0], n = width = points[1], d = points[2];
        if (record.size != n * d || int64_t(record.members.size()) != members)
            throw std::invalid_argument("the record of steps is that of another run");
        counts_of_members.assign(size_t(members), n);
        counts = counts_of_members.data();
        prepare_law();
        mass_stride = has("masses") ? stride_of("masses", {n}) : 0;
        const int64_t groups = members < groups_of_members ? members : groups_of_members;
        auto check = [&](const char* name, int64_t stride, Shape each) {
            if (!has(name)) return;
            each.insert(each.begin(), stride ? members : groups);
            require(name, each);
        };
        check("grad_masses", mass_stride, {n});
        check("grad_query", query_stride, {heads, e, d}), check("grad_key", query_stride, {heads, e, d});
        check("grad_value", value_stride, {heads, d, d});
        check("grad_query_bias", query_bias_stride, {heads, e}), check("grad_key_bias", key_bias_stride, {heads, e});
        check("grad_value_bias", value_bias_stride, {heads, d});
        check("grad_output_bias", 0, {d}), check("grad_scale", 0, {});
        if ((grad_value && factors) || (grad_masses && !masses))
            throw std::invalid_argument("a gradient of a parameter that is not given");
    }

    // Where a member of a group adds its gradients.
    ParameterGradients gradients_of(int64_t row, int64_t group) const {
        auto place = [&](double* array, int64_t stride, int64_t size) {
            return array ? array + (stride ? row : group) * size : nullptr;
        };
        ParameterGradients to;
        to.masses = place(grad_masses, mass_stride, n);
        to.query = place(grad_query, query_stride, heads * e * d), to.key = place(grad_key, query_stride, heads * e * d);
        to.value = place(grad_value, value_stride, heads * d * d);
        to.query_bias = place(grad_query_bias, query_bias_stride, heads * e);
        to.key_bias = place(grad_key_bias, key_bias_stride, heads * e);
        to.value_bias = place(grad_value_bias, value_bias_stride, heads * d);
        to.output_bias = place(grad_output_bias, 0, d), to.scale = place(grad_scale, 0, 1);
        return to;
    }

    std::vector<int64_t> counts_of_members;  // of a run whose gradients are computed
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

bool is_late(const NativeLoop& loop) { return now() > loop.deadline; }

void record_step(const NativeLoop& loop, int64_t row, double length, const double* y, const double* f) {
    static_cast<StepRecord*>(loop.steps_of)->add(loop.who[row], length, y, f);
}

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
#define RANDOM(name) \
    { #name, &Loop::set_random < &NoiseOptions::name> }
void set_arrays(Loop& loop, const nb::kwargs& arrays) {
    static const std::unordered_map<std::string, void (*)(Loop&, const std::string&, nb::handle)> setters = {
        ARRAY(query),    ARRAY(key),         ARRAY(value),  ARRAY(factors),  ARRAY(visible),     ARRAY(masses),
        ARRAY(matrix),   ARRAY(y),           ARRAY(f),      ARRAY(t),        ARRAY(t_low),       ARRAY(h),
        ARRAY(taken),    ARRAY(retried),     ARRAY(counts), ARRAY(flags),    ARRAY(evaluations), ARRAY(accepted),
        ARRAY(rejected), ARRAY(save_times),  ARRAY(saved),  ARRAY(who),      ARRAY(next),        ARRAY(size),
        ARRAY(noted),    ARRAY(last),        ARRAY(anchor), ARRAY(anchor_t), ARRAY(streak),      ARRAY(rest),
        ARRAY(inside),   ARRAY(near_anchor), ARRAY(slack),  ARRAY(log_time), ARRAY(log_mass),    ARRAY(row_of),
        ARRAY(node_of),  ARRAY(nodes),       ARRAY(merges), ARRAY(log_left), ARRAY(log_right),   ARRAY(hold),
        ARRAY(implicit), ARRAY(wait),        ARRAY(steps),  ARRAY(suspect),  ARRAY(calm),
        ARRAY(query_bias), ARRAY(key_bias), ARRAY(value_bias), ARRAY(output_bias), ARRAY(turns),
        ARRAY(grad_start), ARRAY(grad_masses), ARRAY(grad_query), ARRAY(grad_key), ARRAY(grad_value),
        ARRAY(grad_query_bias), ARRAY(grad_key_bias), ARRAY(grad_value_bias), ARRAY(grad_output_bias),
        ARRAY(grad_scale),
        RANDOM(amplitudes), RANDOM(common), RANDOM(inverse_root), RANDOM(draws), RANDOM(save_rows), RANDOM(done)};
    for (const auto& [key, array] : arrays) {
        const std::string name = nb::cast<std::string>(key);
        const auto setter = setters.find(name);
        if (setter == setters.end()) throw std::invalid_argument("the native loop has no array '" + name + "'");
        setter->second(loop, name, array);
    }
}
#undef ARRAY
#undef RANDOM

using Scratch = size_t (*)(const NativeLoop&);
using Member = void (*)(const NativeLoop&, int64_t row, void* scratch);

// Call `member` for every row, on several threads.
void for_members(Loop& loop, int threads, Scratch scratch, Member member) {
    loop.run_tasks = run_tasks;
    loop.workers = loop.members == 1 ? threads : 1;
    const size_t bytes = (scratch(loop) + 127) / 64 * 64;
    const int used = int64_t(threads) < loop.members ? threads : int(loop.members);
    std::unique_ptr<char, decltype(&std::free)> memory(
        static_cast<char*>(std::aligned_alloc(64, bytes * size_t(used > 1 ? used : 1))), &std::free);
    if (!memory) throw std::bad_alloc();
    nb::gil_scoped_release released;
    parallel(loop.members, used,
             [&](int64_t row, int worker) { member(loop, row, memory.get() + bytes * size_t(worker)); });
}

// Up to `attempts` steps of every member, for about `seconds`.
void run(Loop& loop, const std::string& set, int threads, double seconds) {
    const InstructionSet& chosen = named(set.c_str());
    loop.prepare();
    const StepRecord* record = static_cast<StepRecord*>(loop.steps_of);
    if (record && (record->size != loop.n * loop.d || loop.width != loop.n ||
                   int64_t(record->members.size()) < loop.columns))
        throw std::invalid_argument("the record of steps is that of another run");
    loop.record = record ? record_step : nullptr;
    loop.is_late = is_late, loop.deadline = now() + seconds;
    for_members(loop, threads, chosen.loop_scratch, chosen.loop_member);
}

// `count` steps with noise of every member.
void run_noise(Loop& loop, const std::string& set, int threads) {
    const InstructionSet& chosen = named(set.c_str());
    loop.prepare_noise();
    for_members(loop, threads, chosen.noisy_scratch, chosen.noisy_member);
}

void set_noise(Loop& loop, const std::string& method, bool layer, uint64_t seed) {
    loop.random.method = method == "euler"     ? NoiseMethod::euler
                         : method == "strang2" ? NoiseMethod::strang2
                                               : throw std::invalid_argument("the native loop has no method '" + method +
                                                                             "' for noise");
    if (layer && method != "euler") throw std::invalid_argument("noise of layers needs the method 'euler'");
    loop.random.layer = layer, loop.random.seed = seed;
}

void set_steps(Loop& loop, int64_t first, int64_t count, double step) {
    loop.random.first = first, loop.random.count = count, loop.random.step = step;
}

using Integers = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Truths = nb::ndarray<const bool, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using States = nb::ndarray<const double, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

// Where states that a run returned lie in its steps: see `MemberSteps`. Rows of a member come in the order of time, its
// last state at the end; times of steps are added as in integration.h.
void locate(const StepRecord& record, double start, double end, const Integers& member, const Numbers& time,
            const Truths& last, nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& steps,
            nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>& places) {
    struct Clock {
        double t, low = 0;
        int64_t step = -1;
    };
    const size_t count = member.shape(0);
    if (time.shape(0) != count || last.shape(0) != count || steps.shape(0) != count || places.shape(0) != count)
        throw std::invalid_argument("states and their times do not belong together");
    std::vector<Clock> clocks(record.members.size(), Clock{start});
    for (size_t row = 0; row < count; row++) {
        const size_t number = size_t(member.data()[row]);
        const std::vector<double>& lengths = record.members.at(number).lengths;
        Clock& clock = clocks[number];
        const double when = time.data()[row];
        while (clock.step + 1 < int64_t(lengths.size()) && (last.data()[row] || clock.t < when)) {
            const double length = lengths[size_t(++clock.step)];
            const bool there = length == (end - clock.t) - clock.low;
            const double move = length + clock.low, total = clock.t + move;
            clock.low = there ? 0 : (clock.t - (total - (total - clock.t))) + (move - (total - clock.t));
            clock.t = there ? end : total;
        }
        const double lag = last.data()[row] ? when - clock.t : (when - clock.t) - clock.low;
        const double place = clock.step < 0 ? double(last.data()[row])
                             : lag < 0      ? 1 + lag / lengths[size_t(clock.step)]
                                            : 1;
        steps.data()[row] = clock.step, places.data()[row] = place > 0 ? place : 0;
    }
}

// Gradients of a function of states that were returned, whose gradients are `grads` and whose places `locate` found.
void differentiate(Loop& loop, StepRecord& record, const std::string& set, int threads, const Integers& member,
                   const Integers& step, const Numbers& place, const States& grads) {
    const InstructionSet& chosen = named(set.c_str());
    loop.prepare_gradient(record);
    const size_t count = grads.shape(0);
    if (member.shape(0) != count || step.shape(0) != count || place.shape(0) != count ||
        int64_t(grads.shape(1)) != loop.n || int64_t(grads.shape(2)) != loop.d)
        throw std::invalid_argument("states and their gradients do not belong together");
    struct Reads {
        std::vector<int64_t> steps, rows;
        std::vector<double> places;
    };
    std::vector<Reads> reads(record.members.size());
    for (size_t row = 0; row < count; row++) {
        Reads& to = reads.at(size_t(member.data()[row]));
        to.steps.push_back(step.data()[row]), to.places.push_back(place.data()[row]);
        to.rows.push_back(int64_t(row));
    }
    loop.run_tasks = run_tasks;
    loop.workers = loop.members == 1 ? threads : 1;
    const int64_t state = 2 * record.size, budget = (int64_t(16) << 20) / int64_t(sizeof(double)) / state;
    const int64_t buffer = budget < 8 ? 8 : budget > 256 ? 256 : budget;
    std::vector<MemberSteps> steps(record.members.size());
    MemberSteps deepest;
    deepest.buffer = buffer;
    for (size_t number = 0; number < steps.size(); number++) {
        const StepRecord::Member& from = record.members[number];
        MemberSteps& to = steps[number];
        to.steps = int64_t(from.lengths.size()), to.stride = from.stride, to.kept = from.kept, to.buffer = buffer;
        to.lengths = from.lengths.data(), to.states = from.states.data();
        to.reads = int64_t(reads[number].rows.size());
        to.read_step = reads[number].steps.data(), to.read_row = reads[number].rows.data();
        to.read_place = reads[number].places.data(), to.read_grads = grads.data();
        for (int64_t reach = buffer; reach < to.stride; reach *= buffer) to.depth++;
        deepest.depth = to.depth > deepest.depth ? to.depth : deepest.depth;
    }
    const size_t bytes = (chosen.gradient_scratch(loop, deepest) + 127) / 64 * 64;
    const int64_t groups = loop.members < groups_of_members ? loop.members : groups_of_members;
    const int used = int64_t(threads) < groups ? threads : int(groups);
    std::unique_ptr<char, decltype(&std::free)> memory(
        static_cast<char*>(std::aligned_alloc(64, bytes * size_t(used > 1 ? used : 1))), &std::free);
    if (!memory) throw std::bad_alloc();
    nb::gil_scoped_release released;
    parallel(groups, used, [&](int64_t group, int worker) {
        const int64_t first = group * loop.members / groups, stop = (group + 1) * loop.members / groups;
        for (int64_t row = first; row < stop; row++)
            chosen.gradient_member(loop, row, steps[size_t(row)], loop.gradients_of(row, group),
                                   loop.grad_start + row * record.size, memory.get() + bytes * size_t(worker));
    }, 1);
}

}  // namespace

void bind_native_loop(nb::module_& module) {
    nb::class_<StepRecord>(module, "StepRecord")
        .def(nb::init<int64_t, int64_t, int64_t, int64_t>())
        .def("steps", &StepRecord::steps)
        .def("kept", &StepRecord::kept)
        .def("locate", &locate)
        .def("lengths_of", &StepRecord::lengths_of);
    module.attr("gradient_groups") = groups_of_members;
    nb::class_<Loop>(module, "NativeLoop")
        .def(nb::init<>())
        .def("set_tableau", &set_tableau)
        .def("set_rules", &set_rules)
        .def("set_space", &set_space)
        .def("set_arrays", &set_arrays)
        .def("set_noise", &set_noise)
        .def("set_steps", &set_steps)
        .def("run", &run)
        .def("run_noise", &run_noise)
        .def("set_record",
             [](Loop& loop, StepRecord* record) { loop.steps_of = record; }, nb::arg().none(), nb::keep_alive<1, 2>())
        .def("differentiate", &differentiate)
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

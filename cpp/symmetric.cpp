#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "shared_memory.h"
#include "symmetric_forward.h"
#include "threads.h"

namespace attractor {
namespace {

constexpr int64_t padding = 64;  // the most rows that a kernel processes at once

size_t rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Memory for one call. A thread keeps it for its next call unless it is large: returning pages to the system stops all
// threads, which can take longer than the call. `use` distinguishes buffers of one call; a nested call, from a signal
// handler, allocates its own.
class Memory {
    static constexpr size_t much = size_t(1) << 24;
    using Bytes = std::unique_ptr<char, decltype(&std::free)>;
    struct Kept {
        Bytes memory{nullptr, &std::free};
        size_t bytes = 0;
        bool taken = false;
    };
    Bytes own{nullptr, &std::free};
    Kept* borrowed = nullptr;
    char* start;

    static Bytes fresh(size_t bytes) {
        Bytes memory(static_cast<char*>(std::aligned_alloc(64, rounded(bytes + 1))), &std::free);
        if (!memory) throw std::bad_alloc();
        return memory;
    }

public:
    enum Use { tokens, sums, uses };

    Memory(Use use, size_t bytes) {
        thread_local Kept kept[uses];
        Kept& here = kept[use];
        if (bytes > much || here.taken) {
            own = fresh(bytes);
            start = own.get();
            return;
        }
        if (here.bytes < bytes) {
            here.bytes = 0, here.memory.reset();
            here.memory = fresh(bytes), here.bytes = bytes;
        }
        start = here.memory.get();
        here.taken = true, borrowed = &here;
    }
    ~Memory() {
        if (borrowed) borrowed->taken = false;
    }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    char* operator+(size_t offset) const { return start + offset; }
};

// Sizes of the buffers of one member.
struct Room {
    size_t rows, keys, scratch;

    Room(const SymmetricKernels& kernels, const Symmetric& one)
        : rows(rounded(kernels.row_bytes(one))),
          keys(rounded(kernels.key_bytes(one))),
          scratch(rounded(kernels.scratch(one))) {}

    size_t tokens() const { return rows + keys; }

    void give(Symmetric& one, char* memory) const { one.rows = memory, one.keys = memory + rows; }
};

int64_t blocks_of(const Symmetric& one) { return (one.n + one.block - 1) / one.block; }

// Pairs of blocks in rounds: in round r those whose numbers add up to r modulo the (odd) number of blocks, so that
// every block is in exactly one pair of a round. Contributions to a block are added in the order of the rounds,
// whichever thread computes them. Tasks are divided into parts of about equal work, with separate sums.
class Rounds {
    const int64_t n, size, blocks, odd;
    std::vector<int32_t> parts;  // part of each task; -1: one block is the dummy that makes their number odd

public:
    Rounds(const Symmetric& one, int count) : n(one.n), size(one.block), blocks(blocks_of(one)), odd(blocks | 1) {
        std::vector<double> work(size_t(count), 0.0);
        for (int64_t task = 0; task < tasks(); task++) {
            const auto [first, second] = pair(task);
            const auto least = std::min_element(work.begin(), work.end());
            parts.push_back(second < blocks ? int32_t(least - work.begin()) : -1);
            if (second < blocks) *least += (first == second ? 0.55 : 1.0) * tokens(first) * tokens(second);
        }
    }

    int64_t tasks() const { return odd * ((odd + 1) / 2); }
    static int64_t turns(const Symmetric& one) { return blocks_of(one) | 1; }

    // compute(one, two, part) returns whether there is something to add; `turns` are zero before the first task, every
    // block is cleared before the first addition. wait(ready) returns false if a process is lost, and then so does this
    // function
    template <class Compute, class Clear, class Add, class Wait>
    bool run(int64_t task, std::atomic<int64_t>* turns, Compute compute, Clear clear, Add add, Wait wait) const {
        const int64_t round = task / ((odd + 1) / 2);
        const auto [one, two] = pair(task);
        const int part = parts[size_t(task)];
        const bool done = part >= 0 && compute(one, two, part);
        for (const int64_t block : {one, two})
            if (!wait([&] { return turns[block].load(std::memory_order_acquire) == round; })) return false;
        if (round == 0) {
            clear(one);
            if (two != one && two < blocks) clear(two);
        }
        if (done) add(one, two, part);
        turns[one].store(round + 1, std::memory_order_release);
        turns[two].store(round + 1, std::memory_order_release);
        return true;
    }

private:
    double tokens(int64_t block) const { return double(std::min(size, n - block * size)); }

    // The first is not larger. First those that add up to the round, then those that add up to it and the number of
    // blocks.
    std::pair<int64_t, int64_t> pair(int64_t task) const {
        const int64_t round = task / ((odd + 1) / 2), index = task % ((odd + 1) / 2), low = round / 2 + 1;
        const int64_t one = index < low ? index : round + 1 + index - low;
        return {one, index < low ? round - one : round + odd - one};
    }
};

// The pairs of one member: its tokens in the layout of the kernels, and the execution of a task.
class Work {
    const SymmetricKernels& kernels;
    const Room room;
    const Memory memory;
    Symmetric one;

public:
    const Rounds rounds;

    Work(const SymmetricKernels& kernels_, const Problem& problem, int64_t member, const Symmetric& one_, int threads,
         int parts)
        : kernels(kernels_),
          room(kernels_, one_),
          memory(Memory::tokens, room.tokens() + room.scratch * size_t(threads)),
          one(one_),
          rounds(one_, parts) {
        room.give(one, memory + 0);
        parallel(blocks_of(one), threads, [&](int64_t block, int) { kernels.pack(problem, member, one, block); });
    }

    // Run a task if it belongs to `part` (-1: to any, each with separate sums). `zeros`: the sums are already zero.
    template <class Wait>
    bool run(int64_t task, int worker, int part, bool zeros, double* sums, std::atomic<int64_t>* turns,
             Wait wait) const {
        char* scratch = memory + room.tokens() + room.scratch * size_t(worker);
        const int64_t stride = part < 0 ? (one.d + 1) * one.padded : 0;
        auto compute = [&](int64_t first, int64_t second, int of) {
            if (part >= 0 && part != of) return false;
            kernels.compute(one, first, second, scratch);
            return true;
        };
        auto at = [&](int of) {
            Symmetric here = one;
            here.sums = sums + of * stride;
            return here;
        };
        auto clear = [&](int64_t block) {
            for (int of = 0; !zeros && of < (part < 0 ? 2 : 1); of++) kernels.clear(at(of), block);
        };
        auto add = [&](int64_t first, int64_t second, int of) { kernels.add(at(of), first, second, scratch); };
        return rounds.run(task, turns, compute, clear, add, wait);
    }
};

// The sums of one of `parts`, or of both of two (-1) one after the other, into `sums`.
void accumulate(const SymmetricKernels& kernels, const Problem& problem, int64_t member, const Symmetric& one,
                int threads, int part, int parts, double* sums) {
    const Work work(kernels, problem, member, one, threads, parts);
    std::vector<std::atomic<int64_t>> turns(static_cast<size_t>(Rounds::turns(one)));
    for (auto& turn : turns) turn = 0;
    const auto wait = [](auto ready) {
        while (!ready()) sched_yield();
        return true;
    };
    parallel(
        work.rounds.tasks(), threads,
        [&](int64_t task, int worker) { work.run(task, worker, part, false, sums, turns.data(), wait); }, 1);
}

void write(const SymmetricKernels& kernels, const Problem& problem, int64_t member, Symmetric one, int threads,
           double* sums, const double* others = nullptr) {
    one.sums = sums, one.others = others;
    parallel(blocks_of(one), threads, [&](int64_t block, int) { kernels.write(problem, member, one, block); });
}

int64_t size_of(const Symmetric& one) { return (one.d + 1) * one.padded; }

// In two parts, as by two processes, so that the bits are the same.
void one_large(const SymmetricKernels& kernels, const Problem& problem, int64_t member, const Symmetric& one,
               int threads) {
    const Memory memory(Memory::sums, sizeof(double) * size_t(2 * size_of(one)));
    double* sums = reinterpret_cast<double*>(memory + 0);
    accumulate(kernels, problem, member, one, threads, -1, 2, sums);
    write(kernels, problem, member, one, threads, sums, sums + size_of(one));
}

// The same by several processes, which take tasks from a common counter. False if a process is lost.
bool one_shared(const SymmetricKernels& kernels, const Problem& problem, int64_t member, const Symmetric& one,
                int threads, SharedMemory& shared) {
    const Work work(kernels, problem, member, one, threads, 2);
    const SharedMemory::Area area = shared.begin(Rounds::turns(one), 2 * size_of(one));
    const auto wait = [&](auto ready) { return shared.wait(ready); };
    const int64_t tasks = work.rounds.tasks();
    const auto take = [&](int64_t, int worker) {
        for (int64_t task; (task = area.next->fetch_add(1, std::memory_order_relaxed)) < tasks;) {
            if (!work.run(task, worker, -1, true, area.sums, area.turns, wait)) return;
            area.done->fetch_add(1, std::memory_order_release);
        }
        // the calling thread waits here, because only it can handle signals
        if (worker == 0) shared.wait([&] { return area.done->load(std::memory_order_acquire) == tasks; });
    };
    parallel(threads, threads, take, 1);
    if (!shared.end(area, tasks)) return false;
    write(kernels, problem, member, one, threads, area.sums, area.sums + size_of(one));
    return true;
}

void many_small(const SymmetricKernels& kernels, const Problem& problem, const std::vector<Symmetric>& all,
                int threads) {
    const Room room(kernels, all[0]);
    const size_t each = room.tokens() + room.scratch;
    const Memory memory(Memory::tokens, each * size_t(threads));
    parallel(problem.members, threads, [&](int64_t member, int worker) {
        Symmetric one = all[size_t(member)];
        char* own = memory + each * size_t(worker);
        room.give(one, own);
        kernels.small(problem, member, one, own + room.tokens());
    });
}

// Descriptions of all members; empty if one of them is not symmetric.
std::vector<Symmetric> recognise(const SymmetricKernels& kernels, const Problem& problem, int threads) {
    const bool exponentials = problem.mode == Mode::softmax || problem.mode == Mode::exponential;
    const bool masked = problem.causal || problem.window || problem.visible.data || problem.offset;
    if (!exponentials || masked || problem.n != problem.m || problem.e != problem.c || problem.e < 2) return {};
    Symmetric one;
    one.n = problem.n, one.d = problem.e, one.block = kernels.block(problem), one.skip_self = problem.skip_self;
    if (!one.block) return {};
    one.padded = (one.n + padding - 1) / padding * padding;
    std::vector<Symmetric> all(size_t(problem.members), one);
    std::atomic<bool> fine{true};
    parallel(problem.members, problem.members * problem.n > 20000 ? threads : 1, [&](int64_t member, int) {
        if (fine && !kernels.recognise(problem, member, &all[size_t(member)])) fine = false;
    });
    return fine ? all : std::vector<Symmetric>{};
}

}  // namespace

bool symmetric_forward(const SymmetricKernels& kernels, const Problem& problem, int threads) {
    // waking threads costs about as long as this many pairs
    if (double(problem.members) * double(problem.n) * double(problem.n) < 1e5) threads = 1;
    const std::vector<Symmetric> all = recognise(kernels, problem, threads);
    if (all.empty()) return false;
    if (problem.n <= all[0].block) {
        many_small(kernels, problem, all, threads);
    } else {
        for (int64_t member = 0; member < problem.members; member++)
            one_large(kernels, problem, member, all[size_t(member)], threads);
    }
    return true;
}

bool symmetric_partial_sums(const SymmetricKernels& kernels, const Problem& problem, int threads, int part, int parts,
                            double* sums) {
    const std::vector<Symmetric> all = symmetric_members(kernels, problem, threads);
    if (all.empty()) return false;
    for (int64_t member = 0; member < problem.members; member++)
        accumulate(kernels, problem, member, all[size_t(member)], threads, part, parts,
                   sums + member * size_of(all[0]));
    return true;
}

void symmetric_finish(const SymmetricKernels& kernels, const Problem& problem, int threads, double* sums) {
    const std::vector<Symmetric> all = recognise(kernels, problem, threads);
    if (all.empty()) throw std::invalid_argument("the queries are not a multiple of the keys");
    for (int64_t member = 0; member < problem.members; member++)
        write(kernels, problem, member, all[size_t(member)], threads, sums + member * size_of(all[0]));
}

std::vector<Symmetric> symmetric_members(const SymmetricKernels& kernels, const Problem& problem, int threads) {
    std::vector<Symmetric> all = recognise(kernels, problem, threads);
    if (!all.empty() && problem.n <= all[0].block) all.clear();
    return all;
}

int64_t symmetric_shared_bytes(const Symmetric& one) {
    return SharedMemory::bytes_for(Rounds::turns(one), 2 * size_of(one));
}

bool symmetric_shared(const SymmetricKernels& kernels, const Problem& problem, int threads,
                      const std::vector<Symmetric>& all, SharedMemory& shared) {
    for (int64_t member = 0; member < problem.members; member++)
        if (!one_shared(kernels, problem, member, all[size_t(member)], threads, shared)) return false;
    return true;
}

}  // namespace attractor

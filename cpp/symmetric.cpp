#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "symmetric_forward.h"
#include "threads.h"

namespace attractor {
namespace {

constexpr int64_t smallest = 24;  // tokens below which too much of a tile would be padding
constexpr int64_t padding = 64;   // the most rows that a kernel takes side by side

size_t rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }

class Memory {
    std::unique_ptr<char, decltype(&std::free)> memory;

public:
    explicit Memory(size_t bytes) : memory(static_cast<char*>(std::aligned_alloc(64, rounded(bytes + 1))), &std::free) {
        if (!memory) throw std::bad_alloc();
    }
    char* operator+(size_t offset) const { return memory.get() + offset; }
};

// The room that one member takes, and where its parts lie.
struct Room {
    size_t rows, keys, sums, scratch;

    Room(const SymmetricKernels& kernels, const Symmetric& one)
        : rows(rounded(kernels.row_bytes(one.d) * size_t(one.padded))),
          keys(rounded(kernels.key_bytes(one.d) * size_t(one.padded))),
          sums(rounded(sizeof(double) * size_t((one.d + 1) * one.padded))),
          scratch(rounded(kernels.scratch(one.d))) {}

    size_t shared() const { return rows + keys + sums; }

    void give(Symmetric& one, char* memory) const {
        one.rows = memory, one.keys = memory + rows, one.sums = reinterpret_cast<double*>(memory + rows + keys);
    }
};

// Pairs of blocks in rounds: in round r those whose numbers add up to r modulo the (odd) number of blocks, so that every block
// is in exactly one pair of a round. What a block gets is added in the order of the rounds, whoever computes it.
class Rounds {
    const int64_t blocks, odd;
    std::vector<std::atomic<int64_t>> turns;

public:
    explicit Rounds(int64_t blocks_) : blocks(blocks_), odd(blocks_ | 1), turns(size_t(odd)) {
        for (auto& turn : turns) turn = 0;
    }

    int64_t tasks() const { return odd * ((odd + 1) / 2); }

    template <class Compute, class Add>
    void run(int64_t task, Compute compute, Add add) {
        const int64_t round = task / ((odd + 1) / 2), index = task % ((odd + 1) / 2);
        // first those that add up to the round, then those that add up to it and the number of blocks
        const int64_t low = round / 2 + 1, one = index < low ? index : round + 1 + index - low;
        const int64_t two = index < low ? round - one : round + odd - one;
        const bool real = two < blocks;  // one is not larger; an even number of blocks has an empty one at the end
        if (real) compute(one, two);
        wait(one, round), wait(two, round);
        if (real) add(one, two);
        turns[size_t(one)].store(round + 1, std::memory_order_release);
        turns[size_t(two)].store(round + 1, std::memory_order_release);
    }

private:
    void wait(int64_t block, int64_t round) {
        while (turns[size_t(block)].load(std::memory_order_acquire) != round) sched_yield();
    }
};

void one_large(const SymmetricKernels& kernels, const Problem& problem, int64_t member, Symmetric& one, int threads) {
    const Room room(kernels, one);
    const int64_t blocks = (one.n + Symmetric::block - 1) / Symmetric::block;
    Memory memory(room.shared() + room.scratch * size_t(threads));
    room.give(one, memory + 0);
    std::fill_n(one.sums, (one.d + 1) * one.padded, 0.0);
    parallel(blocks, threads, [&](int64_t block, int) { kernels.pack(problem, member, one, block); });
    Rounds rounds(blocks);
    auto work = [&](int64_t task, int worker) {
        char* scratch = memory + room.shared() + room.scratch * size_t(worker);
        rounds.run(task, [&](int64_t first, int64_t second) { kernels.compute(one, first, second, scratch); },
                   [&](int64_t first, int64_t second) { kernels.add(one, first, second, scratch); });
    };
    parallel(rounds.tasks(), threads, work, 1);
    parallel(blocks, threads, [&](int64_t block, int) { kernels.write(problem, member, one, block); });
}

void many_small(const SymmetricKernels& kernels, const Problem& problem, std::vector<Symmetric>& all, int threads) {
    const Room room(kernels, all[0]);
    const size_t each = room.shared() + room.scratch;
    Memory memory(each * size_t(threads));
    parallel(problem.members, threads, [&](int64_t member, int worker) {
        Symmetric& one = all[size_t(member)];
        char* own = memory + each * size_t(worker);
        room.give(one, own);
        kernels.small(problem, member, one, own + room.shared());
    });
}

}  // namespace

bool symmetric_forward(const Kernels& kernels, const Problem& problem, int threads) {
    const bool exponentials = problem.mode == Mode::softmax || problem.mode == Mode::exponential;
    if (!exponentials || problem.causal || problem.window || problem.visible.data || problem.offset) return false;
    if (problem.n != problem.m || problem.e != problem.c || problem.e < 2 || problem.e > 4 || problem.n < smallest) return false;
    if (!problem.output.data) return false;
    Symmetric one;
    one.n = problem.n, one.d = problem.e, one.skip_self = problem.skip_self;
    one.padded = (one.n + padding - 1) / padding * padding;
    std::vector<Symmetric> all(size_t(problem.members), one);
    // waking threads costs about as long as this many pairs
    if (double(problem.members) * double(problem.n) * double(problem.n) < 1e5) threads = 1;
    std::atomic<bool> fine{true};
    parallel(problem.members, problem.members * problem.n > 20000 ? threads : 1, [&](int64_t member, int) {
        if (fine && !kernels.symmetric.recognise(problem, member, &all[size_t(member)])) fine = false;
    });
    if (!fine) return false;
    if (problem.n <= Symmetric::block) {
        many_small(kernels.symmetric, problem, all, threads);
    } else {
        for (int64_t member = 0; member < problem.members; member++)
            one_large(kernels.symmetric, problem, member, all[size_t(member)], threads);
    }
    return true;
}

}  // namespace attractor

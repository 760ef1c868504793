// Runs a CUDA kernel on a CPU: every thread is a fiber, and a barrier switches between them. Blocks run one after another, or side by side
// where they wait for each other (GRID).
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#define EMULATED
#define DEVICE inline
#define CONSTANT static const
#define INFINITE std::numeric_limits<double>::infinity()

struct Index {
    int x;
};
static Index threadIdx, blockIdx, gridDim;

struct Barrier {
    int arrived = 0;
    long passed = 0;
};

struct Fibers {
    struct Fiber {
        ucontext_t context;
        std::unique_ptr<char[]> stack;
        bool done = false;
    };
    std::vector<Fiber> fibers;
    ucontext_t scheduler;
    int now = 0, threads = 0;
    std::function<void()> work;
    Barrier all;
    std::vector<Barrier> blocks, warps;
    std::vector<double> lanes;

    static Fibers*& current() {
        static Fibers* fibers = nullptr;
        return fibers;
    }

    static void enter() {
        Fibers& all = *current();
        all.work();
        all.fibers[all.now].done = true;
        swapcontext(&all.fibers[all.now].context, &all.scheduler);
    }

    void wait(Barrier& barrier, int of) {
        const long mine = barrier.passed;
        if (++barrier.arrived == of) {
            barrier.arrived = 0, barrier.passed++;
            return;
        }
        while (barrier.passed == mine) swapcontext(&fibers[now].context, &scheduler);
    }

    // Run blocks first, first + 1, ... of some threads each; `enter_block` selects the shared memory of a block.
    void run(int first, int count, int threads_of_block, std::function<void(int)> enter_block, std::function<void()> body) {
        work = std::move(body), threads = threads_of_block;
        current() = this;
        const int total = count * threads;
        fibers.resize(total), blocks.resize(count), warps.resize(total / 32), lanes.resize(total);
        const size_t bytes = 1 << 17;
        for (auto& fiber : fibers) {
            getcontext(&fiber.context);
            fiber.stack.reset(new char[bytes]);
            fiber.context.uc_stack.ss_sp = fiber.stack.get(), fiber.context.uc_stack.ss_size = bytes;
            fiber.context.uc_link = nullptr;
            makecontext(&fiber.context, &Fibers::enter, 0);
        }
        for (bool left = true; left;) {
            left = false;
            for (now = 0; now < total; now++) {
                if (fibers[now].done) continue;
                left = true;
                threadIdx.x = now % threads, blockIdx.x = first + now / threads;
                enter_block(now / threads);
                swapcontext(&scheduler, &fibers[now].context);
            }
        }
    }
};

inline void __syncthreads() {
    Fibers& all = *Fibers::current();
    all.wait(all.blocks[all.now / all.threads], all.threads);
}

inline void wait_for_grid(unsigned*) {
    Fibers& all = *Fibers::current();
    all.wait(all.all, int(all.fibers.size()));
}

template <class T>
T __shfl_xor_sync(unsigned, T value, int apart) {
    Fibers& all = *Fibers::current();
    const int here = all.now, warp = here / 32;
    all.lanes[here] = double(value);
    all.wait(all.warps[warp], 32);
    const T result = T(all.lanes[here ^ apart]);
    all.wait(all.warps[warp], 32);
    return result;
}

inline void atomicAdd(double* to, double value) { *to += value; }
inline double __longlong_as_double(int64_t bits) {
    double value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
inline int64_t __double_as_longlong(double value) {
    int64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}
inline double power_of_two(double x) { return std::exp2(x); }
inline float power_of_two(float x) { return std::exp2(x); }
inline double zero_if(bool condition, double x) { return condition ? 0 : x; }
inline float zero_if(bool condition, float x) { return condition ? 0 : x; }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline float rsqrt(float x) { return 1 / std::sqrt(x); }
inline double times(double a, double b) { return a * b; }
inline float times(float a, float b) { return a * b; }
inline double reciprocal(double x) { return 1 / x; }
inline float reciprocal(float x) { return 1 / x; }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((uint64_t(a) * b) >> 32); }
template <class T>
void sincospi(T x, T* sine, T* cosine) {
    *sine = T(std::sin(3.141592653589793 * double(x))), *cosine = T(std::cos(3.141592653589793 * double(x)));
}
using std::exp2;
using std::fabs;
using std::fma;
using std::log;
using std::log2;
using std::pow;
using std::sqrt;

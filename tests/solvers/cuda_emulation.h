// Runs a CUDA kernel on a CPU: every thread of a block is a fiber, and a barrier switches between them.
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
#define __shared__ static
#define INFINITE std::numeric_limits<double>::infinity()

struct Index {
    int x;
};
static Index threadIdx, blockIdx, blockDim;

struct Fibers {
    struct Fiber {
        ucontext_t context;
        std::unique_ptr<char[]> stack;
        bool done = false;
    };
    std::vector<Fiber> fibers;
    ucontext_t scheduler;
    int now = 0;
    std::function<void()> work;
    int arrived = 0;
    long generation = 0;
    std::vector<int> warp_arrived;
    std::vector<long> warp_generation;
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

    void yield() { swapcontext(&fibers[now].context, &scheduler); }

    void barrier(int& count, long& passed, int of) {
        const long mine = passed;
        if (++count == of) {
            count = 0, passed++;
            return;
        }
        while (passed == mine) yield();
    }

    void run(int threads, std::function<void()> body) {
        work = std::move(body);
        current() = this;
        fibers.resize(threads);
        warp_arrived.assign((threads + 31) / 32, 0), warp_generation.assign((threads + 31) / 32, 0), lanes.resize(threads);
        const size_t bytes = 1 << 18;
        for (auto& fiber : fibers) {
            getcontext(&fiber.context);
            fiber.stack.reset(new char[bytes]);
            fiber.context.uc_stack.ss_sp = fiber.stack.get(), fiber.context.uc_stack.ss_size = bytes;
            fiber.context.uc_link = nullptr;
            makecontext(&fiber.context, &Fibers::enter, 0);
        }
        for (bool left = true; left;) {
            left = false;
            for (now = 0; now < threads; now++) {
                if (fibers[now].done) continue;
                left = true;
                threadIdx.x = now;
                swapcontext(&scheduler, &fibers[now].context);
            }
        }
    }
};

inline void __syncthreads() {
    Fibers& all = *Fibers::current();
    all.barrier(all.arrived, all.generation, int(all.fibers.size()));
    threadIdx.x = all.now;
}

template <class T>
T __shfl_xor_sync(unsigned, T value, int apart) {
    Fibers& all = *Fibers::current();
    const int here = all.now, warp = here / 32;
    all.lanes[here] = double(value);
    all.barrier(all.warp_arrived[warp], all.warp_generation[warp], 32);
    const T result = T(all.lanes[here ^ apart]);
    all.barrier(all.warp_arrived[warp], all.warp_generation[warp], 32);
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
inline double reciprocal(double x) { return 1 / x; }
inline float reciprocal(float x) { return 1 / x; }
using std::exp2;
using std::fabs;
using std::fma;
using std::log2;
using std::pow;
using std::sqrt;

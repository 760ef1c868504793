// Memory shared by processes of one machine, which compute one problem after another as threads of one process would.
//
// It has three areas, used in turn; an unused area holds zeros. A problem has ended for a process when all its tasks
// are done and every process has begun it. Then no process reads the area of the previous problem any more, and each
// clears its share of it. That area is used again two problems later; by then every process has begun the problem in
// between, and so has cleared its share.
#pragma once

#include <sched.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <stdexcept>

namespace attractor {

class SharedMemory {
public:
    using Counter = std::atomic<int64_t>;
    // Whether all processes are alive, called with the seconds that this process has waited; false also means that it
    // must stop.
    using Alive = std::function<bool(double waited)>;

    struct Area {
        Counter *next, *done, *begun;  // the next task, tasks done, processes that have begun
        Counter* turns;
        double* sums;
    };

    SharedMemory(char* memory_, int64_t bytes_, int rank_, int size_, Alive alive_)
        : memory(memory_), bytes(bytes_ / 3 / line * line), rank(rank_), size(size_), alive(std::move(alive_)) {
        static_assert(Counter::is_always_lock_free && sizeof(Counter) == 8,
                      "counters in shared memory must be plain numbers");
    }

    // Bytes of all areas for a problem with this number of turns and sums.
    static int64_t bytes_for(int64_t turns, int64_t sums) { return 3 * (5 * line + (turns + sums) * 8); }

    Area begin(int64_t turns, int64_t sums) {
        int64_t& used = dirty[problem % 3];
        used = sums_at(turns) + sums * 8;
        if (used > bytes) throw std::length_error("the shared memory is too small for this problem");
        char* at = memory + problem % 3 * bytes;
        const auto counter = [&](int64_t place) { return reinterpret_cast<Counter*>(at + place); };
        const Area area = {counter(0), counter(line), counter(2 * line), counter(3 * line),
                           reinterpret_cast<double*>(at + sums_at(turns))};
        area.begun->fetch_add(1, std::memory_order_acq_rel);
        return area;
    }

    // Wait until all tasks are done and all processes have begun; false if a process is lost. The sums may be read
    // until the next problem begins.
    bool end(const Area& area, int64_t tasks) {
        const bool fine = wait([&] {
            return area.done->load(std::memory_order_acquire) == tasks &&
                   area.begun->load(std::memory_order_acquire) == size;
        });
        if (!fine) return false;
        problem++;
        const int64_t before = (problem + 1) % 3, words = dirty[before] / 8;
        int64_t* from = reinterpret_cast<int64_t*>(memory + before * bytes);
        for (int64_t word = words * rank / size; word < words * (rank + 1) / size; word++) from[word] = 0;
        dirty[before] = 0;
        return true;
    }

    template <class Ready>
    bool wait(Ready ready) {
        for (int tries = 0; tries < patience; tries++) {
            if (ready()) return true;
            sched_yield();
        }
        const auto start = clock::now();
        auto asked = start;
        while (!ready()) {
            if (lost) return false;
            const timespec pause = {0, 20000};
            nanosleep(&pause, nullptr);
            const auto now = clock::now();
            if (now - asked < std::chrono::milliseconds(20)) continue;
            asked = now;
            // a process may exit after the last task, before this one has seen that all is done
            if (!alive(std::chrono::duration<double>(now - start).count()) && !ready()) lost = true;
        }
        return true;
    }

private:
    using clock = std::chrono::steady_clock;
    static constexpr int64_t line = 64;
    static constexpr int patience = 1000;  // polls (some hundred microseconds) before it sleeps between them

    static int64_t sums_at(int64_t turns) { return (3 * line + turns * 8 + line - 1) / line * line; }

    char* memory;
    int64_t bytes;  // of one area
    int rank, size;
    Alive alive;
    int64_t problem = 0;
    int64_t dirty[3] = {};
    std::atomic<bool> lost{false};
};

}  // namespace attractor

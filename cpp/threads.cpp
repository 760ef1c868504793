#include "threads.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace attractor {
namespace {

// Spin for a short time until a condition holds. Waking a sleeping thread takes longer than many kernel calls, so idle
// threads spin before they sleep, as PyTorch's do.
constexpr std::chrono::microseconds patience{100};

template <class Ready>
bool soon(Ready ready) {
    const auto stop = std::chrono::steady_clock::now() + patience;
    do {
        for (int look = 0; look < 32; look++) {
            if (ready()) return true;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#elif defined(__aarch64__)
            __asm__ volatile("yield");
#endif
        }
    } while (std::chrono::steady_clock::now() < stop);
    return false;
}

struct Job {
    const std::function<void(int64_t, int)>* work = nullptr;
    int64_t tasks = 0, stride = 1;
    int helpers = 0;           // threads that may still join
    int worker = 1;            // number of the next that joins
    std::atomic<int> busy{0};  // threads that joined and have not finished
    std::atomic<int64_t> next{0};

    void run(int worker_number) {
        for (;;) {
            const int64_t start = next.fetch_add(stride);
            if (start >= tasks) return;
            const int64_t stop = start + stride < tasks ? start + stride : tasks;
            for (int64_t task = start; task < stop; task++) (*work)(task, worker_number);
        }
    }
};

class Pool {
    std::mutex door;  // one job at a time
    std::mutex lock;
    std::condition_variable called, finished;
    std::vector<std::thread> threads;
    Job* job = nullptr;
    std::atomic<int64_t> calls{0};

    void serve() {
        std::unique_lock<std::mutex> held(lock);
        for (int64_t heard = -1;; heard = calls) {
            if (!(job && job->helpers > 0)) {
                held.unlock();
                soon([&] { return calls != heard; });
                held.lock();
            }
            called.wait(held, [&] { return job && job->helpers > 0; });
            Job& mine = *job;
            mine.helpers--;
            mine.busy++;
            const int number = mine.worker++;
            held.unlock();
            mine.run(number);
            held.lock();
            if (--mine.busy == 0) finished.notify_all();
        }
    }

public:
    const pid_t process = getpid();

    void run(Job& mine, int helpers) {
        // a second caller, on another thread, runs its tasks alone instead of waiting
        std::unique_lock<std::mutex> turn(door, std::try_to_lock);
        if (!turn.owns_lock()) return mine.run(0);
        {
            std::lock_guard<std::mutex> held(lock);
            while (int(threads.size()) < helpers) threads.emplace_back([this] { serve(); });
            mine.helpers = helpers;
            job = &mine;
            calls++;
        }
        called.notify_all();
        mine.run(0);
        std::unique_lock<std::mutex> held(lock);
        mine.helpers = 0;
        held.unlock();
        soon([&] { return mine.busy == 0; });
        held.lock();
        finished.wait(held, [&] { return mine.busy == 0; });
        job = nullptr;
    }
};

// Never destroyed: its threads may outlive the static objects. After a fork the child has none of them and starts anew;
// without a mutex, which another thread of the parent could have held at the fork.
Pool& pool() {
    static std::atomic<Pool*> current{nullptr};
    Pool* known = current;
    while (!known || known->process != getpid()) {
        Pool* made = new Pool;
        if (current.compare_exchange_strong(known, made)) return *made;
        delete made;  // another thread was faster; this one has no threads yet
    }
    return *known;
}

}  // namespace

void parallel(int64_t tasks, int threads, const std::function<void(int64_t, int)>& work, int64_t stride) {
    Job job;
    job.work = &work;
    job.tasks = tasks;
    // large strides reduce contention on the counter; eight per thread balance the load
    job.stride = tasks / (8 * int64_t(threads)) > 1 ? tasks / (8 * int64_t(threads)) : 1;
    if (job.stride > 64) job.stride = 64;
    if (stride) job.stride = stride;
    if (threads <= 1 || tasks <= 1) return job.run(0);
    pool().run(job, int(threads - 1 < tasks - 1 ? threads - 1 : tasks - 1));
}

}  // namespace attractor

// A thread pool for the whole process. Not OpenMP: PyTorch has its own copy, and two runtimes conflict.
#pragma once

#include <cstdint>
#include <functional>

namespace attractor {

// Call work(task, worker) for every task below `tasks`, on `threads` threads at most (the caller is one of them). The
// result of a task must not depend on the thread that runs it. Tasks start in order, `stride` at a time (0: chosen for
// balance); a task may wait for earlier ones.
void parallel(int64_t tasks, int threads, const std::function<void(int64_t task, int worker)>& work,
              int64_t stride = 0);

}  // namespace attractor

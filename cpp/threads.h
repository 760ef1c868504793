// A pool of threads that lives as long as the process. Not OpenMP: PyTorch brings its own copy, and two do not mix.
#pragma once

#include <cstdint>
#include <functional>

namespace attractor {

// Call work(task, worker) for every task below `tasks`, on `threads` threads at most (the caller is one of them). Which
// thread takes a task is left to chance, so a task's result must not depend on it. Tasks are taken in their order,
// `stride` at a time (0: so many that the threads stay even); a task may wait for those before it.
void parallel(int64_t tasks, int threads, const std::function<void(int64_t task, int worker)>& work,
              int64_t stride = 0);

}  // namespace attractor

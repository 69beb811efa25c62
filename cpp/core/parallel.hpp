// A loop spread over threads.
#pragma once

#include <cstddef>
#include <functional>

namespace llamaserve {

// Calls `body(i)` for i from 0 to n-1 on up to `n_threads` threads, among them the caller's. `body` must not throw.
// With OpenMP these are the threads that ggml computes with, which after a step of the model are still awake.
void parallel_for(size_t n, int n_threads, const std::function<void(size_t)>& body);

} // namespace llamaserve

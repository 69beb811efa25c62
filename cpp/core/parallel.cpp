#include "parallel.hpp"

#include <algorithm>

#ifdef _OPENMP
#include <omp.h>
#else
#include <atomic>
#include <thread>
#include <vector>
#endif

namespace llamaserve {

void parallel_for(size_t n, int n_threads, const std::function<void(size_t)>& body) {
    const int threads = static_cast<int>(std::min(n, static_cast<size_t>(std::max(1, n_threads))));
    if (threads <= 1) {
        for (size_t i = 0; i < n; ++i) {
            body(i);
        }
        return;
    }
#ifdef _OPENMP
    const auto count = static_cast<std::ptrdiff_t>(n);
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (std::ptrdiff_t i = 0; i < count; ++i) {
        body(static_cast<size_t>(i));
    }
#else
    std::atomic<size_t> next{0};
    auto work = [&] {
        for (size_t i = next++; i < n; i = next++) {
            body(i);
        }
    };
    std::vector<std::jthread> helpers;
    for (int t = 1; t < threads; ++t) {
        helpers.emplace_back(work);
    }
    work();
#endif
}

} // namespace llamaserve

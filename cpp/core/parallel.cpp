#include "parallel.hpp"

#ifdef _OPENMP
#include <omp.h>
#else
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#endif

namespace llamaserve {

namespace {

void one_after_the_other(size_t n, const std::function<void(size_t)>& body) {
    for (size_t i = 0; i < n; ++i) {
        body(i);
    }
}

#ifndef _OPENMP

// Threads that wait for work, where there is no OpenMP to keep them. It works for one caller at a time, and for as long
// as the process lives: it may be at work when the process ends, and a forked child has none of its threads to wait
// for.
class Team {
public:
    // Returns false if another caller has the team.
    bool run(size_t n, int n_threads, const std::function<void(size_t)>& body) {
        std::unique_lock mine(callers_, std::try_to_lock);
        if (!mine) {
            return false;
        }
        {
            std::lock_guard lock(mutex_);
            while (n_threads_ + 1 < static_cast<size_t>(n_threads)) {
                std::thread([this, index = n_threads_, seen = jobs_] { wait_for_work(index, seen); }).detach();
                ++n_threads_;
            }
            body_ = &body;
            n_ = n;
            next_ = 0;
            wanted_ = static_cast<size_t>(n_threads) - 1;
            working_ = wanted_;
            ++jobs_;
        }
        work_came_.notify_all();
        work();
        std::unique_lock lock(mutex_);
        work_done_.wait(lock, [&] { return working_ == 0; });
        return true;
    }

private:
    void wait_for_work(size_t index, uint64_t seen) {
        std::unique_lock lock(mutex_);
        for (;;) {
            work_came_.wait(lock, [&] { return jobs_ != seen; });
            seen = jobs_;
            if (index >= wanted_) {
                continue;
            }
            lock.unlock();
            work();
            lock.lock();
            if (--working_ == 0) {
                work_done_.notify_one();
            }
        }
    }

    void work() {
        for (size_t i = next_++; i < n_; i = next_++) {
            (*body_)(i);
        }
    }

    std::mutex callers_, mutex_;
    std::condition_variable work_came_, work_done_;
    size_t n_threads_ = 0;
    uint64_t jobs_ = 0;
    size_t wanted_ = 0, working_ = 0;
    // The job.
    const std::function<void(size_t)>* body_ = nullptr;
    size_t n_ = 0;
    std::atomic<size_t> next_{0};
};

#endif

} // namespace

void parallel_for(size_t n, int n_threads, const std::function<void(size_t)>& body) {
    if (n <= 1 || n_threads <= 1) {
        one_after_the_other(n, body);
        return;
    }
#ifdef _OPENMP
    // Always as many threads as ggml uses: OpenMP would end those that a smaller team leaves over.
    const auto count = static_cast<std::ptrdiff_t>(n);
#pragma omp parallel for num_threads(n_threads) schedule(dynamic)
    for (std::ptrdiff_t i = 0; i < count; ++i) {
        body(static_cast<size_t>(i));
    }
#else
    alignas(Team) static std::byte memory[sizeof(Team)];
    static Team& team = *std::construct_at(reinterpret_cast<Team*>(memory)); // never destroyed
    if (!team.run(n, n_threads, body)) {
        one_after_the_other(n, body);
    }
#endif
}

} // namespace llamaserve

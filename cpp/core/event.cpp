#include "event.hpp"

#include <cerrno>
#include <iterator>
#include <utility>

#ifdef _WIN32
#include <winsock2.h>
#else
#include <unistd.h>
#endif

namespace llamaserve {

namespace {

// A full socket buffer means that the reader has bytes to wake up for: nothing is lost by not adding one.
void write_byte(int64_t handle) {
    const char byte = 1;
#ifdef _WIN32
    (void)send(static_cast<SOCKET>(handle), &byte, 1, 0);
#else
    while (write(static_cast<int>(handle), &byte, 1) < 0 && errno == EINTR) {
    }
#endif
}

} // namespace

void EventSink::push(std::vector<Event>&& events) {
    {
        std::lock_guard lock(mutex_);
        if (closed_) {
            return;
        }
        const bool was_empty = events_.empty();
        if (was_empty) {
            events_ = std::move(events);
        } else {
            events_.insert(events_.end(), std::make_move_iterator(events.begin()),
                           std::make_move_iterator(events.end()));
        }
        if (was_empty && notify_socket_ >= 0) {
            // Under the lock, since close() promises that the socket isn't used afterwards.
            write_byte(notify_socket_);
        }
    }
    arrived_.notify_one();
}

std::vector<Event> EventSink::drain() {
    std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
}

std::vector<Event> EventSink::wait(std::chrono::duration<double> timeout) {
    std::unique_lock lock(mutex_);
    arrived_.wait_for(lock, timeout, [&] { return !events_.empty() || closed_; });
    return std::exchange(events_, {});
}

void EventSink::close() {
    {
        std::lock_guard lock(mutex_);
        closed_ = true;
        events_.clear();
    }
    arrived_.notify_all();
}

bool EventSink::closed() const {
    std::lock_guard lock(mutex_);
    return closed_;
}

void Outbox::add(const std::shared_ptr<EventSink>& sink, Event&& event) {
    for (auto& [known, events] : sinks_) {
        if (known == sink) {
            events.push_back(std::move(event));
            return;
        }
    }
    auto& [_, events] = sinks_.emplace_back(sink, std::vector<Event>{});
    events.push_back(std::move(event));
}

void Outbox::publish() {
    for (auto& [sink, events] : sinks_) {
        sink->push(std::move(events));
    }
    sinks_.clear();
}

} // namespace llamaserve

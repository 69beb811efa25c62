// What the engine tells its callers, and the queue that it goes through.
#pragma once

#include "llama.h"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace llamaserve {

enum class EventKind {
    started,  // the request holds a slot, and how much of its prompt is cached is known
    progress, // a chunk of the prompt was computed
    token,    // text and tokens
    finished, // the last event of a request that ran
    embedded, // the only event of an embedding or a rerank score
    error,    // the last event of a request that failed
};

struct TokenCandidate {
    llama_token id;
    std::string text; // bytes, perhaps a part of a character
    float p;
};

struct TokenProbs : TokenCandidate {
    std::vector<TokenCandidate> top; // most probable tokens, best first
};

struct Progress {
    int32_t total, cache, processed;
    int64_t time_ms;
};

struct Timings {
    int32_t cache_n;     // prompt tokens from the cache
    int32_t prompt_n;    // prompt tokens computed
    double prompt_ms;    // until the first token was sampled
    int32_t predicted_n; // tokens generated
    double predicted_ms; // since the first token was sampled
    int32_t draft_n;     // tokens drafted
    int32_t draft_n_accepted;
};

enum class StopType { none, eos, word, limit };

struct RequestParams;

struct Finish {
    StopType stop = StopType::none;
    std::string stopping_word;
    bool truncated = false; // the context was full
    bool has_new_line = false;
    int32_t id_slot = -1;
    int32_t tokens_cached = 0;
    std::string prompt_text;
    std::string text;                            // the whole output
    std::shared_ptr<const RequestParams> params; // what the request ran with, everything resolved
};

struct Failure {
    std::string kind; // "invalid_request", "context_size", "unavailable", "not_supported", "internal", "closed"
    std::string message;
    int32_t n_prompt_tokens = 0;
    int32_t n_ctx = 0;
};

struct Event {
    uint64_t request = 0;
    EventKind kind = EventKind::token;
    int32_t id_slot = -1; // where the request runs
    std::string text;
    std::vector<llama_token> tokens;
    int32_t n_predicted = 0;
    int32_t n_prompt_tokens = 0;
    std::vector<TokenProbs> probs;
    std::optional<Progress> progress;
    std::optional<Timings> timings;
    std::optional<Finish> finish;
    std::optional<Failure> failure;
    std::vector<float> embedding; // row after row; a rerank score is its first value
    int32_t n_rows = 0;           // one, or without pooling one for each token
};

// Queue from the engine to one reader: a thread that waits, or an event loop that watches a socket.
class EventSink {
public:
    // `notify_socket`: a non-blocking socket that gets one byte when events come to an empty queue; -1 for none.
    explicit EventSink(int64_t notify_socket = -1) : notify_socket_(notify_socket) {}

    // For the engine: adds the events of one step, and wakes the reader once.
    void push(std::vector<Event>&& events);

    // All events that are there.
    std::vector<Event> drain();

    // As drain(), but waits for the first one; empty after `timeout` or once closed.
    std::vector<Event> wait(std::chrono::duration<double> timeout);

    // The reader is gone: events are dropped from here on, and the socket isn't touched any more.
    void close();
    bool closed() const;

private:
    mutable std::mutex mutex_;
    std::condition_variable arrived_;
    std::vector<Event> events_;
    int64_t notify_socket_;
    bool closed_ = false;
};

// Gathers the events of a step, so that each sink is woken once.
class Outbox {
public:
    void add(const std::shared_ptr<EventSink>& sink, Event&& event);
    void publish();

private:
    std::vector<std::pair<std::shared_ptr<EventSink>, std::vector<Event>>> sinks_;
};

} // namespace llamaserve

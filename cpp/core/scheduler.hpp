// Runs steps: admit waiting requests to slots, build one batch, decode, sample, publish events.
#pragma once

#include "event.hpp"
#include "model.hpp"
#include "request.hpp"
#include "slot.hpp"
#include "step_budget.hpp"

#include <atomic>
#include <deque>
#include <memory>
#include <vector>

namespace llamaserve {

// Counters since the start, gauges, and sums since they were last reset.
struct Metrics {
    int64_t prompt_tokens_total = 0, prompt_tokens_cached_total = 0, prompt_us_total = 0;
    int64_t tokens_predicted_total = 0, predicted_us_total = 0;
    int64_t n_decode_total = 0, n_tokens_max = 0, n_busy_slots_total = 0;
    int64_t prompt_tokens_window = 0, prompt_us_window = 0, predicted_tokens_window = 0, predicted_us_window = 0;
    int32_t requests_processing = 0, requests_deferred = 0;
    int64_t kv_cells_used = 0;
};

// Belongs to the engine thread: nothing in here is thread-safe but n_waiting().
class Scheduler {
public:
    Scheduler(const Model& model, const EngineParams& params);

    void submit(std::unique_ptr<Request> request);
    void cancel(uint64_t request);

    // One step. Returns false if there was nothing to do. `outbox` gets the step's events.
    bool step(Outbox& outbox);

    // Ends every request with `failure`.
    void fail_all(const Failure& failure, Outbox& outbox);

    std::vector<SlotSnapshot> slots() const;
    Metrics metrics(bool reset_window);
    bool idle() const { return waiting_.empty() && n_busy_ == 0; }
    int32_t n_waiting() const { return n_waiting_.load(std::memory_order_relaxed); }

private:
    struct Entry { // one token of the batch
        llama_token token;
        llama_pos pos;
        Slot* slot;
        bool prompt;
        bool output;
    };

    void admit(Outbox& outbox);
    Slot* find_slot(const Request& request);
    bool start_prompt(Slot& slot, Outbox& outbox);
    int32_t reuse_cache(Slot& slot);
    void add_decode_tokens();
    void add_prompt_tokens(Outbox& outbox);
    bool decode(Outbox& outbox);
    int32_t decode_once();
    bool make_room(Outbox& outbox);
    void drop_from_batch(const Slot& slot);
    void after_decode(Outbox& outbox, int64_t step_us);
    void sample(Slot& slot, Outbox& outbox);
    void finish(Slot& slot, Outbox& outbox);
    void fail(Slot& slot, Failure failure, Outbox& outbox);
    void release(Slot& slot);
    void clear_cells(Slot& slot);
    Slot* lru_idle_with_cells();

    const Model& model_;
    llama_context* ctx_;
    llama_memory_t mem_;
    std::vector<Slot> slots_;
    std::deque<std::unique_ptr<Request>> waiting_;
    std::atomic<int32_t> n_waiting_{0};
    int32_t n_busy_ = 0;
    StepBudget budget_;
    std::vector<Entry> batch_;
    // Arrays of llama_batch, kept to spare allocations.
    std::vector<llama_token> b_token_;
    std::vector<llama_pos> b_pos_;
    std::vector<int32_t> b_n_seq_;
    std::vector<llama_seq_id> b_seq_;
    std::vector<llama_seq_id*> b_seq_ptr_;
    std::vector<int8_t> b_output_;
    Metrics metrics_;
};

} // namespace llamaserve

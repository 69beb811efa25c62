// Runs steps: admit waiting requests to slots, build one batch, decode, sample, publish events.
#pragma once

#include "attention_backend.hpp"
#include "event.hpp"
#include "model.hpp"
#include "prefix_cache.hpp"
#include "request.hpp"
#include "run.hpp"
#include "slot.hpp"
#include "slot_file.hpp"
#include "speculation.hpp"
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
    int64_t n_preempted_total = 0;
    int64_t n_drafts = 0, n_draft_tokens = 0, n_draft_accepted = 0; // that were verified
    std::vector<int64_t> n_draft_accepted_by_place;
    int64_t prompt_tokens_window = 0, prompt_us_window = 0, predicted_tokens_window = 0, predicted_us_window = 0;
    int32_t requests_processing = 0, requests_deferred = 0;
    int64_t kv_cells_used = 0, cache_ram_bytes = 0, cache_ram_entries = 0;
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

    // An idle slot's tokens and cells. Throw Refused if there is no such slot, if it is busy, or if the state doesn't
    // fit.
    SavedSlot save_slot(int32_t id);
    void restore_slot(int32_t id, const SavedSlot& state, const Adapters& adapters);
    int32_t erase_slot(int32_t id); // returns how many cells it had

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
        bool draft = false;
    };

    // Where a prompt's first tokens can be had.
    struct Source {
        Slot* slot = nullptr; // a sequence that has them
        std::optional<PrefixCache::Saved> saved;
        int32_t length = 0;
    };

    // Waiting requests.
    void enqueue(std::unique_ptr<Run> run);
    void admit(Outbox& outbox);
    bool fits(const Run& run) const;
    Slot* find_slot(const Run& run);
    void expire(Outbox& outbox);

    // A prompt's way into a slot.
    void begin(Slot& slot, Outbox& outbox);
    Source find_source(const Slot& slot, int32_t limit);
    bool wait_for_prefix(Slot& slot, int32_t limit, int32_t have);
    void take(Slot& slot, const Source& source);
    void give_up_cells(Slot& slot);
    void begin_waiting(Outbox& outbox);

    // A batch is computed with one set of adapters. Sets take turns, so that none waits longer than a step of each
    // other.
    void choose_adapters();
    bool in_turn(const Slot& slot) const;
    void apply_adapters();

    // Cells that move to other positions (context_shift.cpp).
    struct Chunk {
        int32_t from, n, to;
    };
    void shift_contexts(Outbox& outbox);
    void shift_context(Slot& slot, int32_t n_keep, int32_t n_discard);
    bool shares_after(const Slot& slot, int32_t n) const;
    bool unshare(Slot& slot);
    std::vector<Chunk> reusable(const Slot& slot, const Run& run, int32_t n_have, int32_t limit) const;
    Slot* find_reusable(const Run& run);
    bool reuse_chunks(Slot& slot, const Source& source, int32_t limit);
    bool restore_shifted(Slot& slot);
    void drop_shifted(Slot& slot);
    void hold_plain(const Slot& slot, const std::vector<llama_token>& tokens);

    // The batch.
    bool prompts_beside_streams() const;
    void compute(Outbox& outbox, int64_t t_start_us);
    std::vector<SharedPrefixes::Group> common_prefixes() const;
    void add_decode_tokens();
    void add_prompt_tokens();
    int32_t chunk(const Slot& slot, int32_t room) const;
    bool decode(Outbox& outbox);
    int32_t decode_once();
    bool make_room(Outbox& outbox);
    void drop_from_batch(Slot& slot);
    void find_outputs();
    void preempt(Slot& slot);
    Slot* youngest(bool in_batch, bool in_prompt, const Slot* besides);

    // Embeddings and rerank scores.
    void embed(Outbox& outbox);
    void add_inputs();
    bool make_room_for_inputs(Outbox& outbox);
    void after_embed(Outbox& outbox, int64_t step_us);
    Event embedding_of(const Slot& slot, int32_t i_first) const;

    // Drafted tokens (scheduler_draft.cpp).
    void draft();
    bool drop_drafts();
    void settle_draft(Slot& slot, int32_t n, int32_t n_accepted);

    // What comes of it.
    void after_decode(Outbox& outbox, int64_t step_us);
    void count_step(int64_t step_us);
    void sample(Outbox& outbox);
    void finish(Slot& slot, Outbox& outbox);
    void fail(Slot& slot, Failure failure, Outbox& outbox);
    std::unique_ptr<Run> release(Slot& slot);
    void clear_cells(Slot& slot);
    Slot& idle_slot(int32_t id);
    void put_idle_slots_away();
    Slot* lru_idle_with_cells(const Slot* besides = nullptr);

    const Model& model_;
    llama_context* ctx_;
    PrefixCache cache_;
    std::vector<Slot> slots_;
    std::unique_ptr<Speculation> speculation_; // null: off
    std::deque<std::unique_ptr<Run>> waiting_;
    std::atomic<int32_t> n_waiting_{0};
    int32_t n_busy_ = 0;
    bool timed_ = false; // some request has a time limit
    bool put_away_;      // idle slots give up their cells when a request comes
    // Prompts are computed apart from the tokens that others generate: llama.cpp does so anyway where slots don't share
    // the cache, but for the first token of each.
    bool apart_;
    bool own_attention_; // flash attention on the CPU is computed by our kernel
    SharedPrefixes prefixes_;
    StepBudget budget_;
    AdapterScales serving_;                // this step's
    std::optional<AdapterScales> applied_; // the context's
    int64_t n_steps_ = 0;
    uint64_t n_admitted_ = 0;
    std::vector<Entry> batch_;
    std::vector<Slot*> sampling_;
    // Arrays of llama_batch, kept to spare allocations.
    std::vector<llama_token> b_token_;
    std::vector<llama_pos> b_pos_;
    std::vector<int32_t> b_n_seq_;
    std::vector<llama_seq_id> b_seq_;
    std::vector<llama_seq_id*> b_seq_ptr_;
    std::vector<int8_t> b_output_;
    std::string decode_errors_;
    Metrics metrics_;
};

} // namespace llamaserve

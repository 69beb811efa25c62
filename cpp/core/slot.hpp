// One sequence being served: the request on it, what it has generated, and the tokens whose KV cells it holds.
#pragma once

#include "event.hpp"
#include "request.hpp"
#include "text.hpp"

#include <memory>
#include <string>
#include <vector>

namespace llamaserve {

enum class SlotState {
    idle,
    started,           // a request was assigned; its cached prefix isn't looked up yet
    processing_prompt, // prompt tokens go into batches
    generating,        // a sampled token goes into every batch
};

const char* slot_state_name(SlotState state);

// What /slots shows.
struct SlotSnapshot {
    int32_t id = 0, n_ctx = 0;
    SlotState state = SlotState::idle;
    int64_t id_task = -1;
    int32_t n_prompt_tokens = 0, n_prompt_processed = 0, n_prompt_cached = 0;
    int32_t n_decoded = 0, n_remain = -1;
    bool has_next_token = false, has_new_line = false;
    std::string prompt, generated;
    RequestParams params;
};

class Slot {
public:
    Slot(int32_t sequence, const Model& model) : id(sequence), model_(&model) {}

    const int32_t id; // also the sequence id in the context
    SlotState state = SlotState::idle;
    std::unique_ptr<Request> request;
    std::vector<llama_token> cells; // tokens in the KV cache under this sequence, by position
    int32_t i_batch = -1;           // where in the batch this slot's logits are wanted; -1 nowhere
    int64_t t_last_used_us = 0;

    bool busy() const { return state != SlotState::idle; }
    bool in_prompt() const { return state == SlotState::started || state == SlotState::processing_prompt; }
    int32_t n_cells() const { return static_cast<int32_t>(cells.size()); }
    int32_t n_generated() const { return n_generated_; }
    int32_t n_prompt_cached() const { return n_cached_; }
    llama_token sampled() const { return sampled_; }

    // Takes the request on; the slot is `started`.
    void assign(std::unique_ptr<Request> request);

    // The prompt's first `n_cached` tokens are in the cache already. Computing starts now.
    void begin_prompt(int32_t n_cached);
    void count_prompt(int32_t n_tokens) { n_processed_ += n_tokens; }

    // Samples the next token from the logits at `i_batch`, and adds it to the output. Returns false if that was the
    // last one. Throws if the sampler can't go on (a grammar that allows nothing, say).
    bool sample();

    // Ends the request without sampling (n_predict = 0, or out of context).
    void stop(StopType type, bool truncated);

    // The request leaves; its cells stay for the next one.
    std::unique_ptr<Request> release();

    Event started_event() const;
    Event progress_event() const;
    // What was sampled since the last event; has nothing in it while a character isn't whole.
    bool has_output() const { return has_output_; }
    Event token_event();
    Event finish_event();
    Event failure_event(Failure failure) const;

    Timings timings() const;
    int32_t n_predict() const; // the request's limit or the engine's; -1: none
    SlotSnapshot snapshot(bool with_text) const;

private:
    void accept(llama_token token);
    void check_limits(bool new_text_has_line_break);
    bool indent_ended();
    TokenProbs probabilities(llama_token token) const;
    Event event(EventKind kind) const;

    const Model* model_;
    TextOut out_;
    llama_token sampled_ = LLAMA_TOKEN_NULL;
    bool has_next_ = false;
    bool has_new_line_ = false;
    bool has_output_ = false;
    StopType stop_ = StopType::none;
    bool truncated_ = false;
    size_t line_start_ = 0; // where the last complete line's successor starts, 0 before the first line break

    int32_t n_generated_ = 0, n_cached_ = 0, n_processed_ = 0;
    int64_t t_start_us_ = 0, t_first_us_ = 0, t_last_us_ = 0;

    std::string pending_text_; // may be sent, not in an event yet
    std::vector<llama_token> pending_tokens_, tokens_;
    std::vector<TokenProbs> pending_probs_, probs_;

    int64_t last_id_ = -1; // of the request that was here before
    RequestParams last_params_;
    std::string last_prompt_, last_text_;
};

} // namespace llamaserve

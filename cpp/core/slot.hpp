// One sequence of the context: the run on it, and the tokens whose KV cells it holds.
#pragma once

#include "run.hpp"

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

namespace llamaserve {

enum class SlotState {
    idle,
    waiting_prefix,    // another slot is computing a prefix that this one's prompt starts with
    processing_prompt, // prompt tokens go into batches
    generating,        // a sampled token goes into every batch
    embedding,         // its input goes into a batch of embeddings
};

const char* slot_state_name(SlotState state);

// What /slots shows.
struct SlotSnapshot : RunSnapshot {
    int32_t id = 0, n_ctx = 0;
    SlotState state = SlotState::idle;
    int32_t n_prompt_tokens = 0;
    bool speculative = false;
};

struct Slot {
    explicit Slot(int32_t sequence) : id(sequence) {}

    const int32_t id; // also the sequence id in the context
    SlotState state = SlotState::idle;
    std::unique_ptr<Run> run;
    uint64_t admission = 0;         // when the run came, by the number of all that came; another one for each run
    std::vector<llama_token> cells; // tokens in the KV cache under this sequence, by position
    Adapters adapters;              // that the cells were (or are being) computed with
    int64_t served = 0;             // the last step that was for its adapters
    // So many of the cells, from the first one, are what their tokens alone give. Those after a shift are not: they saw
    // tokens that are gone, and nobody else may have them.
    int32_t n_plain = INT32_MAX;
    int32_t i_batch = -1; // the output in the batch that this slot samples from; -1 none
    // What may be sampled after the token sampled last: in the batch, and in `cells`, after it until it is verified.
    std::vector<llama_token> draft;
    int64_t t_last_used_us = 0;

    // While waiting_prefix: who computes the prefix, and how many tokens of it are wanted.
    const Slot* leader = nullptr;
    uint64_t leader_run = 0;
    int32_t leader_tokens = 0;

    // Places in the prompt where a batch must end, because the state there is wanted (for models that can't cut a
    // sequence).
    std::set<int32_t> stops;

    RunSnapshot last; // of the run that was here before

    bool busy() const { return run != nullptr; }
    bool in_prompt() const { return state == SlotState::waiting_prefix || state == SlotState::processing_prompt; }
    int32_t n_cells() const { return static_cast<int32_t>(cells.size()); }
    bool shifted() const { return n_plain < n_cells(); }
};

} // namespace llamaserve

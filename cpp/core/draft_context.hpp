// The draft model's context, which follows the slots: each sequence has the tokens of the slot with its number.
#pragma once

#include "slot.hpp"

#include <vector>

namespace llamaserve {

// It catches up with a slot whenever that has moved on, in whatever way: by a prompt, another slot's prefix, cells from
// host memory, a shift, or a draft of which a part was accepted. So nobody has to tell it.
class DraftContext {
public:
    DraftContext(llama_context* ctx, const std::vector<Slot>& slots);

    // Computes at most `n` of the tokens that busy slots have and this context has not.
    void catch_up(const std::vector<Slot>& slots, int32_t n);

    // It has just what the slot has.
    bool ready(const Slot& slot) const;

    // The slot's draft was made here, on top of what the slot has.
    void drafted(const std::vector<Slot>& slots, const Slot& slot);

private:
    struct Sequence {
        std::vector<llama_token> cells;
        uint64_t no_room_for = 0; // a request that didn't fit
    };

    Sequence& of(const Slot& slot) { return sequences_[static_cast<size_t>(slot.id)]; }
    void align(const std::vector<Slot>& slots, const Slot& slot);
    void take(int32_t from, const Slot& slot, size_t n);
    void cut(int32_t seq, size_t n);
    bool clear_idle(const std::vector<Slot>& slots);
    void add(const Slot& slot, int32_t& room);
    void decode(const std::vector<Slot>& slots);

    llama_context* ctx_;
    llama_memory_t mem_;
    int32_t n_vocab_, n_swa_;
    bool unified_;
    std::vector<Sequence> sequences_;
    // The batch: tokens of slots, by their sequence.
    std::vector<llama_token> token_;
    std::vector<llama_pos> pos_;
    std::vector<llama_seq_id> seq_;
};

} // namespace llamaserve

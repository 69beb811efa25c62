#include "draft_context.hpp"

#include "log.hpp"

#include <algorithm>

namespace llamaserve {

namespace {

// Taking cells from another sequence is not worth it for fewer.
constexpr size_t min_taken = 16;

size_t common_prefix(const std::vector<llama_token>& a, const std::vector<llama_token>& b) {
    return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

bool wants_drafts(const Slot& slot) {
    return slot.busy() && slot.state != SlotState::waiting_prefix && slot.run->request().params.speculative_n_max != 0;
}

} // namespace

DraftContext::DraftContext(llama_context* ctx, const std::vector<Slot>& slots)
    : ctx_(ctx), mem_(llama_get_memory(ctx)),
      n_vocab_(llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)))),
      n_swa_(llama_model_n_swa(llama_get_model(ctx))), unified_(llama_n_ctx(ctx) == llama_n_ctx_seq(ctx)),
      sequences_(slots.size()) {}

bool DraftContext::ready(const Slot& slot) const {
    return sequences_[static_cast<size_t>(slot.id)].cells == slot.cells;
}

void DraftContext::catch_up(const std::vector<Slot>& slots, int32_t n) {
    token_.clear();
    pos_.clear();
    seq_.clear();
    int32_t room = std::min(n, static_cast<int32_t>(llama_n_batch(ctx_)));
    std::vector<const Slot*> behind;
    for (const Slot& slot : slots) {
        if (wants_drafts(slot) && of(slot).no_room_for != slot.run->id()) {
            align(slots, slot);
            behind.push_back(&slot);
        }
    }
    // Those who wait for drafts first. Nothing can be taken from others any more: not all that they have is computed.
    for (const SlotState state : {SlotState::generating, SlotState::processing_prompt}) {
        for (const Slot* slot : behind) {
            if (slot->state == state) {
                add(*slot, room);
            }
        }
    }
    if (!token_.empty()) {
        decode(slots);
    }
}

// Cuts the sequence to what the slot has of it, or takes more from another one.
void DraftContext::align(const std::vector<Slot>& slots, const Slot& slot) {
    size_t have = common_prefix(of(slot).cells, slot.cells);
    if (slot.cells.size() >= have + min_taken) {
        const Slot* best = nullptr;
        size_t most = have + min_taken - 1;
        for (const Slot& other : slots) {
            const size_t n = &other == &slot ? 0 : common_prefix(of(other).cells, slot.cells);
            if (n > most) {
                most = n;
                best = &other;
            }
        }
        if (best != nullptr && n_swa_ == 0) {
            take(best->id, slot, most);
            return;
        }
    }
    if (have < of(slot).cells.size()) {
        cut(slot.id, have);
    }
}

void DraftContext::take(int32_t from, const Slot& slot, size_t n) {
    cut(slot.id, 0);
    if (unified_) {
        llama_memory_seq_cp(mem_, from, slot.id, 0, static_cast<llama_pos>(n));
    } else {
        std::vector<uint8_t> state(llama_state_seq_get_size(ctx_, from));
        const size_t size = llama_state_seq_get_data(ctx_, state.data(), state.size(), from);
        const LogCapture no_room_is_no_error(true);
        if (size == 0 || llama_state_seq_set_data(ctx_, state.data(), size, slot.id) == 0) {
            cut(slot.id, 0);
            return;
        }
    }
    of(slot).cells = sequences_[static_cast<size_t>(from)].cells;
    cut(slot.id, n);
}

void DraftContext::cut(int32_t seq, size_t n) {
    // A window that has moved on lacks what comes before the cut.
    const auto end = static_cast<llama_pos>(n);
    const bool whole = n_swa_ == 0 || llama_memory_seq_pos_min(mem_, seq) <= std::max(0, end - n_swa_);
    if (n > 0 && (!whole || !llama_memory_seq_rm(mem_, seq, end, -1))) {
        n = 0;
    }
    if (n == 0) {
        llama_memory_seq_rm(mem_, seq, -1, -1);
    }
    auto& cells = sequences_[static_cast<size_t>(seq)].cells;
    cells.resize(std::min(cells.size(), n));
}

// Adds to the batch what the slot has and its sequence has not.
void DraftContext::add(const Slot& slot, int32_t& room) {
    auto& cells = of(slot).cells;
    while (room > 0 && cells.size() < slot.cells.size()) {
        const llama_token token = slot.cells[cells.size()];
        if (token >= n_vocab_) {
            return; // the draft model doesn't know it
        }
        token_.push_back(token);
        pos_.push_back(static_cast<llama_pos>(cells.size()));
        seq_.push_back(slot.id);
        cells.push_back(token);
        --room;
    }
}

void DraftContext::decode(const std::vector<Slot>& slots) {
    std::vector<int32_t> n_seq(token_.size(), 1);
    std::vector<int8_t> output(token_.size(), 0);
    std::vector<llama_seq_id*> seq(token_.size());
    for (size_t i = 0; i < token_.size(); ++i) {
        seq[i] = &seq_[i];
    }
    llama_batch batch{};
    batch.n_tokens = static_cast<int32_t>(token_.size());
    batch.token = token_.data();
    batch.pos = pos_.data();
    batch.n_seq_id = n_seq.data();
    batch.seq_id = seq.data();
    batch.logits = output.data();
    const LogCapture no_room_is_no_error(true);
    if (llama_decode(ctx_, batch) == 0) {
        return;
    }
    // Which cells are left behind isn't known. If idle slots have some to give, it is worth another try.
    const bool again = clear_idle(slots);
    for (const Slot& slot : slots) {
        if (std::find(seq_.begin(), seq_.end(), slot.id) != seq_.end()) {
            cut(slot.id, 0);
            of(slot).no_room_for = again ? 0 : slot.run->id();
        }
    }
}

bool DraftContext::clear_idle(const std::vector<Slot>& slots) {
    bool any = false;
    for (const Slot& slot : slots) {
        if (!wants_drafts(slot) && !of(slot).cells.empty()) {
            cut(slot.id, 0);
            any = true;
        }
    }
    return any;
}

void DraftContext::drafted(const std::vector<Slot>& slots, const Slot& slot) {
    auto& cells = of(slot).cells;
    const size_t before = cells.size();
    const auto have = static_cast<size_t>(llama_memory_seq_pos_max(mem_, slot.id) + 1);
    if (have > before) {
        cells.push_back(slot.run->sampled());
        for (size_t i = 0; i < slot.draft.size() && cells.size() < have; ++i) {
            cells.push_back(slot.draft[i]);
        }
    }
    if (have > cells.size()) {
        cut(slot.id, cells.size()); // of a draft that was too short to be used
    } else if (have == before && slot.draft.empty()) {
        clear_idle(slots); // nothing could be computed
    }
}

} // namespace llamaserve

// Drafts in the batch: how many fit, and what is left of them once their logits are there.
#include "scheduler.hpp"

#include <algorithm>

namespace llamaserve {

// Drafts for the generating slots. A long draft must not hold up the streams of others, so where there are several
// they share what a step may take on.
void Scheduler::draft() {
    const auto generating = [&](const Slot& slot) { return slot.state == SlotState::generating && in_turn(slot); };
    auto n = static_cast<int32_t>(std::count_if(slots_.begin(), slots_.end(), generating));
    const int32_t n_batch = model_.info().n_batch;
    speculation_->draft(slots_, n > 0 ? budget_.tokens() : n_batch);
    int32_t room = n > 1 ? std::min(budget_.tokens(), n_batch - n) : n_batch - n;
    for (Slot& slot : slots_) {
        if (generating(slot)) {
            const auto share = static_cast<size_t>(std::max(0, room / n));
            slot.draft.resize(std::min(slot.draft.size(), share));
            room -= static_cast<int32_t>(slot.draft.size());
            --n;
        } else {
            slot.draft.clear(); // another step's turn
        }
    }
}

// Takes all drafts out of the batch that wasn't computed. Returns false if there are none.
bool Scheduler::drop_drafts() {
    if (std::erase_if(batch_, [](const Entry& e) { return e.draft; }) == 0) {
        return false;
    }
    for (Slot& slot : slots_) {
        slot.cells.resize(slot.cells.size() - slot.draft.size());
        slot.draft.clear();
    }
    find_outputs();
    return true;
}

// The slot has sampled `n` tokens, of which `n_accepted` were drafted. Cells of the others that were drafted go.
void Scheduler::settle_draft(Slot& slot, int32_t n, int32_t n_accepted) {
    const auto n_draft = static_cast<int32_t>(slot.draft.size());
    if (n_draft == 0) {
        return;
    }
    const int32_t n_cells = slot.n_cells() - n_draft + std::max(n, 1) - 1;
    slot.cells.resize(static_cast<size_t>(n_cells));
    llama_memory_seq_rm(llama_get_memory(ctx_), slot.id, n_cells, -1);
    slot.draft.clear();
    speculation_->accepted(slot, n_accepted);
    ++metrics_.n_drafts;
    metrics_.n_draft_tokens += n_draft;
    metrics_.n_draft_accepted += n_accepted;
    auto& by_place = metrics_.n_draft_accepted_by_place;
    by_place.resize(std::max(by_place.size(), static_cast<size_t>(n_draft)));
    for (int32_t i = 0; i < n_accepted; ++i) {
        ++by_place[static_cast<size_t>(i)];
    }
}

} // namespace llamaserve

// What is done to a slot on demand: its cells saved, restored, erased.
#include "scheduler.hpp"

#include "error.hpp"
#include "log.hpp"

namespace llamaserve {

Slot& Scheduler::idle_slot(int32_t id) {
    const auto n = static_cast<int32_t>(slots_.size());
    if (id < 0 || id >= n) {
        throw Refused("invalid_request", "Invalid slot ID: there is no slot " + std::to_string(id) +
                                             "; there are slots 0 to " + std::to_string(n - 1));
    }
    Slot& slot = slots_[static_cast<size_t>(id)];
    if (slot.busy()) {
        throw Refused("unavailable", "slot " + std::to_string(id) + " is busy; try again when its request has ended");
    }
    return slot;
}

SavedSlot Scheduler::save_slot(int32_t id) {
    Slot& slot = idle_slot(id);
    drop_shifted(slot);
    return {slot.cells, cache_.dump(id), 0};
}

void Scheduler::restore_slot(int32_t id, const SavedSlot& state, const Adapters& adapters) {
    Slot& slot = idle_slot(id);
    for (const llama_token token : state.tokens) {
        if (!model_.is_token(token)) {
            throw Refused("invalid_request", "Unable to restore slot: the file holds tokens of another vocabulary");
        }
    }
    give_up_cells(slot);
    const auto n = static_cast<int32_t>(state.tokens.size());
    bool ok = cache_.load(id, state.cells, n);
    while (!ok && model_.info().kv_unified) {
        Slot* idle = lru_idle_with_cells();
        if (idle == nullptr) {
            break;
        }
        give_up_cells(*idle);
        ok = cache_.load(id, state.cells, n);
    }
    if (!ok) {
        throw Refused("invalid_request",
                      "Unable to restore slot: the KV cache has no room for it, or the file was saved with another "
                      "model, other cache types or another flash attention");
    }
    slot.cells = state.tokens;
    slot.t_last_used_us = ggml_time_us();
    slot.adapters = adapters;
    cache_.hold(id, slot.cells, slot.adapters);
}

int32_t Scheduler::erase_slot(int32_t id) {
    Slot& slot = idle_slot(id);
    const int32_t n = slot.n_cells();
    clear_cells(slot);
    return n;
}

// In a cache that all slots share, attention looks at the cells of idle ones, too.
void Scheduler::put_idle_slots_away() {
    for (Slot& slot : slots_) {
        if (!slot.busy() && !slot.cells.empty()) {
            log_write(5, "slot " + std::to_string(slot.id) + ": idle, its cells go to host memory " +
                             "(__TEST_TAG_CACHE_IDLE_SLOT__)");
            give_up_cells(slot);
        }
    }
}

} // namespace llamaserve

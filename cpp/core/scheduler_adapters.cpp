// Whose turn it is, where requests run with different LoRA adapters.
#include "scheduler.hpp"

namespace llamaserve {

// The set of the slot that has waited longest.
void Scheduler::choose_adapters() {
    if (model_.params().lora_adapters.empty()) {
        return;
    }
    const auto works = [](const Slot& slot) {
        return slot.state == SlotState::generating || slot.state == SlotState::processing_prompt;
    };
    const Slot* next = nullptr;
    for (const Slot& slot : slots_) {
        if (works(slot) && (next == nullptr || slot.served < next->served)) {
            next = &slot;
        }
    }
    if (next == nullptr) {
        return;
    }
    serving_ = next->adapters.at(next->n_cells());
    ++n_steps_;
    for (Slot& slot : slots_) {
        if (works(slot) && in_turn(slot)) {
            slot.served = n_steps_;
        }
    }
}

bool Scheduler::in_turn(const Slot& slot) const {
    return slot.adapters.at(slot.n_cells()) == serving_;
}

void Scheduler::apply_adapters() {
    const auto& loaded = model_.params().lora_adapters;
    if (loaded.empty() || applied_ == serving_) {
        return;
    }
    std::vector<llama_adapter_lora*> adapters;
    for (const common_adapter_lora_info& adapter : loaded) {
        adapters.push_back(adapter.ptr);
    }
    AdapterScales scales = serving_;
    llama_set_adapters_lora(ctx_, adapters.data(), adapters.size(), scales.data());
    applied_ = serving_;
}

} // namespace llamaserve

// Embeddings and rerank scores: many whole inputs in one batch, which is then done with.
#include "embedding.hpp"
#include "log.hpp"
#include "scheduler.hpp"

#include <algorithm>

namespace llamaserve {

// Computes inputs that hold a slot, as many as fit, and sends off those that are complete.
void Scheduler::embed(Outbox& outbox) {
    add_inputs();
    if (batch_.empty()) {
        return;
    }
    serving_ = batch_.front().slot->run->request().default_scales;
    llama_set_embeddings(ctx_, true);
    const int64_t t0 = ggml_time_us();
    int32_t result = decode_once();
    while (result == 1 && make_room_for_inputs(outbox)) {
        result = decode_once();
    }
    if (result == 0 && !batch_.empty()) {
        after_embed(outbox, ggml_time_us() - t0);
    } else if (result != 1 && result != 2) { // 2: aborted, the engine is closing
        const Failure failure{"internal",
                              "computing the batch failed (llama_decode returned " + std::to_string(result) + ") " +
                                  decode_errors_,
                              0, 0};
        log_write(1, failure.message);
        for (Slot& slot : slots_) {
            if (slot.busy() && slot.state == SlotState::embedding) {
                fail(slot, failure, outbox);
                clear_cells(slot);
            }
        }
    }
    for (Slot& slot : slots_) {
        if (slot.state == SlotState::embedding) {
            slot.i_batch = -1; // nothing is sampled from it
        }
    }
    if (llama_get_memory(ctx_) != nullptr) {
        llama_set_embeddings(ctx_, false);
    }
}

// First come, first served within a priority. While someone is generating, a batch is no longer than a step should be,
// but at least one input.
void Scheduler::add_inputs() {
    batch_.clear();
    std::vector<Slot*> inputs;
    bool generating = false;
    for (Slot& slot : slots_) {
        if (slot.state == SlotState::embedding) {
            inputs.push_back(&slot);
        }
        generating = generating || slot.state == SlotState::generating;
    }
    std::sort(inputs.begin(), inputs.end(), [](const Slot* a, const Slot* b) {
        const int32_t pa = a->run->request().params.priority, pb = b->run->request().params.priority;
        return pa != pb ? pa > pb : a->run->id() < b->run->id();
    });
    const bool split = model_.can_split_embeddings();
    int32_t room = split ? std::min(model_.info().n_ubatch, model_.info().n_batch) : model_.n_embedding_batch();
    if (generating) {
        room = std::min(room, budget_.tokens());
    }
    int32_t length = 0;
    for (Slot* slot : inputs) {
        const std::vector<llama_token>& target = slot->run->target();
        const int32_t left = slot->run->n_target() - slot->n_cells();
        const int32_t n = split ? std::min(left, room) : left;
        if (n > room && !batch_.empty()) {
            continue;
        }
        if (model_.wants_equal_inputs() && length > 0 && n != length) {
            continue;
        }
        length = n;
        for (int32_t i = 0; i < n; ++i) {
            const llama_token token = target[slot->cells.size()];
            batch_.push_back({token, slot->n_cells(), slot, true, true});
            slot->cells.push_back(token);
        }
        room -= n;
        if (room <= 0) {
            break;
        }
    }
}

// Frees KV cells for the batch: what idle slots keep; else the batch's youngest input waits for others to finish; else
// what other inputs have computed so far.
// Returns false if nothing of the batch is left to compute now.
bool Scheduler::make_room_for_inputs(Outbox& outbox) {
    if (Slot* slot = lru_idle_with_cells()) {
        give_up_cells(*slot);
        return true;
    }
    Slot* slot = youngest(true, false, nullptr);
    drop_from_batch(*slot);
    if (!batch_.empty()) {
        return true;
    }
    bool freed = false;
    bool others = false; // that will be done some time, and leave their cells
    for (Slot& other : slots_) {
        if (&other != slot && other.busy() && other.state == SlotState::embedding) {
            freed = freed || !other.cells.empty();
            clear_cells(other); // it starts again later
        }
        others = others || (other.busy() && other.state != SlotState::embedding);
    }
    if (!others && !freed) {
        fail(*slot,
             {"context_size", "the input does not fit into the KV cache; a larger ctx_size would help",
              slot->run->n_target(), model_.info().n_ctx},
             outbox);
    }
    return false;
}

void Scheduler::after_embed(Outbox& outbox, int64_t step_us) {
    count_step(step_us);
    for (size_t i = 0; i < batch_.size();) {
        Slot& slot = *batch_[i].slot;
        const auto first = static_cast<int32_t>(i);
        while (i < batch_.size() && batch_[i].slot == &slot) {
            ++i;
        }
        metrics_.n_tokens_max = std::max<int64_t>(metrics_.n_tokens_max, slot.n_cells());
        if (slot.n_cells() == slot.run->n_target()) {
            outbox.add(slot.run->request().sink, embedding_of(slot, first));
        }
    }
    // Not before all are read: to release a slot touches the context.
    for (Slot& slot : slots_) {
        if (slot.state == SlotState::embedding && slot.n_cells() == slot.run->n_target()) {
            release(slot);
        }
    }
}

// What the batch gave for the slot's input, which starts at `i_first` in it.
Event Scheduler::embedding_of(const Slot& slot, int32_t i_first) const {
    const Request& request = slot.run->request();
    const auto n_embd = static_cast<size_t>(model_.info().n_embd_out);
    if (llama_pooling_type(ctx_) == LLAMA_POOLING_TYPE_NONE) {
        std::vector<float> rows;
        rows.reserve(n_embd * static_cast<size_t>(slot.n_cells()));
        for (int32_t i = 0; i < slot.n_cells(); ++i) {
            const float* row = llama_get_embeddings_ith(ctx_, i_first + i);
            if (row == nullptr) {
                return slot.run->failure_event({"internal", "the model gave no embedding", 0, 0});
            }
            rows.insert(rows.end(), row, row + n_embd);
        }
        return slot.run->embedding_event(std::move(rows), slot.n_cells());
    }
    const float* values = llama_get_embeddings_seq(ctx_, slot.id);
    if (values == nullptr) {
        return slot.run->failure_event({"internal", "the model gave no embedding", 0, 0});
    }
    if (request.kind == RequestKind::rerank) {
        return slot.run->embedding_event({values[0]}, 1);
    }
    return slot.run->embedding_event(normalized({values, n_embd}, request.embedding), 1);
}

} // namespace llamaserve

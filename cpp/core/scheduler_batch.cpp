// What goes into a step's batch, and what happens when the KV cache has no room for it.
#include "scheduler.hpp"

#include "log.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace llamaserve {

void Scheduler::add_decode_tokens() {
    if (speculation_) {
        draft();
    }
    for (Slot& slot : slots_) {
        if (slot.state == SlotState::generating && in_turn(slot)) {
            slot.i_batch = static_cast<int32_t>(batch_.size());
            batch_.push_back({slot.run->sampled(), slot.n_cells(), &slot, false, true});
            slot.cells.push_back(slot.run->sampled());
            for (const llama_token token : slot.draft) {
                batch_.push_back({token, slot.n_cells(), &slot, false, true, true});
                slot.cells.push_back(token);
            }
        }
    }
}

// Prompt tokens take what the decode tokens leave of the step. First come, first served.
void Scheduler::add_prompt_tokens() {
    const auto n_decode = static_cast<int32_t>(batch_.size());
    if (n_decode > 0 && !model_.params().cont_batching) {
        return;
    }
    const int32_t n_batch = model_.info().n_batch;
    // Those who generate with other adapters wait for this step, too.
    const bool someone_generates =
        std::any_of(slots_.begin(), slots_.end(), [](const Slot& s) { return s.state == SlotState::generating; });
    int32_t room = someone_generates ? std::min(budget_.tokens(), n_batch - n_decode) : n_batch;
    std::vector<Slot*> prompts;
    for (Slot& slot : slots_) {
        if (slot.state == SlotState::processing_prompt && in_turn(slot)) {
            prompts.push_back(&slot);
        }
    }
    // A prompt that others wait for is as urgent as the most urgent of them.
    std::vector<int32_t> priority(slots_.size(), INT32_MIN);
    for (const Slot& slot : slots_) {
        const Slot* s = slot.busy() ? &slot : nullptr;
        while (s != nullptr) {
            int32_t& p = priority[static_cast<size_t>(s->id)];
            p = std::max(p, slot.run->request().params.priority);
            s = s->state == SlotState::waiting_prefix ? s->leader : nullptr;
        }
    }
    std::sort(prompts.begin(), prompts.end(), [&](const Slot* a, const Slot* b) {
        const int32_t pa = priority[static_cast<size_t>(a->id)], pb = priority[static_cast<size_t>(b->id)];
        return pa != pb ? pa > pb : a->run->id() < b->run->id();
    });
    for (Slot* slot : prompts) {
        const std::vector<llama_token>& target = slot->run->target();
        const int32_t n = chunk(*slot, room);
        for (int32_t i = 0; i < n; ++i) {
            const llama_token token = target[slot->cells.size()];
            batch_.push_back({token, slot->n_cells(), slot, true, false});
            slot->cells.push_back(token);
        }
        room -= n;
        if (n > 0 && slot->cells.size() == target.size() && slot->run->wants_logits()) {
            batch_.back().output = true;
            slot->i_batch = static_cast<int32_t>(batch_.size()) - 1;
        }
    }
}

// How many tokens of the slot's prompt go into a batch that has room for `room`.
int32_t Scheduler::chunk(const Slot& slot, int32_t room) const {
    int32_t n = std::min(room, slot.run->n_target() - slot.n_cells());
    if (slot.n_cells() < slot.adapters.activation) {
        n = std::min(n, slot.adapters.activation - slot.n_cells());
    }
    const auto stop = slot.stops.upper_bound(slot.n_cells());
    if (stop != slot.stops.end()) {
        n = std::min(n, *stop - slot.n_cells());
    }
    return std::max(n, 0);
}

// Decodes the batch; makes room in the KV cache as often as needed. Returns false if nothing of the batch is left.
bool Scheduler::decode(Outbox& outbox) {
    while (!batch_.empty()) {
        const int32_t result = decode_once();
        if (result == 0) {
            return true;
        }
        if (result == 1 && make_room(outbox)) {
            continue;
        }
        if (result == 2) {
            return false; // aborted: the engine is closing
        }
        // Which cells a failed batch has left behind isn't known, so none of its sequences can go on.
        const Failure failure{"internal",
                              "computing the batch failed (llama_decode returned " + std::to_string(result) + ") " +
                                  decode_errors_,
                              0, 0};
        log_write(1, failure.message);
        for (Slot& slot : slots_) {
            if (slot.busy() && slot.state != SlotState::waiting_prefix) {
                fail(slot, failure, outbox);
                clear_cells(slot);
            }
        }
        batch_.clear();
    }
    return false;
}

int32_t Scheduler::decode_once() {
    const size_t n = batch_.size();
    b_token_.resize(n);
    b_pos_.resize(n);
    b_n_seq_.assign(n, 1);
    b_seq_.resize(n);
    b_seq_ptr_.resize(n);
    b_output_.resize(n);
    for (size_t i = 0; i < n; ++i) {
        b_token_[i] = batch_[i].token;
        b_pos_[i] = batch_[i].pos;
        b_seq_[i] = batch_[i].slot->id;
        b_seq_ptr_[i] = &b_seq_[i];
        b_output_[i] = batch_[i].output ? 1 : 0;
    }
    llama_batch batch{};
    batch.n_tokens = static_cast<int32_t>(n);
    batch.token = b_token_.data();
    batch.pos = b_pos_.data();
    batch.n_seq_id = b_n_seq_.data();
    batch.seq_id = b_seq_ptr_.data();
    batch.logits = b_output_.data();
    apply_adapters();
    // What goes wrong is known from the result; a step that is given up because the engine closes is no error.
    const LogCapture capture(true);
    std::optional<AttentionScope> attention;
    if (own_attention_) {
        prefixes_.set(common_prefixes());
        attention.emplace(&prefixes_);
    }
    const int32_t result = llama_decode(ctx_, batch);
    llama_synchronize(ctx_);
    decode_errors_ = capture.errors();
    return result;
}

// Which of those who generate begin with the same prompt. Only cells that nothing moves or writes again count: those of
// the prompt, before a context shift. A sliding window writes again to those that it has left behind.
std::vector<SharedPrefixes::Group> Scheduler::common_prefixes() const {
    constexpr int32_t worthwhile = 256;
    std::vector<SharedPrefixes::Group> groups;
    if (model_.info().kv_unified || batch_.front().prompt || llama_model_n_swa(model_.model()) > 0) {
        return groups;
    }
    struct First {
        const Slot* slot;
        int32_t n;
    };
    std::vector<First> firsts;
    for (const Slot& slot : slots_) {
        if (slot.state != SlotState::generating || slot.i_batch < 0) {
            continue;
        }
        const int32_t n = std::min({slot.run->n_target(), slot.n_plain, slot.n_cells()});
        if (n < worthwhile) {
            continue;
        }
        const SharedPrefixes::Member member{slot.id, slot.admission};
        bool joined = false;
        for (size_t i = 0; i < groups.size() && !joined; ++i) {
            const auto end = slot.cells.begin() + std::min(n, groups[i].n_tokens);
            const auto differs = std::mismatch(slot.cells.begin(), end, firsts[i].slot->cells.begin()).first;
            const auto common = static_cast<int32_t>(differs - slot.cells.begin());
            // One that has little in common would leave the others with as little.
            if (common >= std::max(worthwhile, firsts[i].n / 4 * 3)) {
                groups[i].members.push_back(member);
                groups[i].n_tokens = common;
                joined = true;
            }
        }
        if (!joined) {
            groups.push_back({{member}, n});
            firsts.push_back({&slot, n});
        }
    }
    return groups;
}

// Frees KV cells for the batch: what idle slots keep; then those of drafts; then part of the batch's youngest prompt;
// then the place of the youngest request, which goes on later. Returns false if one request is left that doesn't fit
// alone and isn't in the batch.
bool Scheduler::make_room(Outbox& outbox) {
    if (Slot* slot = lru_idle_with_cells()) {
        give_up_cells(*slot);
        return true;
    }
    if (drop_drafts()) {
        return true;
    }
    if (batch_.size() > 1) {
        if (Slot* slot = youngest(true, true, nullptr)) {
            drop_from_batch(*slot);
            if (!batch_.empty()) {
                return true;
            }
            // It was alone in the batch: then others, which wait or are further back in the queue, hold the cells.
            add_prompt_tokens();
        }
    }
    Slot* alone = batch_.empty() ? nullptr : batch_.front().slot;
    if (Slot* slot = youngest(false, false, n_busy_ > 1 ? nullptr : alone)) {
        drop_from_batch(*slot);
        preempt(*slot);
        return true;
    }
    if (alone == nullptr) {
        return false;
    }
    drop_from_batch(*alone);
    if (alone->run->n_generated() > 0) {
        alone->run->stop(StopType::limit, true);
        finish(*alone, outbox);
    } else {
        fail(*alone,
             {"context_size", "the prompt does not fit into the KV cache; a larger ctx_size would help",
              alone->run->n_target(), model_.info().n_ctx},
             outbox);
    }
    clear_cells(*alone);
    return true;
}

// The request that came last, of the lowest priority; only among those in the batch, or in their prompt, if so asked.
Slot* Scheduler::youngest(bool in_batch, bool in_prompt, const Slot* besides) {
    Slot* found = nullptr;
    auto rank = [](const Slot& slot) { return std::pair(-slot.run->request().params.priority, slot.run->id()); };
    for (Slot& slot : slots_) {
        if (!slot.busy() || &slot == besides || (in_prompt && slot.state != SlotState::processing_prompt)) {
            continue;
        }
        if (in_batch && std::none_of(batch_.begin(), batch_.end(), [&](const Entry& e) { return e.slot == &slot; })) {
            continue;
        }
        if (found == nullptr || rank(slot) > rank(*found)) {
            found = &slot;
        }
    }
    return found;
}

// Takes the slot's tokens out of the batch that wasn't computed.
void Scheduler::drop_from_batch(Slot& slot) {
    const auto n = std::erase_if(batch_, [&](const Entry& e) { return e.slot == &slot; });
    slot.cells.resize(slot.cells.size() - n);
    slot.draft.clear();
    slot.i_batch = -1;
    find_outputs();
}

// The first output of each slot.
void Scheduler::find_outputs() {
    for (size_t i = batch_.size(); i-- > 0;) {
        if (batch_[i].output) {
            batch_[i].slot->i_batch = static_cast<int32_t>(i);
        }
    }
}

// The request leaves its slot, and its cells go to host memory. It comes back when there is room, and goes on where it
// was.
void Scheduler::preempt(Slot& slot) {
    ++metrics_.n_preempted_total;
    slot.run->preempt(slot.cells);
    if (!slot.shifted()) {
        cache_.save(slot.id, slot.cells, slot.adapters);
    } else if (slot.state == SlotState::generating) {
        slot.run->keep({cache_.read(slot.id), slot.n_plain});
    }
    std::unique_ptr<Run> run = release(slot);
    clear_cells(slot);
    enqueue(std::move(run));
}

Slot* Scheduler::lru_idle_with_cells(const Slot* besides) {
    Slot* oldest = nullptr;
    for (Slot& slot : slots_) {
        if (!slot.busy() && &slot != besides && !slot.cells.empty() &&
            (oldest == nullptr || slot.t_last_used_us < oldest->t_last_used_us)) {
            oldest = &slot;
        }
    }
    return oldest;
}

} // namespace llamaserve

#include "scheduler.hpp"

#include "log.hpp"

#include <algorithm>
#include <exception>
#include <utility>

namespace llamaserve {

Scheduler::Scheduler(const Model& model, const EngineParams& params)
    : model_(model), ctx_(model.context()), mem_(llama_get_memory(model.context())),
      budget_(params.step_target_ms, model.info().n_batch) {
    slots_.reserve(static_cast<size_t>(model.info().n_slots));
    for (int32_t i = 0; i < model.info().n_slots; ++i) {
        slots_.emplace_back(i, model);
    }
}

void Scheduler::submit(std::unique_ptr<Request> request) {
    // Higher priority first, and within one priority first come, first served.
    auto place = std::find_if(waiting_.rbegin(), waiting_.rend(),
                              [&](const auto& other) { return other->params.priority >= request->params.priority; });
    waiting_.insert(place.base(), std::move(request));
    n_waiting_ = static_cast<int32_t>(waiting_.size());
}

void Scheduler::cancel(uint64_t request) {
    std::erase_if(waiting_, [&](const auto& r) { return r->id == request; });
    n_waiting_ = static_cast<int32_t>(waiting_.size());
    for (Slot& slot : slots_) {
        if (slot.busy() && slot.request->id == request) {
            release(slot);
        }
    }
}

void Scheduler::fail_all(const Failure& failure, Outbox& outbox) {
    for (auto& request : waiting_) {
        Event e;
        e.request = request->id;
        e.kind = EventKind::error;
        e.failure = failure;
        outbox.add(request->sink, std::move(e));
    }
    waiting_.clear();
    n_waiting_ = 0;
    for (Slot& slot : slots_) {
        if (slot.busy()) {
            fail(slot, failure, outbox);
        }
    }
}

bool Scheduler::step(Outbox& outbox) {
    admit(outbox);
    batch_.clear();
    add_decode_tokens();
    add_prompt_tokens(outbox);
    if (batch_.empty()) {
        return !idle();
    }
    const int64_t t0 = ggml_time_us();
    if (decode(outbox)) {
        after_decode(outbox, ggml_time_us() - t0);
    }
    return true;
}

void Scheduler::admit(Outbox& outbox) {
    for (auto it = waiting_.begin(); it != waiting_.end() && n_busy_ < model_.info().n_slots;) {
        Slot* slot = find_slot(**it);
        if (slot == nullptr) {
            ++it; // it asked for a slot that is busy
            continue;
        }
        slot->assign(std::move(*it));
        ++n_busy_;
        it = waiting_.erase(it);
        if (slot->request->tokens.empty()) {
            finish(*slot, outbox);
        }
    }
    n_waiting_ = static_cast<int32_t>(waiting_.size());
}

// The slot the request asked for; else the idle one that has most of its prompt, if that is enough; else the one idle
// for longest.
Slot* Scheduler::find_slot(const Request& request) {
    if (request.params.id_slot >= 0) {
        Slot& slot = slots_[static_cast<size_t>(request.params.id_slot)];
        return slot.busy() ? nullptr : &slot;
    }
    Slot* best = nullptr;
    Slot* oldest = nullptr;
    size_t best_common = 0;
    for (Slot& slot : slots_) {
        if (slot.busy()) {
            continue;
        }
        if (oldest == nullptr || slot.t_last_used_us < oldest->t_last_used_us) {
            oldest = &slot;
        }
        const auto end =
            std::mismatch(slot.cells.begin(), slot.cells.end(), request.tokens.begin(), request.tokens.end()).first;
        const auto common = static_cast<size_t>(end - slot.cells.begin());
        if (common > best_common) {
            best_common = common;
            best = &slot;
        }
    }
    const float needed = model_.params().slot_prompt_similarity;
    if (best != nullptr && needed > 0.0f &&
        static_cast<float>(best_common) > needed * static_cast<float>(request.tokens.size())) {
        return best;
    }
    return oldest;
}

// Cuts the slot's cells back to what the prompt can use of them, and returns how many tokens that are.
int32_t Scheduler::reuse_cache(Slot& slot) {
    const Request& request = *slot.request;
    int32_t n = 0;
    if (request.params.cache_prompt) {
        const auto end =
            std::mismatch(slot.cells.begin(), slot.cells.end(), request.tokens.begin(), request.tokens.end()).first;
        n = static_cast<int32_t>(end - slot.cells.begin());
    }
    // At least one token has to be computed: its logits are what is sampled from.
    n = std::min(n, request.n_tokens() - 1);
    if (n > 0 && model_.n_swa() > 0) {
        // A sliding window has dropped older cells; it can go back only to where its window is still whole.
        const llama_pos needed = std::max(0, n - model_.n_swa());
        if (llama_memory_seq_pos_min(mem_, slot.id) > needed) {
            n = 0;
        }
    }
    if (n < slot.n_cells() && (n == 0 || !llama_memory_seq_rm(mem_, slot.id, n, -1))) {
        // Recurrent states can't be cut at a token.
        clear_cells(slot);
        n = 0;
    }
    slot.cells.resize(static_cast<size_t>(n));
    return n;
}

bool Scheduler::start_prompt(Slot& slot, Outbox& outbox) {
    const int32_t cached = reuse_cache(slot);
    slot.begin_prompt(cached);
    metrics_.prompt_tokens_cached_total += cached;
    if (slot.request->params.stream) {
        outbox.add(slot.request->sink, slot.started_event());
    }
    return true;
}

void Scheduler::add_decode_tokens() {
    for (Slot& slot : slots_) {
        if (slot.state == SlotState::generating) {
            slot.i_batch = static_cast<int32_t>(batch_.size());
            batch_.push_back({slot.sampled(), slot.n_cells(), &slot, false, true});
            slot.cells.push_back(slot.sampled());
        }
    }
}

void Scheduler::add_prompt_tokens(Outbox& outbox) {
    const auto n_decode = static_cast<int32_t>(batch_.size());
    if (n_decode > 0 && !model_.params().cont_batching) {
        return;
    }
    // Decode tokens are in already. A prompt takes what is left of the step.
    const int32_t n_batch = model_.info().n_batch;
    int32_t room = n_decode > 0 ? std::min(budget_.tokens(), n_batch - n_decode) : n_batch;
    std::vector<Slot*> in_prompt;
    for (Slot& slot : slots_) {
        if (slot.in_prompt()) {
            in_prompt.push_back(&slot);
        }
    }
    std::sort(in_prompt.begin(), in_prompt.end(), [](const Slot* a, const Slot* b) {
        const Request &ra = *a->request, &rb = *b->request;
        return std::pair(-ra.params.priority, ra.id) < std::pair(-rb.params.priority, rb.id);
    });
    for (Slot* slot : in_prompt) {
        if (room <= 0) {
            return;
        }
        if (slot->state == SlotState::started) {
            start_prompt(*slot, outbox);
        }
        const std::vector<llama_token>& tokens = slot->request->tokens;
        const auto n_new = std::min<size_t>(static_cast<size_t>(room), tokens.size() - slot->cells.size());
        for (size_t i = 0; i < n_new; ++i) {
            const llama_token token = tokens[slot->cells.size()];
            batch_.push_back({token, slot->n_cells(), slot, true, false});
            slot->cells.push_back(token);
        }
        room -= static_cast<int32_t>(n_new);
        if (slot->cells.size() == tokens.size()) {
            batch_.back().output = true;
            slot->i_batch = static_cast<int32_t>(batch_.size()) - 1;
        }
    }
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
        const Failure failure{
            "internal", "computing the batch failed (llama_decode returned " + std::to_string(result) + ")", 0, 0};
        log_write(1, failure.message);
        for (Slot& slot : slots_) {
            if (slot.busy() && slot.state != SlotState::started) {
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
    const int32_t result = llama_decode(ctx_, batch);
    llama_synchronize(ctx_);
    return result;
}

// Frees KV cells for the batch: first what idle slots keep, then the youngest prompt's place in the batch, then the
// youngest request. Returns false if only one request is left, which then doesn't fit alone.
bool Scheduler::make_room(Outbox& outbox) {
    if (Slot* slot = lru_idle_with_cells()) {
        clear_cells(*slot);
        return true;
    }
    Slot* youngest_prompt = nullptr;
    Slot* youngest = nullptr;
    int32_t n_in_batch = 0;
    for (Slot& slot : slots_) {
        const bool in_batch =
            std::any_of(batch_.begin(), batch_.end(), [&](const Entry& e) { return e.slot == &slot; });
        if (!in_batch) {
            continue;
        }
        ++n_in_batch;
        if (youngest == nullptr || slot.request->id > youngest->request->id) {
            youngest = &slot;
        }
        if (slot.in_prompt() && (youngest_prompt == nullptr || slot.request->id > youngest_prompt->request->id)) {
            youngest_prompt = &slot;
        }
    }
    if (n_in_batch > 1 && youngest_prompt != nullptr) {
        drop_from_batch(*youngest_prompt);
        return true;
    }
    if (youngest == nullptr) {
        return false;
    }
    drop_from_batch(*youngest);
    if (youngest->state == SlotState::generating) {
        youngest->stop(StopType::limit, true);
        finish(*youngest, outbox);
    } else {
        fail(*youngest,
             {"unavailable", "the KV cache is full; a larger ctx_size or fewer requests at once would help", 0, 0},
             outbox);
    }
    clear_cells(*youngest);
    return true;
}

// Takes the slot's tokens out of the batch that wasn't computed.
void Scheduler::drop_from_batch(const Slot& slot) {
    auto& cells = const_cast<Slot&>(slot).cells;
    const auto n = std::erase_if(batch_, [&](const Entry& e) { return e.slot == &slot; });
    cells.resize(cells.size() - n);
    for (Slot& other : slots_) {
        other.i_batch = -1;
    }
    for (size_t i = 0; i < batch_.size(); ++i) {
        if (batch_[i].output) {
            batch_[i].slot->i_batch = static_cast<int32_t>(i);
        }
    }
}

void Scheduler::after_decode(Outbox& outbox, int64_t step_us) {
    int32_t n_prompt = 0;
    for (const Entry& e : batch_) {
        if (e.prompt) {
            ++n_prompt;
            e.slot->count_prompt(1);
        }
    }
    const int32_t n_decode = static_cast<int32_t>(batch_.size()) - n_prompt;
    budget_.measured(n_prompt, n_decode, static_cast<double>(step_us) / 1000.0);
    ++metrics_.n_decode_total;
    metrics_.n_busy_slots_total += n_busy_;
    // A step's time counts for prompts and for generating by their share of its tokens.
    const int64_t prompt_us = step_us * n_prompt / static_cast<int64_t>(batch_.size());
    metrics_.prompt_tokens_total += n_prompt;
    metrics_.prompt_tokens_window += n_prompt;
    metrics_.prompt_us_total += prompt_us;
    metrics_.prompt_us_window += prompt_us;
    metrics_.predicted_us_total += step_us - prompt_us;
    metrics_.predicted_us_window += step_us - prompt_us;

    for (Slot& slot : slots_) {
        if (!slot.busy()) {
            continue;
        }
        metrics_.n_tokens_max = std::max<int64_t>(metrics_.n_tokens_max, slot.n_cells());
        if (slot.state == SlotState::processing_prompt && slot.request->params.stream &&
            slot.request->params.return_progress) {
            outbox.add(slot.request->sink, slot.progress_event());
        }
        if (slot.i_batch >= 0) {
            sample(slot, outbox);
        }
    }
}

void Scheduler::sample(Slot& slot, Outbox& outbox) {
    if (slot.n_predict() == 0) {
        slot.stop(StopType::limit, false);
        finish(slot, outbox);
        return;
    }
    bool more = false;
    try {
        more = slot.sample();
    } catch (const std::exception& e) {
        fail(slot, {"invalid_request", e.what(), 0, 0}, outbox);
        return;
    }
    slot.i_batch = -1;
    ++metrics_.tokens_predicted_total;
    ++metrics_.predicted_tokens_window;
    if (!more) {
        finish(slot, outbox);
    } else if (slot.request->params.stream && slot.has_output()) {
        outbox.add(slot.request->sink, slot.token_event());
    }
}

void Scheduler::finish(Slot& slot, Outbox& outbox) {
    outbox.add(slot.request->sink, slot.finish_event());
    release(slot);
}

void Scheduler::fail(Slot& slot, Failure failure, Outbox& outbox) {
    outbox.add(slot.request->sink, slot.failure_event(std::move(failure)));
    release(slot);
}

void Scheduler::release(Slot& slot) {
    slot.release();
    --n_busy_;
}

void Scheduler::clear_cells(Slot& slot) {
    llama_memory_seq_rm(mem_, slot.id, -1, -1);
    slot.cells.clear();
}

Slot* Scheduler::lru_idle_with_cells() {
    Slot* oldest = nullptr;
    for (Slot& slot : slots_) {
        // A slot that was assigned but hasn't started holds cells that its request may still want, after all idle ones
        // are gone.
        if (!slot.busy() && !slot.cells.empty() &&
            (oldest == nullptr || slot.t_last_used_us < oldest->t_last_used_us)) {
            oldest = &slot;
        }
    }
    return oldest;
}

std::vector<SlotSnapshot> Scheduler::slots() const {
    std::vector<SlotSnapshot> out;
    out.reserve(slots_.size());
    for (const Slot& slot : slots_) {
        out.push_back(slot.snapshot(true));
    }
    return out;
}

Metrics Scheduler::metrics(bool reset_window) {
    Metrics out = metrics_;
    out.requests_processing = n_busy_;
    out.requests_deferred = static_cast<int32_t>(waiting_.size());
    for (const Slot& slot : slots_) {
        out.kv_cells_used += slot.n_cells();
    }
    if (reset_window) {
        metrics_.prompt_tokens_window = metrics_.prompt_us_window = 0;
        metrics_.predicted_tokens_window = metrics_.predicted_us_window = 0;
    }
    return out;
}

} // namespace llamaserve

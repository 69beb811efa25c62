// The step, the queue, and what comes of a step. See scheduler_prompt.cpp for prompts, scheduler_batch.cpp for the
// batch.
#include "scheduler.hpp"

#include "backends.hpp"
#include "log.hpp"
#include "parallel.hpp"

#include <algorithm>
#include <utility>

namespace llamaserve {

namespace {

// Waiting this long is worth as much as one level of priority.
constexpr int64_t aging_us = 10'000'000;

// Smaller comes first. Since all requests age alike, their order never changes while they wait.
int64_t turn(const Run& run) {
    return run.request().t_arrival_us - aging_us * run.request().params.priority;
}

int64_t to_bytes(int32_t mib) {
    return mib < 0 ? -1 : static_cast<int64_t>(mib) * 1024 * 1024;
}

} // namespace

const char* slot_state_name(SlotState state) {
    switch (state) {
    case SlotState::waiting_prefix:
        return "waiting_prefix";
    case SlotState::processing_prompt:
        return "processing_prompt";
    case SlotState::embedding:
        return "embedding";
    case SlotState::generating:
        return "generating";
    default:
        return "idle";
    }
}

Scheduler::Scheduler(const Model& model, const EngineParams& params)
    : model_(model), ctx_(model.context()), cache_(model, to_bytes(params.cache_ram), params.ctx_checkpoints),
      put_away_(params.cache_idle_slots && model.info().kv_unified && params.cache_ram != 0 && params.cache_reuse == 0),
      apart_(!model.info().kv_unified && model.info().n_slots > 1 && on_cpu_alone(model.params())),
      own_attention_(params.cpu_attention == "auto" && on_cpu_alone(model.params())),
      budget_(params.step_target_ms, model.info().n_batch) {
    if (put_away_) {
        log_write(5, "idle slots give up their cells to host memory (__TEST_TAG_CACHE_IDLE_SLOTS_ENABLED__)");
    }
    slots_.reserve(static_cast<size_t>(model.info().n_slots));
    for (int32_t i = 0; i < model.info().n_slots; ++i) {
        slots_.emplace_back(i);
    }
    // Completions want logits alone; only batches of embeddings switch this on.
    if (llama_get_memory(ctx_) != nullptr) {
        llama_set_embeddings(ctx_, false);
    }
    speculation_ = Speculation::make(model, slots_);
}

void Scheduler::submit(std::unique_ptr<Request> request) {
    timed_ = timed_ || request->params.t_max_ms > 0;
    enqueue(std::make_unique<Run>(std::move(request), model_));
}

void Scheduler::enqueue(std::unique_ptr<Run> run) {
    const auto after = [&](const auto& other) {
        return std::pair(turn(*other), other->id()) < std::pair(turn(*run), run->id());
    };
    auto place = std::find_if(waiting_.rbegin(), waiting_.rend(), after);
    waiting_.insert(place.base(), std::move(run));
    n_waiting_ = static_cast<int32_t>(waiting_.size());
}

void Scheduler::cancel(uint64_t request) {
    std::erase_if(waiting_, [&](const auto& run) { return run->id() == request; });
    n_waiting_ = static_cast<int32_t>(waiting_.size());
    for (Slot& slot : slots_) {
        if (slot.busy() && slot.run->id() == request) {
            release(slot);
        }
    }
}

void Scheduler::fail_all(const Failure& failure, Outbox& outbox) {
    for (auto& run : waiting_) {
        outbox.add(run->request().sink, run->failure_event(failure));
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
    if (timed_) {
        expire(outbox);
    }
    admit(outbox);
    begin_waiting(outbox);
    embed(outbox);
    shift_contexts(outbox);
    choose_adapters();
    if (apart_ && prompts_beside_streams()) {
        batch_.clear();
        const int64_t t0 = ggml_time_us();
        add_prompt_tokens();
        compute(outbox, t0);
        shift_contexts(outbox); // of a prompt that has just ended, with a full context
    }
    batch_.clear();
    const int64_t t0 = ggml_time_us();
    add_decode_tokens(); // drafting takes time, too
    if (batch_.empty() || !apart_) {
        add_prompt_tokens();
    }
    if (batch_.empty()) {
        return !idle();
    }
    compute(outbox, t0);
    return true;
}

void Scheduler::compute(Outbox& outbox, int64_t t_start_us) {
    if (!batch_.empty() && decode(outbox)) {
        after_decode(outbox, ggml_time_us() - t_start_us);
    }
}

// Whether a step has both, in one set of adapters.
bool Scheduler::prompts_beside_streams() const {
    bool prompts = false, streams = false;
    for (const Slot& slot : slots_) {
        prompts = prompts || (slot.state == SlotState::processing_prompt && in_turn(slot));
        streams = streams || (slot.state == SlotState::generating && in_turn(slot));
    }
    return prompts && streams && model_.params().cont_batching;
}

// Ends requests whose time is up: what waits with an error, what generates with what it has.
void Scheduler::expire(Outbox& outbox) {
    const int64_t now = ggml_time_us();
    auto expired = [&](const Run& run) {
        const int64_t limit = run.request().params.t_max_ms;
        return limit > 0 && now - run.request().t_arrival_us > limit * 1000;
    };
    const Failure failure{"unavailable", "the request's time limit passed before it could be answered", 0, 0};
    for (auto& run : waiting_) {
        if (expired(*run)) {
            outbox.add(run->request().sink, run->failure_event(failure));
            run.reset();
        }
    }
    std::erase(waiting_, nullptr);
    n_waiting_ = static_cast<int32_t>(waiting_.size());
    for (Slot& slot : slots_) {
        if (slot.busy() && expired(*slot.run)) {
            if (slot.run->n_generated() > 0) {
                slot.run->stop(StopType::limit, false);
                finish(slot, outbox);
            } else {
                fail(slot, failure, outbox);
            }
        }
    }
}

void Scheduler::admit(Outbox& outbox) {
    bool admitted = false;
    for (auto it = waiting_.begin(); it != waiting_.end() && n_busy_ < model_.info().n_slots;) {
        if (!fits(**it)) {
            break; // nobody overtakes it, or it would never fit
        }
        Slot* slot = find_slot(**it);
        if (slot == nullptr) {
            ++it; // it asked for a slot that is busy
            continue;
        }
        slot->run = std::move(*it);
        slot->admission = ++n_admitted_;
        ++n_busy_;
        it = waiting_.erase(it);
        admitted = true;
        if (slot->run->request().kind != RequestKind::completion) {
            give_up_cells(*slot);
            slot->run->begin_prompt(slot->id, 0);
            slot->state = SlotState::embedding;
        } else if (slot->run->n_target() == 0) {
            finish(*slot, outbox);
        } else {
            begin(*slot, outbox);
        }
    }
    n_waiting_ = static_cast<int32_t>(waiting_.size());
    if (admitted && put_away_) {
        put_idle_slots_away();
    }
}

// A request that had to leave comes back only when there is room for it, or it would push others out in turn.
bool Scheduler::fits(const Run& run) const {
    if (!run.was_preempted() || n_busy_ == 0) {
        return true;
    }
    int64_t used = 0;
    for (const Slot& slot : slots_) {
        used += slot.busy() ? std::max(slot.n_cells(), slot.run->n_target()) : 0;
    }
    const int64_t n_ctx = model_.info().n_ctx;
    return used + run.n_target() + n_ctx / 16 < n_ctx;
}

void Scheduler::count_step(int64_t step_us) {
    int32_t n_prompt = 0;
    for (size_t i = 0; i < batch_.size();) {
        const Entry& first = batch_[i];
        int32_t n = 0; // a slot's tokens lie together
        for (; i < batch_.size() && batch_[i].slot == first.slot; ++i) {
            n += batch_[i].prompt ? 1 : 0;
        }
        if (n > 0) {
            n_prompt += n;
            first.slot->run->count_prompt(n);
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
}

void Scheduler::after_decode(Outbox& outbox, int64_t step_us) {
    count_step(step_us);
    sampling_.clear();
    for (Slot& slot : slots_) {
        if (!slot.busy()) {
            continue;
        }
        const auto n_known = static_cast<int64_t>(slot.cells.size() - slot.draft.size());
        metrics_.n_tokens_max = std::max(metrics_.n_tokens_max, n_known);
        if (slot.state == SlotState::processing_prompt) {
            const RequestParams& params = slot.run->request().params;
            if (params.stream && params.return_progress && slot.run->n_generated() == 0) {
                outbox.add(slot.run->request().sink, slot.run->progress_event());
            }
            if (slot.stops.count(slot.n_cells()) > 0) {
                cache_.checkpoint(slot.id, slot.n_cells());
            }
            if (slot.n_cells() == slot.run->n_target()) {
                slot.state = SlotState::generating;
                slot.stops.clear();
            }
        }
        if (slot.i_batch < 0) {
            continue;
        }
        if (slot.run->n_predict() == 0) {
            slot.run->stop(StopType::limit, false);
            finish(slot, outbox);
        } else {
            sampling_.push_back(&slot);
        }
    }
    sample(outbox);
}

// Samples for all slots at once, on the threads that have just computed the logits.
void Scheduler::sample(Outbox& outbox) {
    struct Sampled {
        size_t first; // of the slot's logits
        int32_t n, n_accepted;
    };
    std::vector<Sampled> sampled;
    std::vector<const float*> logits;
    for (const Slot* slot : sampling_) {
        sampled.push_back({logits.size(), slot->run->n_generated(), 0});
        for (size_t i = 0; i <= slot->draft.size(); ++i) {
            logits.push_back(llama_get_logits_ith(ctx_, slot->i_batch + static_cast<int32_t>(i)));
        }
    }
    const auto synthetic = speculation_ ? speculation_->synthetic() : std::span<const double>();
    auto sample_for = [&](size_t i) {
        const Slot& slot = *sampling_[i];
        Run& run = *slot.run;
        const auto own = std::span(logits).subspan(sampled[i].first, slot.draft.size() + 1);
        const int32_t n_cells = slot.n_cells() - static_cast<int32_t>(slot.draft.size());
        sampled[i].n_accepted = run.verify(ctx_, slot.i_batch, own, n_cells, slot.draft, synthetic);
        sampled[i].n = run.n_generated() - sampled[i].n;
    };
    size_t n_free = 0;
    for (size_t i = 0; i < sampling_.size(); ++i) {
        if (sampling_[i]->run->constrained()) {
            sample_for(i);
        } else {
            ++n_free;
        }
    }
    if (n_free > 0) {
        parallel_for(sampling_.size(), model_.params().cpuparams.n_threads, [&](size_t i) {
            if (!sampling_[i]->run->constrained()) {
                sample_for(i);
            }
        });
    }
    for (size_t i = 0; i < sampling_.size(); ++i) {
        Slot* slot = sampling_[i];
        slot->i_batch = -1;
        settle_draft(*slot, sampled[i].n, sampled[i].n_accepted);
        if (!slot->run->error().empty()) {
            fail(*slot, {"invalid_request", slot->run->error(), 0, 0}, outbox);
            continue;
        }
        metrics_.tokens_predicted_total += sampled[i].n;
        metrics_.predicted_tokens_window += sampled[i].n;
        if (!slot->run->has_next()) {
            finish(*slot, outbox);
        } else if (slot->run->request().params.stream && slot->run->has_output()) {
            outbox.add(slot->run->request().sink, slot->run->token_event());
        }
    }
}

void Scheduler::finish(Slot& slot, Outbox& outbox) {
    outbox.add(slot.run->request().sink, slot.run->finish_event(slot.id, slot.n_cells()));
    release(slot);
}

void Scheduler::fail(Slot& slot, Failure failure, Outbox& outbox) {
    outbox.add(slot.run->request().sink, slot.run->failure_event(std::move(failure)));
    release(slot);
}

// The run leaves; the cells stay for whoever can use them.
std::unique_ptr<Run> Scheduler::release(Slot& slot) {
    if (slot.run->request().params.cache_prompt) {
        if (slot.run->request().params.n_cache_reuse == 0) {
            drop_shifted(slot);
        }
        hold_plain(slot, slot.cells);
    } else {
        clear_cells(slot);
    }
    slot.last = slot.run->snapshot(false);
    slot.state = SlotState::idle;
    slot.i_batch = -1;
    slot.draft.clear();
    slot.leader = nullptr;
    slot.stops.clear();
    slot.t_last_used_us = ggml_time_us();
    --n_busy_;
    return std::exchange(slot.run, nullptr);
}

void Scheduler::clear_cells(Slot& slot) {
    cache_.clear(slot.id);
    cache_.forget(slot.id);
    slot.cells.clear();
    slot.n_plain = INT32_MAX;
}

std::vector<SlotSnapshot> Scheduler::slots() const {
    std::vector<SlotSnapshot> out;
    out.reserve(slots_.size());
    for (const Slot& slot : slots_) {
        SlotSnapshot s;
        static_cast<RunSnapshot&>(s) = slot.run ? slot.run->snapshot(true) : slot.last;
        s.id = slot.id;
        s.n_ctx = model_.n_ctx_slot();
        s.state = slot.state;
        s.speculative = speculation_ != nullptr;
        s.n_prompt_tokens = slot.n_cells();
        out.push_back(std::move(s));
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
    out.cache_ram_bytes = cache_.ram_used();
    out.cache_ram_entries = static_cast<int64_t>(cache_.n_saved());
    if (reset_window) {
        metrics_.prompt_tokens_window = metrics_.prompt_us_window = 0;
        metrics_.predicted_tokens_window = metrics_.predicted_us_window = 0;
    }
    return out;
}

} // namespace llamaserve

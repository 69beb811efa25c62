// How a prompt gets into a slot: from the slot's own cells, another slot's, host memory, or a prompt that is being
// computed now.
#include "scheduler.hpp"

#include "log.hpp"

#include <algorithm>

namespace llamaserve {

namespace {

// Waiting for another slot's prefill is not worth it for fewer tokens.
constexpr int32_t min_wait_tokens = 16;

// Whether `slot` waits for `other`, perhaps through others in between (or is it).
bool waits_for(const Slot& slot, const Slot& other) {
    const Slot* next = &slot;
    while (next != &other && next->state == SlotState::waiting_prefix) {
        next = next->leader;
    }
    return next == &other;
}

} // namespace

// The slot the request asked for. Else the idle slot that has most of the prompt, if that loses little of what it
// holds; else an empty one; else the one idle for longest, preferably one whose cells another slot has, too.
Slot* Scheduler::find_slot(const Run& run) {
    const RequestParams& params = run.request().params;
    if (params.id_slot >= 0) {
        Slot& slot = slots_[static_cast<size_t>(params.id_slot)];
        return slot.busy() ? nullptr : &slot;
    }
    if (params.cache_prompt) {
        if (Slot* slot = find_reusable(run)) {
            return slot;
        }
        const auto matches = cache_.sequences(run.target(), run.adapters());
        for (const auto& match : matches) {
            Slot& slot = slots_[static_cast<size_t>(match.holder)];
            const auto length = static_cast<int32_t>(match.length);
            if (match.length < matches.front().length) {
                break; // another one has more: better copied from there
            }
            if (!slot.busy() && slot.n_cells() - length <= std::max(min_wait_tokens, length / 8)) {
                return &slot;
            }
        }
    }
    Slot* best = nullptr;
    auto rank = [&](const Slot& slot) {
        return std::pair(slot.cells.empty() ? 0 : cache_.covered(slot.id) ? 1 : 2, slot.t_last_used_us);
    };
    for (Slot& slot : slots_) {
        if (!slot.busy() && (best == nullptr || rank(slot) < rank(*best))) {
            best = &slot;
        }
    }
    return best;
}

// Gives the slot what is computed already of its prompt, and starts on the rest; or makes it wait for a prefix in the
// making.
void Scheduler::begin(Slot& slot, Outbox& outbox) {
    Run& run = *slot.run;
    // The logits after the prompt are wanted, so its last token is computed in any case.
    const int32_t limit = run.n_target() - (run.wants_logits() ? 1 : 0);
    if (restore_shifted(slot)) {
        return;
    }
    if (run.request().params.cache_prompt) {
        const Source source = find_source(slot, limit);
        if (wait_for_prefix(slot, limit, source.length)) {
            return;
        }
        if (!reuse_chunks(slot, source, limit)) {
            take(slot, source);
        }
        slot.adapters = run.adapters();
        hold_plain(slot, run.target());
    } else {
        give_up_cells(slot);
        slot.adapters = run.adapters();
    }
    run.begin_prompt(slot.id, slot.n_cells());
    slot.state = slot.n_cells() == run.n_target() ? SlotState::generating : SlotState::processing_prompt;
    if (run.n_generated() == 0) {
        metrics_.prompt_tokens_cached_total += slot.n_cells();
        if (run.request().params.stream) {
            outbox.add(run.request().sink, run.started_event());
        }
    }
    if (!cache_.cuttable() && run.request().params.cache_prompt && run.wants_logits()) {
        // The next turn of the conversation starts with this prompt, perhaps without its very last tokens.
        slot.stops.insert(run.n_target() - 4);
        // Where two prompts part, a third one is likely to part from them, too.
        for (const auto& match : cache_.sequences(run.target(), run.adapters())) {
            if (match.holder != slot.id) {
                slot.stops.insert(static_cast<int32_t>(match.length));
                break;
            }
        }
    }
}

// Where most of the first `limit` tokens of the slot's prompt can be had.
Scheduler::Source Scheduler::find_source(const Slot& slot, int32_t limit) {
    Source best, own;
    for (const auto& match : cache_.sequences(slot.run->target(), slot.run->adapters())) {
        Slot& other = slots_[static_cast<size_t>(match.holder)];
        // What the other one will hold isn't there yet: only its cells count.
        const int32_t wanted = std::min({static_cast<int32_t>(match.length), other.n_cells(), limit});
        const int32_t length = cache_.reachable(other.id, other.n_cells(), wanted);
        if (length > wanted) {
            continue;
        }
        if (&other == &slot) {
            own = {&other, std::nullopt, length};
        }
        if (length > best.length || (length == best.length && length > 0 && &other == &slot)) {
            best = {&other, std::nullopt, length};
        }
    }
    if (const auto saved = cache_.find_saved(slot.run->target(), slot.run->adapters(), limit);
        saved && saved->length > best.length) {
        best = {nullptr, saved, saved->length};
    }
    // Who names a slot means what is in it: that isn't thrown away for a few tokens more.
    const bool named = slot.run->request().params.id_slot >= 0;
    return named && own.length > 0 && best.length - own.length < min_wait_tokens ? own : best;
}

// If another slot is about to compute more of the prompt than `have` tokens: waits for it. The slot's place in the
// prefix tree is taken by its prompt at once, so that later requests can wait for this one.
bool Scheduler::wait_for_prefix(Slot& slot, int32_t limit, int32_t have) {
    const Run& run = *slot.run;
    Slot* leader = nullptr;
    int32_t length = have + min_wait_tokens;
    for (const auto& match : cache_.sequences(run.target(), run.adapters())) {
        Slot& other = slots_[static_cast<size_t>(match.holder)];
        const int32_t shared = std::min(static_cast<int32_t>(match.length), limit);
        if (other.in_prompt() && other.n_cells() < shared && shared > length && !waits_for(other, slot)) {
            leader = &other;
            length = shared;
        }
    }
    if (leader == nullptr) {
        return false;
    }
    give_up_cells(slot);
    slot.adapters = run.adapters();
    cache_.hold(slot.id, run.target(), slot.adapters);
    slot.state = SlotState::waiting_prefix;
    slot.leader = leader;
    slot.leader_run = leader->run->id();
    slot.leader_tokens = length;
    if (!cache_.cuttable()) {
        leader->stops.insert(length);
    }
    return true;
}

// Looks at the slots that wait for a prefix: it may be there now, or whoever was computing it may have gone.
void Scheduler::begin_waiting(Outbox& outbox) {
    for (Slot& slot : slots_) {
        if (slot.state != SlotState::waiting_prefix) {
            continue;
        }
        const Slot& leader = *slot.leader;
        const bool working = leader.busy() && leader.run->id() == slot.leader_run && leader.in_prompt();
        if (!working || leader.n_cells() >= slot.leader_tokens) {
            slot.state = SlotState::idle; // not in_prompt(), while it looks for a leader
            begin(slot, outbox);
        }
    }
}

void Scheduler::take(Slot& slot, const Source& source) {
    const std::vector<llama_token>& target = slot.run->target();
    int32_t n = 0;
    if (source.slot == &slot) {
        drop_shifted(slot);
        if (slot.n_cells() - source.length > source.length / 8 + min_wait_tokens && !cache_.covered(slot.id)) {
            cache_.save(slot.id, slot.cells, slot.adapters);
        }
        n = cache_.cut(slot.id, slot.n_cells(), source.length);
    } else {
        if (source.saved) {
            cache_.touch(*source.saved);
        }
        give_up_cells(slot);
        for (bool again = source.length > 0; again && n == 0;) {
            n = source.slot != nullptr ? cache_.copy(source.slot->id, source.slot->n_cells(), slot.id, source.length)
                                       : cache_.restore(*source.saved, slot.id);
            // There may be no room for it, where all sequences share one cache: then idle ones have to make some.
            Slot* idle = n == 0 && model_.info().kv_unified ? lru_idle_with_cells(source.slot) : nullptr;
            again = idle != nullptr;
            if (again) {
                clear_cells(*idle); // not saved: that could evict what is to be restored
            }
        }
    }
    slot.cells.assign(target.begin(), target.begin() + n);
    if (source.saved) {
        log_write(5, "slot " + std::to_string(slot.id) + ": updating prompt cache: " + std::to_string(n) +
                         " tokens from host memory");
    }
}

// Empties the slot for another prompt. What it holds goes to host memory, unless another slot has it, too.
void Scheduler::give_up_cells(Slot& slot) {
    drop_shifted(slot);
    if (!slot.cells.empty() && !cache_.covered(slot.id)) {
        cache_.save(slot.id, slot.cells, slot.adapters);
    }
    clear_cells(slot);
}

} // namespace llamaserve

// Cells at new positions: a full context drops its oldest tokens, and chunks of a prompt are reused where they moved
// to.
//
// Shifted cells saw tokens that are gone. They serve the request that has them, but nobody else: the prefix tree knows
// only the plain cells before them.
#include "scheduler.hpp"

#include <algorithm>
#include <span>

namespace llamaserve {

void Scheduler::shift_contexts(Outbox& outbox) {
    if (!model_.context_shift()) {
        return;
    }
    const int32_t n_ctx = model_.n_ctx_slot();
    for (Slot& slot : slots_) {
        if (slot.state != SlotState::generating || slot.n_cells() + 1 < n_ctx) {
            continue;
        }
        const Request& request = slot.run->request();
        int32_t n_keep = request.params.n_keep < 0 ? request.n_tokens() : request.params.n_keep;
        n_keep = std::min(n_keep, n_ctx); // so that the next line can't overflow
        n_keep += llama_vocab_get_add_bos(model_.vocab()) ? 1 : 0;
        n_keep = std::max(0, std::min(n_keep, n_ctx - 4));
        const int32_t n_left = slot.n_cells() - n_keep;
        const int32_t wanted = request.params.n_discard > 0 ? request.params.n_discard : n_left / 2;
        const int32_t n_discard = std::min(wanted, n_left - 1);
        if (n_discard > 0) {
            shift_context(slot, n_keep, n_discard);
        } else { // a context of a few tokens
            slot.run->stop(StopType::limit, true);
            finish(slot, outbox);
        }
    }
}

void Scheduler::shift_context(Slot& slot, int32_t n_keep, int32_t n_discard) {
    const int32_t from = n_keep + n_discard;
    std::vector<llama_token> left(slot.cells.begin(), slot.cells.begin() + n_keep);
    left.insert(left.end(), slot.cells.begin() + from, slot.cells.end());
    if (!shares_after(slot, from) || unshare(slot)) {
        cache_.move_back(slot.id, from, slot.n_cells() - from, n_keep);
        slot.cells = std::move(left);
        slot.n_plain = std::min(slot.n_plain, n_keep);
        slot.run->shift({});
        hold_plain(slot, slot.cells);
        return;
    }
    // There was no room for cells of its own: what is left is computed anew.
    clear_cells(slot);
    slot.run->shift(std::move(left));
    hold_plain(slot, slot.run->target());
    slot.state = SlotState::processing_prompt;
}

// Whether other sequences may have some of the slot's cells after the first `n`. A cell has one position, whoever has
// it, so those can't be moved.
bool Scheduler::shares_after(const Slot& slot, int32_t n) const {
    if (!model_.info().kv_unified) {
        return false;
    }
    return std::any_of(slots_.begin(), slots_.end(), [&](const Slot& other) {
        const auto common = std::mismatch(slot.cells.begin(), slot.cells.end(), other.cells.begin(), other.cells.end());
        return &other != &slot && common.first - slot.cells.begin() > n;
    });
}

// Gives the slot cells of its own; idle slots make room for them. On failure it has none.
bool Scheduler::unshare(Slot& slot) {
    const std::vector<uint8_t> state = cache_.read(slot.id);
    cache_.clear(slot.id);
    while (!cache_.write(slot.id, state)) {
        Slot* idle = lru_idle_with_cells(&slot);
        if (idle == nullptr) {
            return false;
        }
        give_up_cells(*idle);
    }
    return true;
}

// Chunks of the slot's cells that come again in the prompt, after the first `n_have` tokens, which it has. What lies
// between two of them is not in the prompt, so each moves back to the end of the one before.
std::vector<Scheduler::Chunk> Scheduler::reusable(const Slot& slot, const Run& run, int32_t n_have,
                                                  int32_t limit) const {
    const auto cells = std::span(slot.cells);
    const auto prompt = std::span(run.target()).first(static_cast<size_t>(limit));
    const auto shortest = static_cast<size_t>(run.request().params.n_cache_reuse);
    std::vector<Chunk> out;
    auto cell = static_cast<size_t>(n_have), next = cell;
    while (cell < cells.size() && next < prompt.size()) {
        size_t n = 0;
        while (cell + n < cells.size() && next + n < prompt.size() && cells[cell + n] == prompt[next + n]) {
            ++n;
        }
        if (n >= shortest) {
            out.push_back({static_cast<int32_t>(cell), static_cast<int32_t>(n), static_cast<int32_t>(next)});
            cell += n;
            next += n;
        } else {
            ++cell;
        }
    }
    return out;
}

// The idle slot that has most of the prompt, if some of that is at another position.
Slot* Scheduler::find_reusable(const Run& run) {
    if (!model_.can_shift() || run.request().params.n_cache_reuse == 0) {
        return nullptr;
    }
    const int32_t limit = run.n_target() - 1;
    const auto matches = cache_.sequences(run.target(), run.adapters());
    int32_t most = matches.empty() ? 0 : static_cast<int32_t>(matches.front().length);
    Slot* found = nullptr;
    for (Slot& slot : slots_) {
        if (slot.busy() || slot.cells.empty() || slot.adapters != run.adapters()) {
            continue;
        }
        const auto end = run.target().begin() + limit;
        const auto common = std::mismatch(run.target().begin(), end, slot.cells.begin(), slot.cells.end());
        auto n = static_cast<int32_t>(common.first - run.target().begin());
        for (const Chunk& chunk : reusable(slot, run, n, limit)) {
            n += chunk.n;
        }
        if (n > most) {
            most = n;
            found = &slot;
        }
    }
    return found;
}

// Keeps what `source` says of the slot's own cells, and moves chunks to where the prompt has them. Returns false if
// there are none.
bool Scheduler::reuse_chunks(Slot& slot, const Source& source, int32_t limit) {
    const Run& run = *slot.run;
    const bool own = (source.slot == &slot || source.length == 0) && slot.adapters == run.adapters();
    if (!own || !model_.can_shift() || run.request().params.n_cache_reuse == 0) {
        return false;
    }
    const std::vector<Chunk> chunks = reusable(slot, run, source.length, limit);
    if (chunks.empty()) {
        return false;
    }
    if (shares_after(slot, source.length) && !unshare(slot)) {
        clear_cells(slot);
        return false;
    }
    for (const Chunk& chunk : chunks) {
        cache_.move_back(slot.id, chunk.from, chunk.n, chunk.to);
    }
    const int32_t n = chunks.back().to + chunks.back().n;
    cache_.cut(slot.id, slot.n_cells(), n);
    slot.cells.assign(run.target().begin(), run.target().begin() + n);
    slot.n_plain = source.length;
    return true;
}

// A request that was preempted with shifted cells gets them back. Without room for them, or if it has none, returns
// false: then what is left of its context is computed like a prompt.
bool Scheduler::restore_shifted(Slot& slot) {
    const auto shifted = slot.run->take_shifted();
    if (!shifted) {
        return false;
    }
    give_up_cells(slot);
    while (!cache_.write(slot.id, shifted->state)) {
        Slot* idle = lru_idle_with_cells(&slot);
        if (idle == nullptr) {
            return false;
        }
        give_up_cells(*idle);
    }
    slot.cells = slot.run->target();
    slot.n_plain = shifted->n_plain;
    slot.adapters = slot.run->adapters();
    hold_plain(slot, slot.cells);
    slot.run->begin_prompt(slot.id, slot.n_cells());
    slot.state = SlotState::generating;
    return true;
}

// Cuts an idle slot to the cells that others may have.
void Scheduler::drop_shifted(Slot& slot) {
    if (slot.shifted()) {
        const int32_t n = cache_.cut(slot.id, slot.n_cells(), slot.n_plain);
        slot.cells.resize(static_cast<size_t>(n));
    }
    slot.n_plain = INT32_MAX;
}

// Tells the prefix tree that the slot has, or will have, the cells of `tokens`: as many as others may have.
void Scheduler::hold_plain(const Slot& slot, const std::vector<llama_token>& tokens) {
    if (slot.run->request().params.cache_prompt) {
        cache_.hold(slot.id, std::span(tokens).first(std::min(tokens.size(), static_cast<size_t>(slot.n_plain))),
                    slot.adapters);
    }
}

} // namespace llamaserve

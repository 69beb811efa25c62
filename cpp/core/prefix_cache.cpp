#include "prefix_cache.hpp"

#include "error.hpp"
#include "log.hpp"

#include <algorithm>
#include <utility>

namespace llamaserve {

namespace {

// Shorter prefixes are computed faster than they are worth keeping.
constexpr int32_t min_saved_tokens = 16;

// The state API puts a mark and the sequence in front of what it puts into a file.
constexpr std::ptrdiff_t state_head = 8;

} // namespace

PrefixCache::PrefixCache(const Model& model, int64_t ram_limit, int32_t max_checkpoints)
    : model_(model), ctx_(model.context()), mem_(llama_get_memory(ctx_)),
      cuttable_(model.can_cut() && model.n_swa() == 0),
      shared_cells_(model.info().kv_unified || model.info().n_slots == 1), ram_limit_(ram_limit),
      max_checkpoints_(max_checkpoints) {}

void PrefixCache::hold(int32_t seq, Tokens tokens, const Adapters& adapters) {
    kv_.insert(seq, PrefixKey(tokens, adapters).tokens());
}

std::vector<PrefixTree::Match> PrefixCache::matches(const PrefixTree& tree, Tokens tokens, const Adapters& adapters,
                                                    bool whole) {
    const PrefixKey key(tokens, adapters);
    auto found = tree.matches(key.tokens(), whole ? key.tokens().size() : 1);
    for (PrefixTree::Match& match : found) {
        match.length = key.length(match.length);
    }
    std::erase_if(found, [](const PrefixTree::Match& match) { return match.length == 0; });
    return found;
}

void PrefixCache::forget(int32_t seq) {
    kv_.erase(seq);
}

int32_t PrefixCache::reachable(const Checkpoints& checkpoints, bool cuttable, int32_t n_cells, int32_t n) {
    if (n >= n_cells) {
        return n_cells;
    }
    if (cuttable) {
        return n;
    }
    int32_t best = 0;
    for (const Checkpoint& c : checkpoints) {
        if (c.n_tokens <= n) {
            best = c.n_tokens;
        }
    }
    return best;
}

// A sliding window that hasn't moved past `n` yet still has all that a sequence cut there needs.
bool PrefixCache::window_whole(int32_t seq, int32_t n) const {
    return model_.can_cut() && llama_memory_seq_pos_min(mem_, seq) <= std::max(0, n - model_.n_swa());
}

int32_t PrefixCache::reachable(int32_t seq, int32_t n_cells, int32_t n) const {
    if (n > 0 && n < n_cells && window_whole(seq, n)) {
        return n;
    }
    const auto found = checkpoints_.find(seq);
    return reachable(found == checkpoints_.end() ? Checkpoints{} : found->second, cuttable_, n_cells, n);
}

int32_t PrefixCache::cut(int32_t seq, Checkpoints& checkpoints, int32_t n_cells, int32_t n) {
    const bool whole = n > 0 && n < n_cells && window_whole(seq, n);
    const int32_t left = whole ? n : reachable(checkpoints, cuttable_, n_cells, n);
    if (left == n_cells) {
        return left;
    }
    std::erase_if(checkpoints, [&](const Checkpoint& c) { return c.n_tokens > left; });
    bool ok = left > 0;
    if (ok && !whole && !cuttable_) {
        const auto& state = *checkpoints.back().state;
        ok =
            llama_state_seq_set_data_ext(ctx_, state.data(), state.size(), seq, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY) > 0;
    }
    if (ok && llama_memory_seq_rm(mem_, seq, left, -1)) {
        return left;
    }
    llama_memory_seq_rm(mem_, seq, -1, -1);
    checkpoints.clear();
    return 0;
}

int32_t PrefixCache::cut(int32_t seq, int32_t n_cells, int32_t n) {
    return cut(seq, checkpoints_[seq], n_cells, n);
}

void PrefixCache::clear(int32_t seq) {
    llama_memory_seq_rm(mem_, seq, -1, -1);
    checkpoints_.erase(seq);
}

int32_t PrefixCache::copy(int32_t from, int32_t n_cells, int32_t to, int32_t n) {
    clear(to);
    Checkpoints checkpoints = checkpoints_[from];
    const int32_t left = reachable(from, n_cells, n);
    if (left == 0) {
        return 0;
    }
    if (shared_cells_ && cuttable_) {
        llama_memory_seq_cp(mem_, from, to, 0, left);
        return left;
    }
    if (!write(to, read(from))) {
        return 0;
    }
    const int32_t got = cut(to, checkpoints, n_cells, left);
    checkpoints_[to] = std::move(checkpoints);
    return got;
}

std::vector<uint8_t> PrefixCache::read(int32_t seq) const {
    std::vector<uint8_t> state(llama_state_seq_get_size(ctx_, seq));
    state.resize(llama_state_seq_get_data(ctx_, state.data(), state.size(), seq));
    return state;
}

bool PrefixCache::write(int32_t seq, const std::vector<uint8_t>& state) {
    const LogCapture no_room_is_no_error(true);
    if (!state.empty() && llama_state_seq_set_data(ctx_, state.data(), state.size(), seq) > 0) {
        return true;
    }
    clear(seq); // what fitted in must not stay behind
    return false;
}

void PrefixCache::move_back(int32_t seq, int32_t from, int32_t n, int32_t to) {
    llama_memory_seq_rm(mem_, seq, to, from);
    llama_memory_seq_add(mem_, seq, from, from + n, to - from);
}

void PrefixCache::checkpoint(int32_t seq, int32_t n_cells) {
    if (cuttable_ || max_checkpoints_ <= 0) {
        return;
    }
    Checkpoints& list = checkpoints_[seq];
    if (!list.empty() && list.back().n_tokens >= n_cells) {
        return;
    }
    auto state = std::make_shared<std::vector<uint8_t>>(
        llama_state_seq_get_size_ext(ctx_, seq, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY));
    const size_t size =
        llama_state_seq_get_data_ext(ctx_, state->data(), state->size(), seq, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
    if (size == 0) {
        return;
    }
    state->resize(size);
    if (list.size() >= static_cast<size_t>(max_checkpoints_)) {
        // The oldest but the first: the first is where a shared system prompt ends, most likely.
        list.erase(list.size() > 1 ? list.begin() + 1 : list.begin());
    }
    list.push_back({n_cells, std::move(state)});
}

std::vector<uint8_t> PrefixCache::dump(int32_t seq) {
    std::vector<uint8_t> state = read(seq);
    if (state.size() < state_head) {
        throw Refused("internal", "the slot's state can't be read");
    }
    state.erase(state.begin(), state.begin() + state_head);
    return state;
}

bool PrefixCache::load(int32_t to, std::span<const uint8_t> cells, int32_t n) {
    clear(to);
    const LogCapture the_caller_says_it(true);
    std::vector<uint8_t> state = read(to);
    if (state.size() < state_head) {
        return false;
    }
    state.resize(state_head);
    state.insert(state.end(), cells.begin(), cells.end());
    const bool read = llama_state_seq_set_data(ctx_, state.data(), state.size(), to) == state.size();
    if (!read || llama_memory_seq_pos_max(mem_, to) != n - 1) {
        clear(to);
        return false;
    }
    return true;
}

void PrefixCache::save(int32_t seq, Tokens cells, const Adapters& adapters) {
    const auto n = static_cast<int32_t>(cells.size());
    if (ram_limit_ == 0 || n < min_saved_tokens) {
        return;
    }
    const auto known = matches(saved_, cells, adapters, true);
    if (!known.empty() && (cuttable_ || entries_.at(known.front().holder).n_tokens == n)) {
        Entry& entry = entries_.at(known.front().holder);
        lru_.splice(lru_.begin(), lru_, entry.use);
        return;
    }
    const size_t size = llama_state_seq_get_size(ctx_, seq);
    if (ram_limit_ > 0 && static_cast<int64_t>(size) > ram_limit_) {
        return;
    }
    Entry entry{n, std::vector<uint8_t>(size), checkpoints_[seq], 0, {}};
    if (llama_state_seq_get_data(ctx_, entry.state.data(), entry.state.size(), seq) == 0) {
        return;
    }
    entry.size = static_cast<int64_t>(entry.state.size());
    for (const Checkpoint& c : entry.checkpoints) {
        entry.size += static_cast<int64_t>(c.state->size());
    }
    if (cuttable_) {
        // Entries that this one contains are of no more use.
        for (const auto& match : matches(saved_, cells, adapters)) {
            if (entries_.at(match.holder).n_tokens == static_cast<int32_t>(match.length)) {
                evict(match.holder);
            }
        }
    }
    if (ram_limit_ > 0) {
        shrink_to(ram_limit_ - entry.size);
    }
    const int64_t id = next_entry_++;
    lru_.push_front(id);
    entry.use = lru_.begin();
    ram_used_ += entry.size;
    saved_.insert(id, PrefixKey(cells, adapters).tokens());
    entries_.emplace(id, std::move(entry));
}

std::optional<PrefixCache::Saved> PrefixCache::find_saved(Tokens tokens, const Adapters& adapters, int32_t n) const {
    std::optional<Saved> best;
    for (const auto& match : matches(saved_, tokens, adapters)) {
        const Entry& entry = entries_.at(match.holder);
        const int32_t wanted = std::min(n, static_cast<int32_t>(match.length));
        const int32_t length = reachable(entry.checkpoints, cuttable_, entry.n_tokens, wanted);
        if (length > 0 && length <= wanted && (!best || length > best->length)) {
            best = Saved{match.holder, length};
        }
    }
    return best;
}

void PrefixCache::touch(const Saved& saved) {
    if (const auto found = entries_.find(saved.entry); found != entries_.end()) {
        lru_.splice(lru_.begin(), lru_, found->second.use);
    }
}

int32_t PrefixCache::restore(const Saved& saved, int32_t to) {
    clear(to);
    const auto found = entries_.find(saved.entry);
    if (found == entries_.end()) {
        return 0; // it had to make way for what was saved since
    }
    Entry& entry = found->second;
    lru_.splice(lru_.begin(), lru_, entry.use);
    if (!write(to, entry.state)) {
        return 0;
    }
    Checkpoints checkpoints = entry.checkpoints;
    const int32_t n = cut(to, checkpoints, entry.n_tokens, saved.length);
    checkpoints_[to] = std::move(checkpoints);
    return n;
}

void PrefixCache::evict(int64_t id) {
    const auto found = entries_.find(id);
    ram_used_ -= found->second.size;
    lru_.erase(found->second.use);
    saved_.erase(id);
    entries_.erase(found);
}

void PrefixCache::shrink_to(int64_t bytes) {
    while (!lru_.empty() && ram_used_ > bytes) {
        evict(lru_.back());
    }
}

} // namespace llamaserve

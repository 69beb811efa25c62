// What is computed already, where it is, and how it gets to the sequence that needs it.
#pragma once

#include "adapters.hpp"
#include "model.hpp"
#include "prefix_tree.hpp"

#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace llamaserve {

using Tokens = std::span<const llama_token>;

// Knows the tokens of every sequence in the KV cache and of every prefix saved in host memory, by a radix tree each,
// and moves cells between them.
//
// How cells are shared depends on the memory's layout. In a unified cache a cell can belong to several sequences, and
// sharing copies nothing. With a stream for each sequence the cells in use are copied through the state API, which for
// 1000 tokens of a small model takes a thousandth of the time that computing them takes.
//
// A sequence of a model with a sliding window or a recurrent state can't be cut at any token: it goes back only to
// where a checkpoint of that part of its state was made.
class PrefixCache {
public:
    // `ram_limit`: bytes that saved prefixes may take; -1 no limit, 0 none are saved. `max_checkpoints`: for each
    // sequence.
    PrefixCache(const Model& model, int64_t ram_limit, int32_t max_checkpoints);

    // Sequences can be cut at any token.
    bool cuttable() const { return cuttable_; }

    // Sequence `seq` holds these tokens, or is being given them.
    void hold(int32_t seq, Tokens tokens, const Adapters& adapters);
    void forget(int32_t seq);

    // Sequences that share a prefix with `tokens`, and how long it is; longest first.
    std::vector<PrefixTree::Match> sequences(Tokens tokens, const Adapters& adapters) const {
        return matches(kv_, tokens, adapters);
    }
    // Whether another sequence holds (or will hold) all that `seq` does.
    bool covered(int32_t seq) const { return kv_.covered(seq); }

    // To how many tokens, at most `n`, a sequence of `n_cells` tokens can be cut.
    int32_t reachable(int32_t seq, int32_t n_cells, int32_t n) const;

    // Cuts the sequence to at most `n` tokens, and returns how many are left.
    int32_t cut(int32_t seq, int32_t n_cells, int32_t n);

    // Empties `to`, then gives it at most `n` tokens of `from`. Returns how many it has.
    int32_t copy(int32_t from, int32_t n_cells, int32_t to, int32_t n);

    void clear(int32_t seq);

    // Cells as bytes, for what the prefix trees can't name.
    std::vector<uint8_t> read(int32_t seq) const;
    bool write(int32_t seq, const std::vector<uint8_t>& state);

    // Moves `n` cells from position `from` back to `to`, over what is there.
    void move_back(int32_t seq, int32_t from, int32_t n, int32_t to);

    // Remembers the part of the sequence's state that can't be cut, at its current end of `n_cells` tokens.
    void checkpoint(int32_t seq, int32_t n_cells);

    // The sequence's cells as bytes; and the other way, for a sequence of `n` tokens. False if they don't fit.
    std::vector<uint8_t> dump(int32_t seq);
    bool load(int32_t to, std::span<const uint8_t> cells, int32_t n);

    // Saves the sequence's cells to host memory, unless what they hold is there already.
    void save(int32_t seq, Tokens cells, const Adapters& adapters);

    struct Saved {
        int64_t entry = 0;
        int32_t length = 0; // tokens that can be restored of it
    };
    // The saved prefix that has most of the first `n` tokens of `tokens`.
    std::optional<Saved> find_saved(Tokens tokens, const Adapters& adapters, int32_t n) const;

    // The saved prefix is about to be wanted: others are evicted before it.
    void touch(const Saved& saved);

    // Empties `to`, then gives it the saved prefix, cut to `saved.length`. Returns how many tokens it has.
    int32_t restore(const Saved& saved, int32_t to);

    int64_t ram_used() const { return ram_used_; }
    size_t n_saved() const { return entries_.size(); }

private:
    struct Checkpoint {
        int32_t n_tokens;
        std::shared_ptr<const std::vector<uint8_t>> state;
    };
    using Checkpoints = std::vector<Checkpoint>; // by n_tokens, ascending

    struct Entry {
        int32_t n_tokens;
        std::vector<uint8_t> state;
        Checkpoints checkpoints;
        int64_t size;
        std::list<int64_t>::iterator use; // place in lru_
    };

    // With `whole`: only holders that have all of `tokens`.
    static std::vector<PrefixTree::Match> matches(const PrefixTree& tree, Tokens tokens, const Adapters& adapters,
                                                  bool whole = false);
    static int32_t reachable(const Checkpoints& checkpoints, bool cuttable, int32_t n_cells, int32_t n);
    bool window_whole(int32_t seq, int32_t n) const;
    int32_t cut(int32_t seq, Checkpoints& checkpoints, int32_t n_cells, int32_t n);
    void evict(int64_t entry);
    void shrink_to(int64_t bytes);

    const Model& model_;
    llama_context* ctx_;
    llama_memory_t mem_;
    bool cuttable_;
    bool shared_cells_;
    int64_t ram_limit_;
    int32_t max_checkpoints_;

    PrefixTree kv_;    // holders: sequences
    PrefixTree saved_; // holders: entries
    std::map<int32_t, Checkpoints> checkpoints_;
    std::map<int64_t, Entry> entries_;
    std::list<int64_t> lru_; // entries, the one used last in front
    int64_t ram_used_ = 0;
    int64_t next_entry_ = 1;
};

} // namespace llamaserve

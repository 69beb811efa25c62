// Radix tree over token ids: who holds which sequence, and how much of it a prompt shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace llamaserve {

// Each holder (a number its owner chooses) has one sequence in the tree. Prefixes that sequences share are stored once;
// a node counts the holders that go through it, and lives as long as there is one.
class PrefixTree {
public:
    using Token = int32_t;
    using Tokens = std::span<const Token>;

    struct Match {
        int64_t holder;
        size_t length; // tokens that the holder's sequence shares with the one asked for
    };

    PrefixTree();
    ~PrefixTree();
    PrefixTree(PrefixTree&&) noexcept;
    PrefixTree& operator=(PrefixTree&&) noexcept;

    // Gives `holder` this sequence, in place of the one it had.
    void insert(int64_t holder, Tokens tokens);

    // Does nothing if the holder has no sequence.
    void erase(int64_t holder);

    // Every holder that shares at least `min_length` (and at least one) tokens, longest first.
    std::vector<Match> matches(Tokens tokens, size_t min_length = 1) const;

    // Whether another holder's sequence starts with all of `holder`'s.
    bool covered(int64_t holder) const;

    std::vector<Token> tokens(int64_t holder) const;
    size_t n_holders() const { return ends_.size(); }
    size_t n_nodes() const;  // without the root
    size_t n_tokens() const; // stored, shared ones once

    // Checks every invariant; for tests. Throws std::logic_error naming the one that doesn't hold.
    void check() const;

private:
    struct Node;

    void collect(const Node& node, size_t length, std::vector<Match>& out) const;
    void merge_with_child(Node& node);

    std::unique_ptr<Node> root_;
    std::unordered_map<int64_t, Node*> ends_; // the node where a holder's sequence ends
};

} // namespace llamaserve

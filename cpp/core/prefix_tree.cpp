#include "prefix_tree.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace llamaserve {

struct PrefixTree::Node {
    std::vector<Token> label; // tokens between the parent and here; empty at the root alone
    Node* parent = nullptr;
    std::unordered_map<Token, std::unique_ptr<Node>> children; // by the first token of their label
    std::vector<int64_t> holders;                              // whose sequences end here
    size_t n_through = 0;                                      // holders that end here or below
};

PrefixTree::PrefixTree() : root_(std::make_unique<Node>()) {}
PrefixTree::~PrefixTree() = default;
PrefixTree::PrefixTree(PrefixTree&&) noexcept = default;
PrefixTree& PrefixTree::operator=(PrefixTree&&) noexcept = default;

void PrefixTree::insert(int64_t holder, Tokens tokens) {
    erase(holder);
    Node* node = root_.get();
    size_t i = 0;
    while (i < tokens.size()) {
        ++node->n_through;
        auto& child = node->children[tokens[i]];
        if (!child) {
            child = std::make_unique<Node>();
            child->label.assign(tokens.begin() + static_cast<std::ptrdiff_t>(i), tokens.end());
            child->parent = node;
            node = child.get();
            i = tokens.size();
            break;
        }
        const auto rest = tokens.subspan(i);
        const auto end = std::mismatch(child->label.begin(), child->label.end(), rest.begin(), rest.end()).first;
        const auto n = static_cast<size_t>(end - child->label.begin());
        if (n < child->label.size()) {
            // Split the edge: the part that is shared becomes a node of its own.
            auto upper = std::make_unique<Node>();
            upper->label.assign(child->label.begin(), end);
            upper->parent = node;
            upper->n_through = child->n_through;
            child->label.erase(child->label.begin(), end);
            child->parent = upper.get();
            const Token first = child->label.front();
            upper->children.emplace(first, std::move(child));
            child = std::move(upper);
        }
        node = child.get();
        i += n;
    }
    ++node->n_through;
    node->holders.push_back(holder);
    ends_[holder] = node;
}

void PrefixTree::erase(int64_t holder) {
    const auto found = ends_.find(holder);
    if (found == ends_.end()) {
        return;
    }
    Node* node = found->second;
    ends_.erase(found);
    std::erase(node->holders, holder);
    while (node != nullptr) {
        --node->n_through;
        Node* parent = node->parent;
        if (parent != nullptr && node->n_through == 0) {
            parent->children.erase(node->label.front());
        } else if (parent != nullptr && node->holders.empty() && node->children.size() == 1) {
            merge_with_child(*node);
        }
        node = parent;
    }
}

void PrefixTree::merge_with_child(Node& node) {
    std::unique_ptr<Node> child = std::move(node.children.begin()->second);
    node.label.insert(node.label.end(), child->label.begin(), child->label.end());
    node.children = std::move(child->children);
    for (auto& [_, grandchild] : node.children) {
        grandchild->parent = &node;
    }
    node.holders = std::move(child->holders);
    for (const int64_t holder : node.holders) {
        ends_[holder] = &node;
    }
}

void PrefixTree::collect(const Node& node, size_t length, std::vector<Match>& out) const {
    for (const int64_t holder : node.holders) {
        out.push_back({holder, length});
    }
    for (const auto& [_, child] : node.children) {
        collect(*child, length, out);
    }
}

std::vector<PrefixTree::Match> PrefixTree::matches(Tokens tokens, size_t min_length) const {
    std::vector<Match> out;
    const Node* node = root_.get();
    size_t length = 0;
    min_length = std::max<size_t>(min_length, 1);
    for (;;) {
        const auto next = length < tokens.size() ? node->children.find(tokens[length]) : node->children.end();
        const Node* child = next == node->children.end() ? nullptr : next->second.get();
        // All that leaves the path here shares `length` tokens.
        if (length >= min_length) {
            for (const int64_t holder : node->holders) {
                out.push_back({holder, length});
            }
            for (const auto& [_, other] : node->children) {
                if (other.get() != child) {
                    collect(*other, length, out);
                }
            }
        }
        if (child == nullptr) {
            break;
        }
        const auto rest = tokens.subspan(length);
        const auto end = std::mismatch(child->label.begin(), child->label.end(), rest.begin(), rest.end()).first;
        const auto n = static_cast<size_t>(end - child->label.begin());
        length += n;
        if (n < child->label.size()) {
            if (length >= min_length) {
                collect(*child, length, out);
            }
            break;
        }
        node = child;
    }
    std::reverse(out.begin(), out.end());
    std::stable_sort(out.begin(), out.end(), [](const Match& a, const Match& b) { return a.length > b.length; });
    return out;
}

bool PrefixTree::covered(int64_t holder) const {
    const auto found = ends_.find(holder);
    return found != ends_.end() && found->second->n_through > 1;
}

std::vector<PrefixTree::Token> PrefixTree::tokens(int64_t holder) const {
    std::vector<Token> out;
    const auto found = ends_.find(holder);
    if (found == ends_.end()) {
        return out;
    }
    for (const Node* node = found->second; node != nullptr; node = node->parent) {
        out.insert(out.end(), node->label.rbegin(), node->label.rend());
    }
    std::reverse(out.begin(), out.end());
    return out;
}

namespace {

template <typename Node, typename F>
void walk(const Node& node, const F& visit) {
    visit(node);
    for (const auto& [_, child] : node.children) {
        walk(*child, visit);
    }
}

void require(bool holds, const char* what) {
    if (!holds) {
        throw std::logic_error(what);
    }
}

} // namespace

size_t PrefixTree::n_nodes() const {
    size_t n = 0;
    walk(*root_, [&](const Node&) { ++n; });
    return n - 1;
}

size_t PrefixTree::n_tokens() const {
    size_t n = 0;
    walk(*root_, [&](const Node& node) { n += node.label.size(); });
    return n;
}

void PrefixTree::check() const {
    size_t n_holders = 0;
    walk(*root_, [&](const Node& node) {
        const bool root = &node == root_.get();
        require(root == node.label.empty(), "a node but the root has a label");
        require(root || node.n_through > 0, "a node has a holder in or below it");
        require(root || !node.holders.empty() || node.children.size() >= 2, "a node that ends nothing branches");
        size_t through = node.holders.size();
        for (const auto& [first, child] : node.children) {
            require(child->parent == &node, "a child knows its parent");
            require(child->label.front() == first, "a child is found under its first token");
            through += child->n_through;
        }
        require(through == node.n_through, "a node counts the holders through it");
        for (const int64_t holder : node.holders) {
            const auto found = ends_.find(holder);
            require(found != ends_.end() && found->second == &node, "a holder is known where it ends");
        }
        n_holders += node.holders.size();
    });
    require(n_holders == ends_.size(), "every holder ends somewhere");
}

} // namespace llamaserve

// Has llama.cpp compute flash attention on the CPU with our kernel (attention_kernel.hpp), as a ggml backend beside the
// CPU's own: the way that ggml's BLAS backend takes matrix products. Nothing of llama.cpp is changed for it.
#pragma once

#include "attention_kernel.hpp"

#include <cstdint>
#include <map>
#include <vector>

namespace llamaserve {

// Which streams of a KV cache begin with the same tokens, and, from that, which begin with the same cells.
//
// That tokens are the same says little about cells: they may lie in another order, or differ in their last bits. So the
// cells are compared, once for each layer and each request, and only what is the same byte by byte counts.
class SharedPrefixes {
public:
    struct Member {
        int32_t stream;
        uint64_t version; // another one whenever cells of the prefix may have been written
    };
    struct Group {
        std::vector<Member> members;
        int32_t n_tokens = 0; // that all members begin with
    };

    // For the decodes to come. Streams are in one group at most.
    void set(std::vector<Group> groups);

    // For one operation: sets of those of its streams, by their index from `first_stream` on, whose first cells are the
    // same. `layer` names the layer's cells.
    std::vector<SharedCells> find(const void* layer, int64_t first_stream, const AttentionOperands& op);

private:
    struct Proof {
        uint64_t leader_version = 0, version = 0;
        int32_t leader = -1;
        int64_t n_compared = 0, n_same = 0;
    };
    int64_t n_same(const void* layer, int64_t first_stream, const Member& leader, const Member& other, int64_t n,
                   const AttentionOperands& op);

    std::vector<Group> groups_;
    std::map<std::pair<const void*, int32_t>, Proof> proofs_; // by layer and stream
};

inline constexpr const char* attention_backend_name = "llamaserve-attention";

// Tells ggml of the backend; contexts made later have it. Safe to call again.
void register_attention_backend();

// While this lives, graphs that this thread builds have their attention computed by our kernel, where it can. Contexts
// are made outside of it: llama.cpp would take the other backend for a sign that flash attention doesn't work.
class AttentionScope {
public:
    // `prefixes` may be null.
    explicit AttentionScope(SharedPrefixes* prefixes);
    ~AttentionScope();
    AttentionScope(const AttentionScope&) = delete;
    AttentionScope& operator=(const AttentionScope&) = delete;
};

} // namespace llamaserve

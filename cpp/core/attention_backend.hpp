// Has llama.cpp compute flash attention on the CPU with our kernel (attention_kernel.hpp), as a ggml backend beside the
// CPU's own: the way that ggml's BLAS backend takes matrix products. Nothing of llama.cpp is changed for it.
#pragma once

#include "attention_kernel.hpp"

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace llamaserve {

// Which streams of a KV cache begin with the same tokens, and, from that, which begin with the same cells.
//
// That tokens are the same says little about cells: they may lie in another order, or differ in their last bits. So the
// cells are compared, and only what is the same byte by byte counts. What was found holds as long as nothing writes to
// these cells: each stream is compared once for each request on it, in each layer.
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
    // same. `layer` names the layer's cells, which lie there for all streams.
    std::vector<SharedCells> find(const void* layer, int64_t first_stream, const AttentionOperands& op);

private:
    // A stream begins as others of its class do: as the one that the class is named after, which is all of itself.
    struct Record {
        uint64_t version = 0;
        int64_t of_class = -1;
        int64_t n_same = 0;
        bool differs = false; // after n_same
    };
    struct Layer {
        std::vector<Record> records; // by stream
        int64_t n_classes = 0;
        Record& at(int32_t stream);
    };
    static const Member& choose_model(Layer& layer, const Group& group);

    std::vector<Group> groups_;
    std::unordered_map<const void*, Layer> layers_;
};

inline constexpr const char* attention_backend_name = "llamaserve-attention";

// Tells ggml of the backend; contexts made later have it. To be called once, before anything
// else looks at ggml's list of devices.
void register_attention_backend();

// While this lives, graphs that this thread splits among backends have their attention computed by our kernel, where it
// can and where it pays; llama.cpp may compute such a graph again later. Contexts are made outside of it: llama.cpp
// would take the other backend for a sign that flash attention doesn't work.
class AttentionScope {
public:
    // `prefixes` may be null.
    explicit AttentionScope(SharedPrefixes* prefixes);
    ~AttentionScope();
    AttentionScope(const AttentionScope&) = delete;
    AttentionScope& operator=(const AttentionScope&) = delete;
};

} // namespace llamaserve

// Which of ggml's two ways to compute attention suits a model.
#pragma once

#include "common.h"
#include "llama.h"

#include <string>

namespace llamaserve {

class Model;

// Whether the plain product beats flash attention for this model, where the user leaves the choice to us.
//
// ggml's flash attention on the CPU has a cost for each cell that the size of a head hardly changes. With heads of
// fewer than 32 numbers and a hundred tokens or more it takes up to twice as long as the plain product (measured with
// llama-batched-bench: docs/benchmarks.md). The plain product computes masked cells, too, so it is no good for a cache
// that all sequences share, and needs memory for every score, so it is no good for a long context.
bool plain_attention_is_faster(const std::string& path, const common_params& params);

// Few prompt tokens at a time, with many cells before them: there, too, the plain product is faster on a CPU, since
// ggml's flash attention has its fast way only for `fast_queries` tokens of a sequence and more. (SmolLM2-135M, two
// cores, 1900 tokens in batches of 48: 98 tokens/s with the plain product, 63 with flash attention; in batches of 512:
// 92 and 120.)
class ChunkAttention {
public:
    explicit ChunkAttention(const Model& model);

    // Whether a prompt's tokens are better computed apart from those that others generate: where slots don't share the
    // cache, llama.cpp computes them apart anyway, but for the first token of each.
    bool apart() const { return apart_; }

    // Whether the plain product suits a batch of prompt tokens alone. `n_least`, `n_most`: the fewest and most tokens a
    // sequence has in it; `n_tokens`: of all; `n_cells`: the most cells a sequence has after it.
    bool plain(int32_t n_least, int32_t n_most, int32_t n_tokens, int32_t n_cells) const;

private:
    bool apart_ = false;
    bool can_be_plain_ = false;
    int64_t n_head_;
};

// The context, made for flash attention, computes attention with the plain product as long as this lives.
class PlainAttention {
public:
    explicit PlainAttention(llama_context* ctx);
    ~PlainAttention();
    PlainAttention(const PlainAttention&) = delete;
    PlainAttention& operator=(const PlainAttention&) = delete;

private:
    llama_context* ctx_;
};

} // namespace llamaserve

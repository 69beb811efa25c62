// Attention on a CPU: softmax(scale * Q K^T + mask) V, computed a tile of cells at a time.
#pragma once

#include "attention_block.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace llamaserve {

// Streams whose first `n_cells` cells hold the same, byte by byte, as those of `streams.front()`: read once for all.
struct SharedCells {
    std::vector<int32_t> streams;
    int64_t n_cells = 0;
};

// The operands: pointers, sizes, and the bytes from one element to the next along each dimension. Numbers of a query, a
// key or a value lie side by side.
struct AttentionOperands {
    struct Tensor {
        const char* data = nullptr;
        size_t row = 0;               // to the next query or cell
        size_t head = 0;              // to the next head
        size_t stream = 0;            // to the next stream
        size_t size = 0;              // of one head's numbers in one row
        ToFloats to_floats = nullptr; // for keys and values; null: they are 16-bit floats
    };
    Tensor q;                                           // 32-bit floats [stream][head][query][head_k]
    Tensor k;                                           // [stream][head_kv][cell][head_k]
    Tensor v;                                           // [stream][head_kv][cell][head_v]
    Tensor mask;                                        // 16-bit floats [stream][query][cell]; may be absent
    const float* sinks = nullptr;                       // [head]; may be absent
    float* out = nullptr;                               // [stream][query][head][head_v]
    int64_t head_k = 0, head_v = 0;                     // numbers in a head; see `attention_supports`
    int64_t n_queries = 0, n_cells = 0;                 // of a stream
    int64_t n_heads = 0, n_heads_kv = 0, n_streams = 0; // n_heads is a multiple of n_heads_kv
    float scale = 1.0f, softcap = 0.0f;                 // scores become softcap * tanh(score / softcap), if not 0
    std::vector<SharedCells> shared;                    // disjoint sets of streams
};

// Queries of a stream up to which cells that streams share are read once for all; more fill blocks by themselves.
inline constexpr int64_t attention_few_queries = 8;

// Whether the kernel was built for this machine's compiler, and can do heads of these sizes.
bool attention_supports(int64_t head_k, int64_t head_v);

// Computes `op.out` on `n_threads` threads (those of `parallel_for`). Sums are 32-bit. A query that sees no cell gets
// zeros; what is in cells that it doesn't see is of no account, even where that is not a number. Throws std::bad_alloc.
//
// A block of queries, with all heads that use the same keys, goes over the cells in tiles with a running maximum and
// sum (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022).
// Where there are few blocks, the cells are split among the threads and the parts are put together at the end. Cells
// that streams share are computed for all their queries together (Juravsky et al., "Hydragen", 2024).
void compute_attention(const AttentionOperands& op, int n_threads);

} // namespace llamaserve

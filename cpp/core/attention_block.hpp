// The inner part of attention_kernel.cpp: a block of queries over a range of cells. Compiled for the machine's own
// instructions, so nothing of the standard library may be used here that other files use, too.
#pragma once

#include <cstddef>
#include <cstdint>

namespace llamaserve {

inline constexpr int attention_tile = 64; // cells that are computed at a time

// Turns `n` numbers of some type into 32-bit floats.
using ToFloats = void (*)(const void* from, float* to, int64_t n);

// Queries that read the same keys and values: `n_queries` times the `n_group` heads that share them. A row is one head
// of one query; query i has the rows from i * n_group on.
struct AttentionBlock {
    const float* const* q = nullptr;       // [n_queries]: the first head's numbers
    const uint16_t* const* mask = nullptr; // [n_queries]: by cell, 16-bit floats, 0 or -inf or between; or null
    size_t q_head = 0;                     // bytes to the next head
    int32_t n_queries = 0, n_group = 0;
    const char* k = nullptr; // the first cell's key
    const char* v = nullptr;
    ToFloats k_to_floats = nullptr; // null: 16-bit floats
    ToFloats v_to_floats = nullptr;
    size_t k_row = 0, v_row = 0; // bytes to the next cell
    int64_t first = 0, last = 0; // cells
    int32_t head_k = 0, head_v = 0;
    float scale = 1.0f, softcap = 0.0f;

    // What comes out, by row: the largest score, the sum of e^(score - largest), and the values' sum under those
    // weights.
    float* largest = nullptr;
    float* total = nullptr;
    float* out = nullptr;     // [row][head_v]
    float* scratch = nullptr; // `attention_scratch` numbers
};

bool attention_block_supports(int64_t head_k, int64_t head_v);
size_t attention_scratch(int64_t n_rows, int64_t head_k, int64_t head_v);
void compute_attention_block(const AttentionBlock& block);

} // namespace llamaserve

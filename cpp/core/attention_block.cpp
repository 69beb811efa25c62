#include "attention_block.hpp"

#include <ggml.h>
#include <math.h>

#include <cstring>

#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// Which vectors this is built for. Heads whose size isn't a multiple of the widest take the next.
#if defined(__GNUC__) && defined(__AVX2__) && defined(__F16C__) && defined(__FMA__)
#define NARROW_VECTORS 8
#ifdef __AVX512F__
#define WIDE_VECTORS 16
#endif
#elif defined(__GNUC__) && defined(__aarch64__)
#define NARROW_VECTORS 4
#endif

#ifdef NARROW_VECTORS

// Functions that need all registers for their sums: inlined, they would lose some to what is around them.
#define APART __attribute__((noinline))

#define VECTOR_WIDTH NARROW_VECTORS
#define VECTOR_NAMESPACE narrow
#include "attention_block_impl.hpp"
#undef VECTOR_WIDTH
#undef VECTOR_NAMESPACE

#ifdef WIDE_VECTORS
#define VECTOR_WIDTH WIDE_VECTORS
#define VECTOR_NAMESPACE wide
#include "attention_block_impl.hpp"
#undef VECTOR_WIDTH
#undef VECTOR_NAMESPACE
#endif

#endif

namespace llamaserve {

#ifdef NARROW_VECTORS

// ggml may have a build for better instructions than this one: then it computes.
static bool machine_fits() {
#if defined(__AVX512F__)
    return __builtin_cpu_supports("avx512f") != 0;
#elif defined(__AVX2__)
    return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
#else
    return true;
#endif
}

bool attention_block_supports(int64_t head_k, int64_t head_v) {
    return machine_fits() && head_k > 0 && head_v > 0 && head_k % NARROW_VECTORS == 0 && head_v % NARROW_VECTORS == 0 &&
           head_k <= 1024 && head_v <= 1024;
}

void compute_attention_block(const AttentionBlock& block) {
#ifdef WIDE_VECTORS
    if (block.head_k % WIDE_VECTORS == 0 && block.head_v % WIDE_VECTORS == 0) {
        wide::compute_attention_block(block);
        return;
    }
#endif
    narrow::compute_attention_block(block);
}

#else

bool attention_block_supports(int64_t, int64_t) {
    return false;
}

void compute_attention_block(const AttentionBlock&) {}

#endif

// Three lists of pointers by row, scores by row, a widened tile, a mask for a tile, and what each query sees of it.
size_t attention_scratch(int64_t n_rows, int64_t head_k, int64_t head_v) {
    const auto pointers = static_cast<int64_t>(3 * sizeof(void*) / sizeof(float));
    const int64_t widest = head_k > head_v ? head_k : head_v;
    return static_cast<size_t>(pointers * n_rows + attention_tile * (n_rows + widest + 1) + n_rows);
}

} // namespace llamaserve

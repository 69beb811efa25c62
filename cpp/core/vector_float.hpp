// Vectors of VECTOR_WIDTH floats, by way of the compiler's vector types. To be included once for each width, with
// another VECTOR_NAMESPACE (inside llamaserve) each time.

namespace llamaserve::VECTOR_NAMESPACE {

inline constexpr int vector_width = VECTOR_WIDTH;

using Floats = float __attribute__((vector_size(VECTOR_WIDTH * sizeof(float))));
using Ints = int32_t __attribute__((vector_size(VECTOR_WIDTH * sizeof(int32_t))));
using Half = ggml_fp16_t;

inline Floats load(const float* p) {
    Floats x;
    std::memcpy(&x, p, sizeof x);
    return x;
}

inline void store(float* p, Floats x) {
    std::memcpy(p, &x, sizeof x);
}

inline Floats load(const Half* p) {
#if VECTOR_WIDTH == 16 && defined(__AVX512F__)
    // The plain form of this intrinsic has GCC warn of its own header.
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return (Floats)_mm512_maskz_cvtph_ps(static_cast<__mmask16>(0xffff), halves);
#elif VECTOR_WIDTH == 8 && defined(__F16C__)
    return (Floats)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif VECTOR_WIDTH == 4 && defined(__aarch64__)
    return (Floats)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#else
    float x[VECTOR_WIDTH];
    ggml_fp16_to_fp32_row(p, x, VECTOR_WIDTH);
    return load(x);
#endif
}

inline Floats fill(float x) {
    return x - Floats{};
}

inline Floats choose(Ints condition, Floats yes, Floats no) {
    return (Floats)((condition & (Ints)yes) | (~condition & (Ints)no));
}

inline Floats larger(Floats a, Floats b) {
    return choose(a > b, a, b);
}

inline float sum(Floats x) {
    float out = 0.0f;
    for (int i = 0; i < vector_width; ++i) {
        out += x[i];
    }
    return out;
}

inline float largest(Floats x) {
    float out = x[0];
    for (int i = 1; i < vector_width; ++i) {
        out = x[i] > out ? x[i] : out;
    }
    return out;
}

// The sums of four vectors.
inline void sum4(Floats a, Floats b, Floats c, Floats d, float* out) {
#if VECTOR_WIDTH >= 8 && defined(__AVX__)
    auto eight = [](Floats x) {
#if VECTOR_WIDTH == 16
        __m256 halves[2];
        std::memcpy(halves, &x, sizeof x);
        return _mm256_add_ps(halves[0], halves[1]);
#else
        return (__m256)x;
#endif
    };
    const __m256 t = _mm256_hadd_ps(_mm256_hadd_ps(eight(a), eight(b)), _mm256_hadd_ps(eight(c), eight(d)));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1)));
#else
    out[0] = sum(a);
    out[1] = sum(b);
    out[2] = sum(c);
    out[3] = sum(d);
#endif
}

// e^x for x <= 0, to within two units in the last place; 0 below -87.
//
// x = n ln 2 + r with |r| <= ln 2 / 2, and e^r by its Taylor polynomial of degree 6, whose remainder is below 2e-7.
inline Floats exp_negative(Floats x) {
    const Ints tiny = x < fill(-87.0f);
    x = choose(tiny, fill(-87.0f), x);
    const Floats shift = fill(12582912.0f); // 1.5 * 2^23: adding it rounds to a whole number
    const Floats biased = x * 1.44269504f + shift;
    const Floats n = biased - shift;
    const Floats r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
    Floats p = fill(1.0f / 720);
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const Floats power = (Floats)(((Ints)biased + 127) << 23); // 2^n: the number's low bits hold n
    return choose(tiny, Floats{}, p * power);
}

} // namespace llamaserve::VECTOR_NAMESPACE

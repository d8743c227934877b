// What the loops over a row are written on: `lanes`, STEP values side by side.
//
// In hardware and in the strict build that is one exact integer, and the loops are unrolled sixteen
// times (one 512-bit word a cycle). In the fast build it is sixteen integers in the compiler's
// vector type. Included once for each width of register, like the rows.hpp, in namespace
// ECORL_ROWS; hence no include guard.

#include "ecorl_row_structs.hpp"

namespace ecorl {
namespace ECORL_ROWS {

#ifdef ECORL_NATIVE

constexpr dim_t STEP = 16;
typedef std::int32_t lanes __attribute__((vector_size(64)));
typedef std::int16_t lanes16 __attribute__((vector_size(32)));
typedef std::int8_t lanes8 __attribute__((vector_size(16)));
#define ECORL_ROW_LANE static inline __attribute__((always_inline))

ECORL_ROW_LANE lanes all(std::int32_t x) {
    return lanes{} + x;
}

/// The first `count` of sixteen values; the rest are 0.
template <typename Lanes, typename T>
ECORL_ROW_LANE Lanes load_some(const T* p, dim_t count) {
    Lanes v = {};
    if (count >= STEP) {
        std::memcpy(&v, p, sizeof v);
    } else {
        T whole[STEP] = {};
        std::memcpy(whole, p, static_cast<std::size_t>(count) * sizeof(T));
        std::memcpy(&v, whole, sizeof v);
    }
    return v;
}
template <typename Lanes, typename T>
ECORL_ROW_LANE void store_some(T* p, const Lanes& v, dim_t count) {
    if (count >= STEP) {
        std::memcpy(p, &v, sizeof v);
    } else {
        T whole[STEP];
        std::memcpy(whole, &v, sizeof v);
        std::memcpy(p, whole, static_cast<std::size_t>(count) * sizeof(T));
    }
}
ECORL_ROW_LANE lanes load(const std::int32_t* p, dim_t count) {
    return load_some<lanes>(p, count);
}
ECORL_ROW_LANE lanes load(const std::int16_t* p, dim_t count) {
    return __builtin_convertvector(load_some<lanes16>(p, count), lanes);
}
ECORL_ROW_LANE void store(std::int32_t* p, const lanes& v, dim_t count) {
    store_some(p, v, count);
}
ECORL_ROW_LANE void store(std::int8_t* p, const lanes& v, dim_t count) {
#if defined(__AVX512F__)
    // The builtin conversion does the same, but g++ 12 sends it through memory.
    const __m128i bytes = _mm512_cvtepi32_epi8(reinterpret_cast<const __m512i&>(v));
    store_some(p, bytes, count);
#else
    store_some(p, __builtin_convertvector(v, lanes8), count);
#endif
}

/// 0, 1, 2, ...
ECORL_ROW_LANE lanes numbers() {
    return lanes{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
}
ECORL_ROW_LANE lanes select(const lanes& mask, const lanes& yes, const lanes& no) {
    return mask ? yes : no;
}
ECORL_ROW_LANE lanes larger(const lanes& a, const lanes& b) {
    return a > b ? a : b;
}
ECORL_ROW_LANE lanes smaller(const lanes& a, const lanes& b) {
    return a < b ? a : b;
}

ECORL_ROW_LANE lanes magnitude(const lanes& v) {
    return v < 0 ? -v : v;
}

/// high(a, b) of each pair.
ECORL_ROW_LANE lanes high(const lanes& a, const lanes& b) {
#if defined(__AVX512F__)
    const __m512i x = reinterpret_cast<const __m512i&>(a), y = reinterpret_cast<const __m512i&>(b);
    const __m512i even = _mm512_mul_epi32(x, y);
    const __m512i odd = _mm512_mul_epi32(_mm512_srli_epi64(x, 32), _mm512_srli_epi64(y, 32));
    const __m512i r = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
    return reinterpret_cast<const lanes&>(r);
#elif defined(__AVX2__)
    lanes r;
    for (int i = 0; i < 2; ++i) {
        __m256i x, y;
        std::memcpy(&x, reinterpret_cast<const char*>(&a) + 32 * i, sizeof x);
        std::memcpy(&y, reinterpret_cast<const char*>(&b) + 32 * i, sizeof y);
        const __m256i even = _mm256_mul_epi32(x, y);
        const __m256i odd = _mm256_mul_epi32(_mm256_srli_epi64(x, 32), _mm256_srli_epi64(y, 32));
        const __m256i both = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
        std::memcpy(reinterpret_cast<char*>(&r) + 32 * i, &both, sizeof both);
    }
    return r;
#else
    lanes r;
    for (int i = 0; i < STEP; ++i) {
        r[i] = static_cast<std::int32_t>((static_cast<std::int64_t>(a[i]) * b[i]) >> 32);
    }
    return r;
#endif
}

template <typename Fold>
ECORL_ROW_LANE std::int32_t folded(const lanes& v, const Fold& fold) {
    std::int32_t part[STEP];
    std::memcpy(part, &v, sizeof part);
    for (int width = STEP / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i) part[i] = fold(part[i], part[i + width]);
    }
    return part[0];
}
ECORL_ROW_LANE std::int32_t largest(const lanes& v) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_epi32(reinterpret_cast<const __m512i&>(v));
#else
    return folded(v, [](std::int32_t a, std::int32_t b) { return a > b ? a : b; });
#endif
}
ECORL_ROW_LANE std::int32_t sum(const lanes& v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_epi32(reinterpret_cast<const __m512i&>(v));
#else
    return folded(v, [](std::int32_t a, std::int32_t b) { return a + b; });
#endif
}
ECORL_ROW_LANE std::int32_t any_bit(const lanes& v) {
#if defined(__AVX512F__)
    return _mm512_reduce_or_epi32(reinterpret_cast<const __m512i&>(v));
#else
    return folded(v, [](std::int32_t a, std::int32_t b) { return a | b; });
#endif
}

/// The sum of sixteen values of less than 31 bits, in 64 bits.
ECORL_ROW_LANE std::int64_t wide_sum(const lanes& v) {
    typedef std::int32_t half __attribute__((vector_size(32)));
    typedef std::int64_t wide __attribute__((vector_size(64)));
    half a, b;
    std::memcpy(&a, &v, sizeof a);
    std::memcpy(&b, reinterpret_cast<const char*>(&v) + sizeof a, sizeof b);
    const wide both = __builtin_convertvector(a, wide) + __builtin_convertvector(b, wide);
    std::int64_t total = 0;
    for (int i = 0; i < STEP / 2; ++i) total += both[i];
    return total;
}

#else  // one exact integer

constexpr dim_t STEP = 1;
typedef value_t lanes;
#define ECORL_ROW_LANE static inline

ECORL_ROW_LANE lanes all(value_t x) {
    return x;
}
ECORL_ROW_LANE lanes load(const value_t* p, dim_t) {
    return *p;
}
ECORL_ROW_LANE lanes load(const std::int32_t* p, dim_t) {
    return value_t(*p);
}
ECORL_ROW_LANE lanes load(const sint<16>* p, dim_t) {
    return value_t(*p);
}
ECORL_ROW_LANE void store(value_t* p, const lanes& v, dim_t) {
    *p = v;
}
ECORL_ROW_LANE void store(code_t* p, const lanes& v, dim_t) {
    *p = code_t(v);
}
ECORL_ROW_LANE lanes numbers() {
    return value_t(0);
}
ECORL_ROW_LANE lanes select(bool mask, const lanes& yes, const lanes& no) {
    return mask ? yes : no;
}
ECORL_ROW_LANE value_t largest(const lanes& v) {
    return v;
}
ECORL_ROW_LANE value_t sum(const lanes& v) {
    return v;
}
ECORL_ROW_LANE value_t any_bit(const lanes& v) {
    return v;
}
ECORL_ROW_LANE std::int64_t wide_sum(const lanes& v) {
    return static_cast<std::int64_t>(v);
}

#endif

/// One step of a Horner scheme with 15 fraction bits.
ECORL_ROW_LANE lanes horner(const lanes& y, const lanes& x, std::int32_t coefficient) {
    return lanes(lanes(lanes(y * x) >> EXP_BITS) + coefficient);
}

/// 2^15 * 2^(-f / 2^16) for f in 0..65535.
ECORL_ROW_LANE lanes exp2_minus(const lanes& f) {
    const lanes g = f >> 1;
    lanes y = all(224);
    y = horner(y, g, -1744);
    y = horner(y, g, 7846);
    y = horner(y, g, -22708);
    return horner(y, g, 32768);
}

/// 2^15 / (1 + e / 2^15) for e in 0..32768.
ECORL_ROW_LANE lanes one_over_one_plus(const lanes& e) {
    lanes y = all(-3528);
    y = horner(y, e, 13959);
    y = horner(y, e, -25486);
    y = horner(y, e, 31329);
    y = horner(y, e, -32655);
    return horner(y, e, 32766);
}

/// Clip and shift by the same number of bits; `changed` is not 0 where a value was clipped.
ECORL_ROW_LANE lanes shifted(const lanes& t, const shifter& s, lanes& changed) {
    const lanes low = larger(smaller(t, all(s.limit)), all(-s.limit));
    changed |= low ^ t;
    return lanes(lanes(lanes(lanes(lanes(low + s.half) >> s.right) << s.left)) & s.keep);
}

/// Into +-(2^bits - 1).
ECORL_ROW_LANE lanes clipped(const lanes& t, int bits, lanes& changed) {
    const std::int32_t most = static_cast<std::int32_t>((std::int64_t{1} << bits) - 1);
    const lanes low = larger(smaller(t, all(most)), all(-most));
    changed |= low ^ t;
    return low;
}

}  // namespace ECORL_ROWS
}  // namespace ecorl

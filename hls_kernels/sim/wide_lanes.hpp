// Sixteen lanes in the compiler's vector type, for each width of register that a CPU may have. A
// source that uses wide_lanes<BITS> is compiled for that width, and includes this file there.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "../include/ecorl_lanes.hpp"

namespace ecorl {

typedef std::int32_t lanes_t __attribute__((vector_size(64)));

/// The first `count` of sixteen values of T; the rest are 0.
template <typename Lanes, typename T>
ECORL_LANE Lanes load_some(const T* p, dim_t count) {
    Lanes v = {};
    if (count >= LANES) {
        std::memcpy(&v, p, sizeof v);
    } else {
        T whole[LANES] = {};
        std::memcpy(whole, p, static_cast<std::size_t>(count) * sizeof(T));
        std::memcpy(&v, whole, sizeof v);
    }
    return v;
}

template <typename Lanes, typename T>
ECORL_LANE void store_some(T* p, const Lanes& v, dim_t count) {
    if (count >= LANES) {
        std::memcpy(p, &v, sizeof v);
    } else {
        T whole[LANES];
        std::memcpy(whole, &v, sizeof v);
        std::memcpy(p, whole, static_cast<std::size_t>(count) * sizeof(T));
    }
}

/// Sixteen lanes on registers of BITS bits. See `exact` and `one_lane` for what each does.
template <int BITS>
struct wide_lanes {
    using value = lanes_t;
    typedef std::int16_t lanes16 __attribute__((vector_size(32)));
    typedef std::int8_t lanes8 __attribute__((vector_size(16)));
    static constexpr dim_t STEP = LANES;

    ECORL_LANE value all(std::int32_t x) { return value{} + x; }
    ECORL_LANE value numbers() {
        return value{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    }
    ECORL_LANE value load(const std::int32_t* p, dim_t count) { return load_some<value>(p, count); }
    ECORL_LANE value load(const std::int16_t* p, dim_t count) {
        return __builtin_convertvector(load_some<lanes16>(p, count), value);
    }
    ECORL_LANE void store(std::int32_t* p, const value& v, dim_t count) { store_some(p, v, count); }
    ECORL_LANE void store(std::int8_t* p, const value& v, dim_t count) {
#if defined(__x86_64__)
        if constexpr (BITS == 512) {
            // The builtin conversion does the same, but g++ 12 sends it through memory.
            store_some(p, _mm512_cvtepi32_epi8(reinterpret_cast<const __m512i&>(v)), count);
            return;
        }
#endif
        store_some(p, __builtin_convertvector(v, lanes8), count);
    }
    ECORL_LANE value select(const value& mask, const value& yes, const value& no) {
        return mask ? yes : no;
    }
    ECORL_LANE value larger(const value& a, const value& b) { return a > b ? a : b; }
    ECORL_LANE value smaller(const value& a, const value& b) { return a < b ? a : b; }
    ECORL_LANE value magnitude(const value& v) { return v < 0 ? -v : v; }
    ECORL_LANE value left(const value& v, const value& n) { return v << n; }
    ECORL_LANE value right(const value& v, const value& n) { return v >> n; }
    template <int A, int B>
    ECORL_LANE value product(const value& a, const value& b) {
        return a * b;
    }
    /// b has 16 bits here: no reciprocal or exponential is a whole 1 where it is used.
    ECORL_LANE value high_of_17(const value& a, const value& b) { return high(a, b << 16); }

    ECORL_LANE value high(const value& a, const value& b) {
#if defined(__x86_64__)
        if constexpr (BITS == 512) {
            const __m512i x = reinterpret_cast<const __m512i&>(a);
            const __m512i y = reinterpret_cast<const __m512i&>(b);
            const __m512i even = _mm512_mul_epi32(x, y);
            const __m512i odd =
                _mm512_mul_epi32(_mm512_srli_epi64(x, 32), _mm512_srli_epi64(y, 32));
            const __m512i r = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
            return reinterpret_cast<const value&>(r);
        }
        if constexpr (BITS == 256) {
            value r;
            for (int i = 0; i < 2; ++i) {
                __m256i x, y;
                std::memcpy(&x, reinterpret_cast<const char*>(&a) + 32 * i, sizeof x);
                std::memcpy(&y, reinterpret_cast<const char*>(&b) + 32 * i, sizeof y);
                const __m256i even = _mm256_mul_epi32(x, y);
                const __m256i odd =
                    _mm256_mul_epi32(_mm256_srli_epi64(x, 32), _mm256_srli_epi64(y, 32));
                const __m256i both = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
                std::memcpy(reinterpret_cast<char*>(&r) + 32 * i, &both, sizeof both);
            }
            return r;
        }
#endif
        value r;
        for (int i = 0; i < LANES; ++i) {
            r[i] = static_cast<std::int32_t>((static_cast<std::int64_t>(a[i]) * b[i]) >> 32);
        }
        return r;
    }

    template <typename Fold>
    ECORL_LANE std::int32_t folded(const value& v, const Fold& fold) {
        std::int32_t part[LANES];
        std::memcpy(part, &v, sizeof part);
        for (int width = LANES / 2; width > 0; width /= 2) {
            for (int i = 0; i < width; ++i) part[i] = fold(part[i], part[i + width]);
        }
        return part[0];
    }
    ECORL_LANE std::int32_t largest(const value& v) {
#if defined(__x86_64__)
        if constexpr (BITS == 512) {
            return _mm512_reduce_max_epi32(reinterpret_cast<const __m512i&>(v));
        }
#endif
        return folded(v, [](std::int32_t a, std::int32_t b) { return a > b ? a : b; });
    }
    ECORL_LANE std::int32_t total(const value& v) {
#if defined(__x86_64__)
        if constexpr (BITS == 512) {
            return _mm512_reduce_add_epi32(reinterpret_cast<const __m512i&>(v));
        }
#endif
        return folded(v, [](std::int32_t a, std::int32_t b) { return a + b; });
    }
    ECORL_LANE std::int32_t any_bit(const value& v) {
#if defined(__x86_64__)
        if constexpr (BITS == 512) {
            return _mm512_reduce_or_epi32(reinterpret_cast<const __m512i&>(v));
        }
#endif
        return folded(v, [](std::int32_t a, std::int32_t b) { return a | b; });
    }
    /// The sum of sixteen values of less than 31 bits, in 64 bits.
    ECORL_LANE std::int64_t wide_total(const value& v) {
        typedef std::int32_t half __attribute__((vector_size(32)));
        typedef std::int64_t wide __attribute__((vector_size(64)));
        half a, b;
        std::memcpy(&a, &v, sizeof a);
        std::memcpy(&b, reinterpret_cast<const char*>(&v) + sizeof a, sizeof b);
        const wide both = __builtin_convertvector(a, wide) + __builtin_convertvector(b, wide);
        std::int64_t sum = 0;
        for (int i = 0; i < LANES / 2; ++i) sum += both[i];
        return sum;
    }
};

}  // namespace ecorl

#include "vector_ops.hpp"

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#if defined(__GNUC__) && defined(__x86_64__) && !defined(__SYNTHESIS__)
#include <immintrin.h>
#endif

namespace {

// The operations that depend on the width of the registers.
struct RowOps {
    decltype(&vec_rmsnorm_quantise) rmsnorm_quantise;
    decltype(&vec_quantise) quantise;
    decltype(&vec_dequantise_add) dequantise_add;
    decltype(&vec_rope_quantise) rope_quantise;
    decltype(&vec_swiglu_quantise) swiglu_quantise;
    decltype(&vec_scale_scores) scale_scores;
    decltype(&vec_softmax_quantise) softmax_quantise;
    decltype(&vec_scale_context) scale_context;
    decltype(&vec_log_sum_exp) log_sum_exp;
    decltype(&vec_exp) exponentials;
};

// Any compiler, any CPU.
namespace plain {
#define ECORL_PIECES 16
#include "lanes.hpp"
#include "row_ops.hpp"
#undef ECORL_PIECES
#undef ECORL_INLINE
#undef ECORL_BLOCK
}  // namespace plain

#if defined(__GNUC__) && !defined(__SYNTHESIS__)
#define ECORL_HAS_BASE 1
// 128-bit registers: what every x86-64 and AArch64 has.
namespace base {
#define ECORL_PIECES 4
#include "lanes.hpp"
#include "row_ops.hpp"
#undef ECORL_PIECES
#undef ECORL_INLINE
#undef ECORL_BLOCK
}  // namespace base
#endif

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && !defined(__SYNTHESIS__)
#define ECORL_HAS_X86 1
#pragma GCC push_options
#pragma GCC target("avx2")
namespace avx2 {
#define ECORL_PIECES 2
#include "lanes.hpp"
#include "row_ops.hpp"
#undef ECORL_PIECES
#undef ECORL_INLINE
#undef ECORL_BLOCK
}  // namespace avx2
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
namespace avx512 {
#define ECORL_PIECES 1
#include "lanes.hpp"
#include "row_ops.hpp"
#undef ECORL_PIECES
#undef ECORL_INLINE
#undef ECORL_BLOCK
}  // namespace avx512
#pragma GCC pop_options
#endif

// The table for a width, or null where this build or CPU lacks it.
const RowOps* ops_of(int32_t width) {
    switch (width) {
        case 32:
            return &plain::kRowOps;
#ifdef ECORL_HAS_BASE
        case 128:
            return &base::kRowOps;
#endif
#ifdef ECORL_HAS_X86
        case 256:
            return __builtin_cpu_supports("avx2") ? &avx2::kRowOps : nullptr;
        case 512:
            return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
                       ? &avx512::kRowOps
                       : nullptr;
#endif
        default:
            return nullptr;
    }
}

const RowOps* widest_ops() {
#ifdef ECORL_HAS_X86
    __builtin_cpu_init();
#endif
    for (int32_t width = 512; width > 32; width /= 2) {
        if (const RowOps* ops = ops_of(width)) return ops;
    }
    return ops_of(32);
}

std::atomic<const RowOps*> chosen{widest_ops()};

const RowOps& ops() {
    return *chosen.load(std::memory_order_relaxed);
}

}  // namespace

extern "C" {

int32_t vec_set_width(int32_t width) {
    const RowOps* ops = width == 0 ? widest_ops() : ops_of(width);
    if (!ops) return -1;
    chosen = ops;
    return 0;
}

void vec_rmsnorm_quantise(const float* x, const float* weight, float eps, int8_t* q, float* scale,
                          int32_t m, int32_t n) {
    ops().rmsnorm_quantise(x, weight, eps, q, scale, m, n);
}

void vec_quantise(const float* x, int8_t* q, float* scale, int32_t m, int32_t n) {
    ops().quantise(x, q, scale, m, n);
}

void vec_dequantise_add(const int32_t* acc, const float* row_scale, const float* channel_scale,
                        const float* bias, float* out, int32_t m, int32_t n) {
    ops().dequantise_add(acc, row_scale, channel_scale, bias, out, m, n);
}

float vec_rope_quantise(const int32_t* acc, float row_scale, const float* channel_scale,
                        const float* bias, const float* cosine, const float* sine, int8_t* q,
                        int32_t d) {
    return ops().rope_quantise(acc, row_scale, channel_scale, bias, cosine, sine, q, d);
}

void vec_swiglu_quantise(const int32_t* acc, const float* row_scale, const float* channel_scale,
                         int8_t* q, float* scale, float* scratch, int32_t m, int32_t n) {
    ops().swiglu_quantise(acc, row_scale, channel_scale, q, scale, scratch, m, n);
}

void vec_scale_scores(const int32_t* scores, const float* key_scale, float* f, int32_t n) {
    ops().scale_scores(scores, key_scale, f, n);
}

float vec_softmax_quantise(float* f, const float* value_scale, float beta, int8_t* q, int32_t n) {
    return ops().softmax_quantise(f, value_scale, beta, q, n);
}

void vec_scale_context(const int32_t* acc, float worth, float* out, int32_t n) {
    ops().scale_context(acc, worth, out, n);
}

void vec_log_sum_exp(const int32_t* acc, float row_scale, const float* channel_scale, float* z,
                     LogSumExp* state, int32_t n) {
    ops().log_sum_exp(acc, row_scale, channel_scale, z, state, n);
}

void vec_exp(const float* x, float* y, int32_t n) {
    ops().exponentials(x, y, n);
}

// ln(x) for positive normal x, in double: 2 atanh((m - 1) / (m + 1)) + e ln 2.
double vec_log(double x) {
    uint64_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    int64_t exponent = (int64_t)(bits >> 52) - 1023;
    bits = (bits & 0x000fffffffffffffULL) | 0x3ff0000000000000ULL;
    double m;
    std::memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        exponent += 1;
    }
    const double s = (m - 1.0) / (m + 1.0), s2 = s * s;
    double sum = 0.0;
    for (int k = 12; k >= 0; --k) sum = sum * s2 + 1.0 / (2 * k + 1);
    return 2.0 * s * sum + (double)exponent * 0.6931471805599453;
}
}

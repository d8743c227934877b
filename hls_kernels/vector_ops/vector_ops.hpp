// The vector operations between the INT8 products of a decoder: normalise, quantise, dequantise,
// rotate, gate, softmax, log-sum-exp.
//
// On a card these are float32 vector units beside the MAC array; a fixed-point form comes later.
// They are labelled for it (HLS pragmas, unknown to a C++ compiler), but have not been
// synthesised. As C-simulation they give the same bits in every build, see lanes.hpp.
//
// Quantisation of a row, everywhere: symmetric INT8 with one float32 scale,
//     scale = max|x| / 127,  q = round_half_to_even(x * 127 / max|x|).
// A row whose max|x| is below 1e-30 gives scale 0 and q 0. A row that holds NaN or infinity gives
// scale NaN and q 0, so that the fault reaches the row's result instead of looking like a number.
#ifndef ECORL_VECTOR_OPS_HPP
#define ECORL_VECTOR_OPS_HPP

#include <cstdint>

#if defined(_WIN32)
#define ECORL_API
#else
#define ECORL_API __attribute__((visibility("default")))
#endif

extern "C" {

// RMSNorm and quantisation. x [m, n], weight [n] -> q [m, n], scale [m].
// q * scale = weight * x / sqrt(mean(x^2) + eps).
ECORL_API void vec_rmsnorm_quantise(const float* x, const float* weight, float eps, int8_t* q,
                                    float* scale, int32_t m, int32_t n);

// x [m, n] -> q [m, n], scale [m].
ECORL_API void vec_quantise(const float* x, int8_t* q, float* scale, int32_t m, int32_t n);

// out [m, n] += acc * channel_scale * row_scale + bias; acc [m, n], row_scale [m],
// channel_scale [n], bias [n] or null. The residual addition of a decoder block.
ECORL_API void vec_dequantise_add(const int32_t* acc, const float* row_scale,
                                  const float* channel_scale, const float* bias, float* out,
                                  int32_t m, int32_t n);

// One head of one token: dequantise acc [d], rotate by cos, sin [d / 2] (pairs j, j + d / 2, the
// half-rotation convention; null: no rotation) and quantise. Returns the scale. d is even.
ECORL_API float vec_rope_quantise(const int32_t* acc, float row_scale, const float* channel_scale,
                                  const float* bias, const float* cosine, const float* sine,
                                  int8_t* q, int32_t d);

// SwiGLU: acc [m, 2n] holds gate then up; q * scale = silu(gate) * up. q [m, n], scale [m];
// scratch [n] floats.
ECORL_API void vec_swiglu_quantise(const int32_t* acc, const float* row_scale,
                                   const float* channel_scale, int8_t* q, float* scale,
                                   float* scratch, int32_t m, int32_t n);

// f [n] = scores * key_scale: integer scores of one query row, short of its own scale. All arrays
// are readable, f writeable, up to the next multiple of 16 elements.
ECORL_API void vec_scale_scores(const int32_t* scores, const float* key_scale, float* f, int32_t n);

// One softmax row of n keys: scores f [n] (overwritten), p_j = exp(beta * (f_j - max f)).
// q_j = quantised p_j * value_scale_j; returns what q's integers are worth after normalisation:
// scale / sum(p). beta >= 0. All arrays are readable, f and q writeable, up to the next multiple of
// 16 elements.
ECORL_API float vec_softmax_quantise(float* f, const float* value_scale, float beta, int8_t* q,
                                     int32_t n);

// out [n] = acc * worth: the context of one query row.
ECORL_API void vec_scale_context(const int32_t* acc, float worth, float* out, int32_t n);

// Running log-sum-exp of one row over blocks of the vocabulary. State: maximum and sum of
// exp(z - maximum). z = acc * channel_scale * row_scale, written to z [n].
typedef struct {
    float maximum;
    double sum;
} LogSumExp;
ECORL_API void vec_log_sum_exp(const int32_t* acc, float row_scale, const float* channel_scale,
                               float* z, LogSumExp* state, int32_t n);

// Choose the registers' width in bits, for the whole process: 512, 256, 128, 32 (plain scalars),
// or 0 for the widest that this CPU has, which is the initial choice. Returns 0, or -1 where this
// build or CPU lacks it. Results do not depend on it.
ECORL_API int32_t vec_set_width(int32_t width);

// Lane functions, for tests: y [n] = exp(x), and ln(x) of one positive normal x.
ECORL_API void vec_exp(const float* x, float* y, int32_t n);
ECORL_API double vec_log(double x);
}

#endif

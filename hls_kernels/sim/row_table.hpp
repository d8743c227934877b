// The row functions of the kernels as a table, one for each width of register that the CPU may
// have. Vitis never sees this file.
#pragma once

#include "../include/ecorl_rows.hpp"

namespace ecorl {

using rope_t = sint<16>;

/// Constants of a run of output channels in the host's memory.
struct channels_t {
    const value_t* mantissa;    ///< 0 for a channel of zeros
    const std::int32_t* shift;  ///< 0..31
    std::int32_t input_shift;   ///< left shift of the sums
};

/// Scales of the keys and values of one page in the host's memory.
struct page_scales_t {
    const value_t* key_m;
    const value_t* key_e;
    const value_t* value_m;  ///< upper 16 bits of the mantissa
    const value_t* value_e;
};

/// log2 of the sum of the parts of a row, at least one, LOGPROB_BITS fraction bits.
static inline std::int64_t log_sum(const partial_t* parts, dim_t n) {
    std::int32_t top = parts[0].top;
    for (dim_t b = 1; b < n; ++b) top = parts[b].top > top ? parts[b].top : top;
    sint<64> sum = 0;
    for (dim_t b = 0; b < n; ++b) sum = sum + merged_part(parts[b], top);
    return log_of_sum(sum, top);
}

/// See row_functions.hpp, attention_rows.hpp and score_rows.hpp.
struct row_table {
    void (*embed)(const sint<16>*, int, int, value_t*, dim_t, value_t&);
    scale_t (*rmsnorm)(const value_t*, const value_t*, int, scale_t, int, value_t*, code_t*, dim_t);
    void (*codes)(const value_t*, const quantiser_t&, code_t*, dim_t);
    value_t (*dequantise)(const value_t*, const channels_t&, value_t*, dim_t);
    void (*residual)(const value_t*, const channels_t&, int, scale_t, int, const value_t*, value_t*,
                     dim_t, value_t&);
    void (*fixed)(const value_t*, const channels_t&, int, scale_t, int, const value_t*, value_t*,
                  dim_t, value_t&);
    scale_t (*head)(const value_t*, const channels_t&, int, scale_t, int, const value_t*,
                    const rope_t*, const rope_t*, value_t*, code_t*, dim_t, value_t&);
    value_t (*gate)(value_t*, const value_t*, const gate_t&, dim_t, value_t&);
    value_t (*align)(value_t*, int, dim_t);
    int (*softmax)(value_t*, const page_scales_t&, scale_t, dim_t, softmax_t&, code_t*, code_t*,
                   value_t&);
    void (*accumulate)(value_t*, const value_t*, const value_t*, int, dim_t);
    bool (*finish)(value_t*, const softmax_t&, std::int32_t&, dim_t);
    partial_t (*logits)(value_t*, const channels_t&, int, scale_t, dim_t, value_t&);
    void (*gates)(const value_t*, const channels_t&, int, scale_t, const value_t*, value_t*, dim_t,
                  value_t&);
    value_t (*gated_reward)(const value_t*, const value_t*, dim_t);
    value_t (*relu)(value_t*, dim_t);
};

/// One table for each source that is compiled for a width of register; null where this build or
/// its compiler lacks it.
const row_table* plain_rows();
const row_table* avx2_rows();
const row_table* avx512_rows();

/// The widest that this build and CPU have.
const row_table& rows();

/// Whether the kernels do the work that they can do, instead of the host's schedule.
bool kernels_chosen();

}  // namespace ecorl

extern "C" {

/// Widest registers of the row functions, bits: 0 (as wide as the CPU has), 128, 256 or 512. Or 1:
/// the kernels themselves, through their top functions, which refuse models that do not fit their
/// buffers; a forward that has begun goes on as it was. Returns 0, or -1 where this build or CPU
/// lacks them. Results do not depend on it.
std::int32_t rows_set_width(std::int32_t bits);
std::int32_t rows_width();
}

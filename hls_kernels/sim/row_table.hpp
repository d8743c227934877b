// The row functions of the kernels as a table, one for each width of register that the CPU may
// have. Vitis never sees this file.
#pragma once

#include "../include/ecorl_rows.hpp"

namespace ecorl {

using rope_t = sint<16>;

/// See the rows.hpp of vector_ops, mha_int8 and score_aggregator.
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
    value_t (*gated)(value_t*, const value_t*, const gate_t&, dim_t, value_t&);
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

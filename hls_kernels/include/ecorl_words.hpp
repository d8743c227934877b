// What the vector kernels read and write: 512-bit words and the record of a token row.
//
// Products come as gemm_int8 writes them (word [row / 16][column / 16][row % 16], see
// `product_at`), codes leave as it reads them (A tile order: word [row / 16][k / 4], byte [row %
// 16][k % 4]); heads leave as kv_cache_router and mha_int8 read them, and contexts come as the
// latter writes them (vector_ops.hpp). Kernels alternate on the card, and the host touches no data
// between.
#pragma once

#include "ecorl_lanes.hpp"
#include "ecorl_rows.hpp"

namespace ecorl {

constexpr int BLOCK_ROWS = 16;    ///< token rows that are worked on together
constexpr int STEP_CODES = 4;     ///< codes of one row in a word of A
constexpr int TABLE_LANES = 32;   ///< 16-bit entries of a word
constexpr int CHANNEL_WORDS = 3;  ///< of 16 channels: mantissas, shifts, biases

/// 4 neighbouring codes of 16 rows.
struct code_word_t {
    code_t code[BLOCK_ROWS][STEP_CODES];
};

/// 16 neighbouring codes of one row, inside a kernel.
struct code_line_t {
    code_t lane[LANES];
};

/// 32 neighbouring entries of a table.
struct table_word_t {
    sint<16> lane[TABLE_LANES];
};

/// A token row between kernels, one word of the card's memory. Kernels read what they need of it
/// and write what they change; cards exchange the peaks and the exponent (maxima).
struct row_t {
    std::int32_t scale_m, scale_e;  ///< of the row's codes
    std::int32_t mark;              ///< not 0 once a number did not fit
    std::int32_t token, position;
    std::int32_t n_outputs;  ///< results that rest on this row; score_aggregator
    std::int32_t peak_gate, peak_up, peak_h;
    std::int32_t exponent, peak;  ///< of the attention's context
    std::int32_t spare[5];
};

static_assert(sizeof(row_t) == 64, "a row's record is one 512-bit word");

inline dim_t words_of(dim_t n) {
#pragma HLS INLINE
    return ceil_div(n, LANES);
}

inline dim_t least(dim_t a, dim_t b) {
#pragma HLS INLINE
    return a < b ? a : b;
}

inline dim_t most(dim_t a, dim_t b) {
#pragma HLS INLINE
    return a > b ? a : b;
}

/// Place of a word of products [m][n]: 16 columns (the `group`-th of `groups`) of one row. Rows
/// come in blocks of 16, the last with only its own; in a block a group's rows follow one another.
/// So a block of rows is one run of words, and neighbouring columns of it are neighbours in memory.
inline std::int64_t product_at(dim_t row, dim_t group, dim_t m, dim_t groups) {
#pragma HLS INLINE
    const dim_t in_block = row % BLOCK_ROWS;
    const dim_t first = row - in_block;
    return static_cast<std::int64_t>(first) * groups +
           static_cast<std::int64_t>(group) * least(m - first, BLOCK_ROWS) + in_block;
}

}  // namespace ecorl

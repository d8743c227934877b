// What vector_ops multiplies by at the second look: RMSNorm's weights, and RoPE's angles brought to
// the lanes of their values.
#pragma once

#include "chain.hpp"

namespace ecorl {
namespace vector {

constexpr int HEAD_HALVES = MAX_HEAD / 2 / HALF_LANES;  ///< of a half of the largest head
constexpr int TABLE_HALVES = TABLE_LANES / HALF_LANES;

static_assert(ROPE_WORDS * TABLE_HALVES == 2 * HEAD_HALVES, "cosines, then sines");
static_assert(BLOCK_ROWS * HEAD_WORDS <= NORM_WORDS, "one buffer holds weights or angles");

/// Cosines or sines of 8 neighbouring values.
struct angles_t {
    sint<16> lane[HALF_LANES];
};

/// The angles of a position.
struct position_t {
    angles_t cosine[HEAD_HALVES], sine[HEAD_HALVES];
};

/// The t-th word of a position's entry.
inline void put_angles(position_t& position, const table_word_t& word, dim_t t) {
#pragma HLS INLINE
    for (int h = 0; h < TABLE_HALVES; ++h) {
#pragma HLS UNROLL
        angles_t angles;
        for (int lane = 0; lane < HALF_LANES; ++lane) {
#pragma HLS UNROLL
            angles.lane[lane] = word.lane[h * HALF_LANES + lane];
        }
        if (t == 0) position.cosine[h] = angles;
        if (t == 1) position.cosine[TABLE_HALVES + h] = angles;
        if (t == 2) position.sine[h] = angles;
        if (t == 3) position.sine[TABLE_HALVES + h] = angles;
    }
}

/// The k-th of eight.
inline angles_t chosen(const angles_t of[HEAD_HALVES], dim_t k) {
#pragma HLS INLINE
    angles_t found = of[0];
    for (int i = 1; i < HEAD_HALVES; ++i) {
#pragma HLS UNROLL
        if (k == i) found = of[i];
    }
    return found;
}

/// Factors of the k-th half word of a head: of each value the cosine below its sine, which is
/// negative in the lower half of the head.
inline void put_factors(word_t& word, const position_t& position, dim_t k, dim_t halves, int from) {
#pragma HLS INLINE
    const bool is_lower = k < halves;
    const dim_t at = is_lower ? k : k - halves;
    const angles_t cosine = chosen(position.cosine, at);
    const angles_t sine = chosen(position.sine, at);
    for (int lane = 0; lane < HALF_LANES; ++lane) {
#pragma HLS UNROLL
        const value_t s = is_lower ? value_t(-sine.lane[lane]) : value_t(sine.lane[lane]);
        word.lane[from + lane] = value_t(s << 16) | value_t(cosine.lane[lane] & 0xffff);
    }
}

/// The angles of a block of rows, as words of factors.
inline void take_angles(tables_t& in, word_t store[NORM_WORDS], dim_t rows, dim_t unit) {
#pragma HLS INLINE
    position_t position;
#pragma HLS AGGREGATE variable = position.cosine
#pragma HLS AGGREGATE variable = position.sine
#pragma HLS ARRAY_PARTITION variable = position.cosine complete
#pragma HLS ARRAY_PARTITION variable = position.sine complete
    dim_t step = 0;
    dim_t to = 0;
TAKE_ANGLES:
    for (dim_t i = 0; i < rows * (ROPE_WORDS + unit); ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 5 max = 192 avg = 128
        if (step < ROPE_WORDS) {
            put_angles(position, in.read(), step);
        } else {
            const dim_t k = 2 * (step - ROPE_WORDS);
            word_t word;
            put_factors(word, position, k, unit, 0);
            put_factors(word, position, k + 1, unit, HALF_LANES);
            store[to++] = word;
        }
        if (++step == ROPE_WORDS + unit) step = 0;
        VECTOR_COUNT(FACTOR_CYCLES, 1);
    }
}

inline void take_weights(words_t& in, word_t store[NORM_WORDS], dim_t words) {
#pragma HLS INLINE
TAKE_WEIGHTS:
    for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 512 avg = 256
        store[i] = in.read();
        VECTOR_COUNT(FACTOR_CYCLES, 1);
    }
}

/// A word of factors for each word of the second look: weights again for each row, the angles of a
/// block's rows again for each head.
inline void give_factors(words_t& weights, tables_t& angles, words_t& out, const call_t call) {
    ECORL_BUFFER word_t store[NORM_WORDS];
#pragma HLS AGGREGATE variable = store
#pragma HLS BIND_STORAGE variable = store type = ram_2p impl = bram
    const bool is_norm = call.task.op == NORM;
    const bool has_factors = is_norm || call.task.op == HEAD;
    const dim_t m = has_factors ? call.task.m : 0;
    const dim_t run = is_norm ? m : dim_t(BLOCK_ROWS);
FACTOR_RUN:
    for (dim_t first = 0; first < m; first += run) {
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 256 avg = 4
        const dim_t rows = least(m - first, run);
        if (is_norm) {
            take_weights(weights, store, call.words);
        } else {
            take_angles(angles, store, rows, call.unit);
        }
        const dim_t period = is_norm ? call.words : rows * call.unit;
        const dim_t times = is_norm ? rows : call.heads;
        dim_t at = 0;
    GIVE_FACTORS:
        for (dim_t i = 0; i < period * times; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 2097152 avg = 16384
            out.write(store[at]);
            at = at == period - 1 ? 0 : at + 1;
            VECTOR_COUNT(FACTOR_CYCLES, 1);
        }
    }
}

}  // namespace vector
}  // namespace ecorl

// The array of mha_int8, in a turn: scores of one page, sums of the values of another.
//
// One loop goes over all tiles of both, so that the array never runs empty between them. A tile is
// QUERY_ROWS x ARRAY_LANES sums; when it is complete it moves to shadow registers and leaves from
// there, four rows a cycle, while the next one is computed. Each row has a bank of operands, of
// which one word is read every four cycles.
#pragma once

#include "types.hpp"

namespace ecorl {
namespace mha {

/// When the loop of a turn does what. Weights come in before the sums that take them; the words of
/// a turn's last tile leave before the turn ends.
struct array_schedule_t {
    dim_t query_cycles;  ///< products of a tile of scores
    dim_t score_tile;    ///< cycles of one: its words leave in no fewer
    dim_t score_cycles;  ///< of all tiles of scores, from 0 on
    dim_t weight_words;  ///< taken in from 0 on
    dim_t first_sum, end_sum;
    dim_t query_operands;  ///< taken in from 0 on
    dim_t trips;
};

constexpr int SUM_TILE = 2 * PAGE / MAC_STEP;  ///< cycles of a tile of sums

inline array_schedule_t schedule_of(const turn_t& turn, dim_t d) {
#pragma HLS INLINE
    array_schedule_t s;
    const dim_t score_quads = quads_of(turn.score_rows);
    const dim_t sum_quads = quads_of(turn.sum_rows);
    s.query_cycles = d / MAC_STEP;
    s.score_tile = most(s.query_cycles, score_quads);
    s.score_cycles = turn.score_rows > 0 ? PAGE_TILES * s.score_tile : 0;
    s.weight_words = PAGE_OPERANDS * sum_quads;
    s.first_sum = most(s.score_cycles, s.weight_words);
    s.end_sum = s.first_sum + (turn.sum_rows > 0 ? d / ARRAY_LANES * SUM_TILE : 0);
    s.query_operands = turn.next_rows * (d / OPERAND_CODES);
    const dim_t last_words = turn.sum_rows > 0 ? sum_quads : score_quads;
    s.trips = most(s.end_sum + last_words, s.query_operands);
    return s;
}

/// Operands of all rows, a bank each.
using query_banks_t = operand_t[QUERY_ROWS][2 * QUERY_OPERANDS];
using weight_banks_t = operand_t[QUERY_ROWS][PAGE_OPERANDS];

/// Take the i-th word of weights: four rows, 8 keys.
inline void take_weights(const weight_word_t weights[PAGE_WEIGHTS], weight_banks_t banks, dim_t i) {
#pragma HLS INLINE
    const weight_word_t word = weights[i];
    const dim_t quad = i / PAGE_OPERANDS;
TAKE_QUAD:
    for (int r = 0; r < QUAD_ROWS; ++r) {
#pragma HLS UNROLL
        banks[quad * QUAD_ROWS + r][i % PAGE_OPERANDS] = word.row[r];
    }
}

/// Queries of the next block: 16 codes of one row a cycle, four from each beat.
struct query_intake_t {
    beat_t beat;
    dim_t row, operand;
};

inline void take_query(hls::stream<beat_t>& queries, query_banks_t banks, query_intake_t& at,
                       dim_t side, dim_t d) {
#pragma HLS INLINE
    const dim_t chunk = at.operand % (BEAT / OPERAND_CODES);
    if (chunk == 0) at.beat = queries.read();
    operand_t taken;
CHUNK:
    for (int c = 0; c < OPERAND_CODES; ++c) {
#pragma HLS UNROLL
        taken.code[c] = at.beat.value[chunk * OPERAND_CODES + c];
    }
    banks[at.row][side * QUERY_OPERANDS + at.operand] = taken;
    if (++at.operand == d / OPERAND_CODES) {
        at.operand = 0;
        ++at.row;
    }
}

/// The next operand of each row: a word of queries or of weights.
inline void take_operands(const query_banks_t query, const weight_banks_t weight,
                          operand_t rows[QUERY_ROWS], bool is_score, dim_t query_word,
                          dim_t weight_word, dim_t n_rows) {
#pragma HLS INLINE
    const dim_t live = ECORL_LANES(QUERY_ROWS, quads_of(n_rows) * QUAD_ROWS);
OPERANDS:
    for (dim_t r = 0; r < live; ++r) {
#pragma HLS UNROLL
        rows[r] = is_score ? query[r][query_word] : weight[r][weight_word];
    }
}

/// One cycle of the array: MAC_STEP products for each row and lane. A beat of keys or values holds
/// two steps. High codes of weights count 128 times.
inline void mac_step(const operand_t rows[QUERY_ROWS], int part, const beat_t& beat, int half,
                     bool is_first, bool is_high, sum_t tile[QUERY_ROWS][ARRAY_LANES],
                     dim_t n_rows) {
#pragma HLS INLINE
    const dim_t pairs = ECORL_LANES(QUERY_ROWS / 2, quads_of(n_rows) * (QUAD_ROWS / 2));
    code_t codes[ARRAY_LANES][MAC_STEP];
#pragma HLS ARRAY_PARTITION variable = codes complete dim = 0
STEP_CODES_OF:
    for (int j = 0; j < ARRAY_LANES; ++j) {
#pragma HLS UNROLL
        for (int k = 0; k < MAC_STEP; ++k) {
#pragma HLS UNROLL
            codes[j][k] = beat.value[half * (ARRAY_LANES * MAC_STEP) + j * MAC_STEP + k];
        }
    }
PAIRS:
    for (dim_t p = 0; p < pairs; ++p) {
#pragma HLS UNROLL
        packed_act_t act[MAC_STEP];
#pragma HLS ARRAY_PARTITION variable = act complete
        for (int k = 0; k < MAC_STEP; ++k) {
#pragma HLS UNROLL
            act[k] = pack_pair(rows[2 * p].code[part * MAC_STEP + k],
                               rows[2 * p + 1].code[part * MAC_STEP + k]);
        }
        for (int j = 0; j < ARRAY_LANES; ++j) {
#pragma HLS UNROLL
            const pair_t products = dsp_cascade<MAC_STEP>(act, codes[j]);
            const sum_t low = is_high ? sum_t(products.low << 7) : sum_t(products.low);
            const sum_t high = is_high ? sum_t(products.high << 7) : sum_t(products.high);
            tile[2 * p][j] = (is_first ? sum_t(0) : tile[2 * p][j]) + low;
            tile[2 * p + 1][j] = (is_first ? sum_t(0) : tile[2 * p + 1][j]) + high;
        }
    }
}

/// A complete tile on its way out.
struct shadow_t {
    sum_quad_t quad[QUADS];
    dim_t left;  ///< quads that have not left
    bool is_scores;
};

inline void give_out(shadow_t& shadow, hls::stream<sum_quad_t>& scores,
                     hls::stream<sum_quad_t>& sums) {
#pragma HLS INLINE
    if (shadow.left == 0) return;
    if (shadow.is_scores) {
        scores.write(shadow.quad[0]);
    } else {
        sums.write(shadow.quad[0]);
    }
    const dim_t moving = ECORL_LANES(QUADS - 1, shadow.left - 1);
SHIFT:
    for (dim_t q = 0; q < moving; ++q) {
#pragma HLS UNROLL
        shadow.quad[q] = shadow.quad[q + 1];
    }
    --shadow.left;
}

inline void keep_tile(const sum_t tile[QUERY_ROWS][ARRAY_LANES], shadow_t& shadow, dim_t quads,
                      bool is_scores) {
#pragma HLS INLINE
    const dim_t live = ECORL_LANES(QUADS, quads);
KEEP:
    for (dim_t q = 0; q < live; ++q) {
#pragma HLS UNROLL
        for (int r = 0; r < QUAD_ROWS; ++r) {
#pragma HLS UNROLL
            for (int j = 0; j < ARRAY_LANES; ++j) {
#pragma HLS UNROLL
                shadow.quad[q].row[r][j] = tile[q * QUAD_ROWS + r][j];
            }
        }
    }
    shadow.left = quads;
    shadow.is_scores = is_scores;
}

/// Scores of a page's keys, then sums of another's values. Beside them queries of the next block
/// come in. Under values, high and low codes of the weights alternate.
inline void multiply(hls::stream<turn_t>& turns, hls::stream<beat_t>& queries,
                     hls::stream<beat_t>& keys, hls::stream<beat_t>& values,
                     const weight_word_t weights[PAGE_WEIGHTS], hls::stream<sum_quad_t>& scores,
                     hls::stream<sum_quad_t>& sums, dim_t d) {
    ECORL_BUFFER query_banks_t query;
    ECORL_BUFFER weight_banks_t weight;
    operand_t rows[QUERY_ROWS];
    sum_t tile[QUERY_ROWS][ARRAY_LANES];
    shadow_t shadow;
#pragma HLS ARRAY_PARTITION variable = query complete dim = 1
#pragma HLS ARRAY_PARTITION variable = weight complete dim = 1
#pragma HLS ARRAY_PARTITION variable = rows complete
#pragma HLS ARRAY_PARTITION variable = tile complete dim = 0
#pragma HLS ARRAY_PARTITION variable = shadow.quad complete
#pragma HLS AGGREGATE variable = query
#pragma HLS AGGREGATE variable = weight
#pragma HLS AGGREGATE variable = rows
#pragma HLS AGGREGATE variable = shadow.quad
#pragma HLS BIND_STORAGE variable = query type = ram_2p impl = lutram
#pragma HLS BIND_STORAGE variable = weight type = ram_2p impl = lutram
    const turn_t turn = turns.read();
    const array_schedule_t when = schedule_of(turn, d);
    query_intake_t intake = {{}, 0, 0};
    beat_t beat;
#pragma HLS ARRAY_PARTITION variable = intake.beat.value complete
#pragma HLS ARRAY_PARTITION variable = beat.value complete
    dim_t at = 0;  // cycle within the tile
    shadow.left = 0;
MAC:
    for (dim_t i = 0; i < when.trips; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 784 avg = 784
        if (i < when.weight_words) take_weights(weights, weight, i);
        if (i < when.query_operands) take_query(queries, query, intake, 1 - turn.query_side, d);
        const bool is_score = i < when.score_cycles;
        const bool is_sum = i >= when.first_sum && i < when.end_sum;
        const dim_t n_rows = is_score ? turn.score_rows : turn.sum_rows;
        if (is_sum || (is_score && at < when.query_cycles)) {
            if ((is_score ? at % 2 : at % 4) == 0) beat = is_score ? keys.read() : values.read();
            if (at % 4 == 0) {
                const dim_t query_word = turn.query_side * QUERY_OPERANDS + at / 4;
                take_operands(query, weight, rows, is_score, query_word, at / 4, n_rows);
            }
            const bool is_high = is_sum && at % 2 == 0;
            mac_step(rows, at % 4, beat, is_score ? at % 2 : at / 2 % 2, at == 0, is_high, tile,
                     n_rows);
            MHA_COUNT(is_score ? SCORE_CYCLES : CONTEXT_CYCLES, 1);
        }
        give_out(shadow, scores, sums);
        if ((is_score || is_sum) && ++at == (is_score ? when.score_tile : SUM_TILE)) {
            at = 0;
            keep_tile(tile, shadow, quads_of(n_rows), is_score);
        }
        MHA_COUNT(ARRAY_CYCLES, 1);
    }
}

}  // namespace mha
}  // namespace ecorl

// What the array, the softmax and the drain of mha_int8 do in a turn.
#pragma once

#include <hls_stream.h>

#ifdef ECORL_NATIVE
#include <cstring>
#endif

#include "ecorl_dataflow.hpp"
#include "mha_int8.hpp"
#include "packed_mac.hpp"

#ifdef ECORL_CSIM
#include "mha_int8_sim.hpp"
#define MHA_COUNT(slot, amount) ::ecorl::mha::counts::add(slot, amount)
#define MHA_WATCH_TURN const ::ecorl::mha::turn_watch watch
#else
#define MHA_COUNT(slot, amount)
#define MHA_WATCH_TURN
#endif

#define ECORL_ROW static inline
#define ECORL_ROWS kernel
#include "../include/ecorl_row_lanes.hpp"

#include "../vector_ops/rows.hpp"

#include "rows.hpp"

namespace ecorl {
namespace mha {

/// A query row beside its codes.
struct row_t {
    scale_t query;  ///< its scale times that of all scores
    std::int32_t position;
};

/// Sums that leave the array.
struct tile_t {
    value_t value[BLOCK_ROWS][ARRAY_LANES];
};

/// Sums under the weights' high and low codes.
struct tile_pair_t {
    tile_t part[2];
};

/// What one turn hands to the next. There are two, so that a turn writes one and reads the other.
struct side_t {
    value_t scores[BLOCK_ROWS][PAGE];
    step_t weights[2][BLOCK_ROWS][PAGE_STEPS];  ///< high codes, low codes
    std::int32_t down[BLOCK_ROWS];              ///< how far a row's former sums move to the right
};

/// What a block keeps over its turns. Each member belongs to one process of a turn.
struct state_t {
    step_t query[BLOCK_ROWS][MAX_STEPS];    ///< the array's
    value_t context[BLOCK_ROWS][MAX_HEAD];  ///< the drain's
    row_t row[BLOCK_ROWS];                  ///< the softmax's, as what follows
    softmax_t sums[BLOCK_ROWS];
    value_t mark[BLOCK_ROWS];
};

/// Where a block stands.
struct turn_t {
    dim_t page;  ///< whose scores are computed; the softmax has the one before, the sums that
                 ///< before it
    dim_t n_pages;
    dim_t n_rows;
    dim_t d;
};

/// Moves everything out of an INT32: a row's first page finds its sums empty.
constexpr std::int32_t DOWN_ALL = 31;

/// One cycle of the array: MAC_STEP products for each row and lane. `beat` holds two steps.
inline void mac_step(const step_t rows[BLOCK_ROWS], const beat_t& beat, int half, bool is_first,
                     tile_t& tile, dim_t n_rows) {
#pragma HLS INLINE
    const dim_t pairs = ECORL_LANES(BLOCK_ROWS / 2, ceil_div(n_rows, 2));
    code_t codes[ARRAY_LANES][MAC_STEP];
#pragma HLS ARRAY_PARTITION variable = codes complete dim = 0
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
            act[k] = pack_pair(rows[2 * p].value[k], rows[2 * p + 1].value[k]);
        }
        for (int j = 0; j < ARRAY_LANES; ++j) {
#pragma HLS UNROLL
            const pair_t products = dsp_cascade<MAC_STEP>(act, codes[j]);
            value_t& low = tile.value[2 * p][j];
            value_t& high = tile.value[2 * p + 1][j];
            low = (is_first ? value_t(0) : low) + products.low;
            high = (is_first ? value_t(0) : high) + products.high;
        }
    }
}

inline void clear(tile_pair_t& tiles) {
#pragma HLS INLINE
    for (int part = 0; part < 2; ++part) {
#pragma HLS UNROLL
        for (int r = 0; r < BLOCK_ROWS; ++r) {
#pragma HLS UNROLL
            for (int j = 0; j < ARRAY_LANES; ++j) {
#pragma HLS UNROLL
                tiles.part[part].value[r][j] = 0;
            }
        }
    }
}

/// Scores of a page's keys, then sums of another's values: one loop, so that the array never runs
/// empty between tiles. Under values, high and low codes of the weights take turns.
inline void array_turn(hls::stream<beat_t>& codes, const step_t query[BLOCK_ROWS][MAX_STEPS],
                       const step_t weights[2][BLOCK_ROWS][PAGE_STEPS], hls::stream<tile_t>& scores,
                       hls::stream<tile_pair_t>& sums, const turn_t& turn) {
    tile_pair_t tiles;
#pragma HLS ARRAY_PARTITION variable = tiles.part complete dim = 0
    clear(tiles);
    const dim_t query_steps = turn.d / MAC_STEP;
    const dim_t score_cycles = turn.page < turn.n_pages ? PAGE / ARRAY_LANES * query_steps : 0;
    const dim_t sum_cycles = turn.page > 1 ? turn.d / ARRAY_LANES * 2 * PAGE_STEPS : 0;
    beat_t beat;
    dim_t at = 0;  // cycle within the tile
MAC:
    for (dim_t i = 0; i < score_cycles + sum_cycles; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 64 max = 768 avg = 768
        const bool is_score = i < score_cycles;
        const int part = is_score ? 0 : at & 1;
        const dim_t step = is_score ? at : at >> 1;
        if ((is_score ? at & 1 : at & 3) == 0) beat = codes.read();
        step_t rows[BLOCK_ROWS];
#pragma HLS ARRAY_PARTITION variable = rows complete
        const dim_t live = ECORL_LANES(BLOCK_ROWS, ceil_div(turn.n_rows, 2) * 2);
    OPERANDS:
        for (dim_t r = 0; r < live; ++r) {
#pragma HLS UNROLL
            rows[r] = is_score ? query[r][step] : weights[part][r][step];
        }
        mac_step(rows, beat, step & 1, at == part, tiles.part[part], turn.n_rows);
        if (++at == (is_score ? query_steps : 2 * PAGE_STEPS)) {
            at = 0;
            if (is_score) scores.write(tiles.part[0]);
            if (!is_score) sums.write(tiles);
        }
        MHA_COUNT(is_score ? SCORE_CYCLES : CONTEXT_CYCLES, 1);
    }
}

/// Tiles of scores to where the softmax finds them, 8 x 8 a cycle.
inline void drain_scores(hls::stream<tile_t>& in, value_t scores[BLOCK_ROWS][PAGE], dim_t n_rows) {
    const dim_t groups = ceil_div(n_rows, ARRAY_LANES);
    tile_t tile;
    dim_t group = 0;
    dim_t first_key = 0;
DRAIN_SCORES:
    for (dim_t i = 0; i < groups * (PAGE / ARRAY_LANES); ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS DEPENDENCE variable = scores type = inter false
#pragma HLS LOOP_TRIPCOUNT min = 8 max = 64 avg = 64
        if (group == 0) tile = in.read();
        for (int r = 0; r < ARRAY_LANES; ++r) {
#pragma HLS UNROLL
            for (int j = 0; j < ARRAY_LANES; ++j) {
#pragma HLS UNROLL
                scores[group * ARRAY_LANES + r][first_key + j] =
                    tile.value[group * ARRAY_LANES + r][j];
            }
        }
        if (++group == groups) {
            group = 0;
            first_key += ARRAY_LANES;
        }
        MHA_COUNT(DRAIN_CYCLES, 1);
    }
}

/// Add tiles of sums to the contexts, 2 rows x 8 channels a cycle.
inline void drain_sums(hls::stream<tile_pair_t>& in, value_t context[BLOCK_ROWS][MAX_HEAD],
                       const std::int32_t down[BLOCK_ROWS], dim_t n_rows, dim_t d) {
    const dim_t pairs = ceil_div(n_rows, 2);
    tile_pair_t tiles;
    dim_t pair = 0;
    dim_t first_channel = 0;
DRAIN_SUMS:
    for (dim_t i = 0; i < pairs * (d / ARRAY_LANES); ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS DEPENDENCE variable = context type = inter false
#pragma HLS LOOP_TRIPCOUNT min = 4 max = 512 avg = 512
        if (pair == 0) tiles = in.read();
        for (int half = 0; half < 2; ++half) {
#pragma HLS UNROLL
            const dim_t r = 2 * pair + half;
            if (r < n_rows) {
                kernel::accumulate_row(context[r] + first_channel, tiles.part[0].value[r],
                                       tiles.part[1].value[r], down[r], ARRAY_LANES);
            }
        }
        if (++pair == pairs) {
            pair = 0;
            first_channel += ARRAY_LANES;
        }
        MHA_COUNT(DRAIN_CYCLES, 1);
    }
}

inline void drain_turn(hls::stream<tile_t>& score_tiles, hls::stream<tile_pair_t>& sum_tiles,
                       value_t scores[BLOCK_ROWS][PAGE], value_t context[BLOCK_ROWS][MAX_HEAD],
                       const std::int32_t down[BLOCK_ROWS], const turn_t& turn) {
    if (turn.page < turn.n_pages) drain_scores(score_tiles, scores, turn.n_rows);
    if (turn.page > 1) drain_sums(sum_tiles, context, down, turn.n_rows, turn.d);
}

/// The scales of a page as the row functions read them.
inline void take_scales(hls::stream<beat_t>& in, value_t scales[4][PAGE]) {
TAKE_SCALES:
    for (int i = 0; i < SCALE_BEATS; ++i) {
#pragma HLS PIPELINE II = 1
        const beat_t beat = in.read();
        for (int k = 0; k < BEAT_INTS; ++k) {
#pragma HLS UNROLL
            scales[i / ROW_BEATS][i % ROW_BEATS * BEAT_INTS + k] = int_of(beat, k);
        }
        MHA_COUNT(SOFTMAX_CYCLES, 1);
    }
}

inline void put_steps(const code_t codes[PAGE], step_t steps[PAGE_STEPS]) {
#pragma HLS INLINE
    for (int j = 0; j < PAGE; ++j) {
#pragma HLS UNROLL
        steps[j / MAC_STEP].value[j % MAC_STEP] = codes[j];
    }
}

/// Weights of the page before, for each row that sees any of it; for others zeros. A row takes 4
/// cycles: its loops of 64 keys become 16 lanes.
inline void softmax_turn(hls::stream<beat_t>& scale_beats, value_t scores[BLOCK_ROWS][PAGE],
                         step_t weights[2][BLOCK_ROWS][PAGE_STEPS], std::int32_t down[BLOCK_ROWS],
                         const row_t row[BLOCK_ROWS], softmax_t sums[BLOCK_ROWS],
                         value_t mark[BLOCK_ROWS], const turn_t& turn) {
    const dim_t page = turn.page - 1;
    if (page < 0 || page >= turn.n_pages) return;
    value_t scales[4][PAGE];
#pragma HLS ARRAY_PARTITION variable = scales complete dim = 1
#pragma HLS ARRAY_PARTITION variable = scales cyclic factor = 16 dim = 2
    take_scales(scale_beats, scales);
    const page_scales_t by = {scales[0], scales[1], scales[2], scales[3]};
SOFTMAX:
    for (dim_t r = 0; r < turn.n_rows; ++r) {
#pragma HLS PIPELINE II = 4
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 64 avg = 64
        const dim_t seen = row[r].position - page * PAGE + 1;
        const dim_t live = seen < PAGE ? seen : PAGE;
        value_t acc[PAGE];
        code_t high_codes[PAGE];
        code_t low_codes[PAGE];
#pragma HLS ARRAY_PARTITION variable = acc complete
#pragma HLS ARRAY_PARTITION variable = high_codes complete
#pragma HLS ARRAY_PARTITION variable = low_codes complete
        for (int j = 0; j < PAGE; ++j) {
#pragma HLS UNROLL
            acc[j] = scores[r][j];
            high_codes[j] = 0;
            low_codes[j] = 0;
        }
        int moved = 0;
        if (live > 0) {
            moved = kernel::softmax_row(acc, by, row[r].query, live, sums[r], high_codes, low_codes,
                                        mark[r]);
            MHA_COUNT(MACS, std::int64_t{3} * live * turn.d);
        }
        put_steps(high_codes, weights[0][r]);
        put_steps(low_codes, weights[1][r]);
        down[r] = page == 0 ? DOWN_ALL : moved;
        MHA_COUNT(SOFTMAX_CYCLES, 4);
    }
}

/// One turn of a block.
inline void run_turn(hls::stream<beat_t>& codes, hls::stream<beat_t>& scales, state_t& state,
                     side_t& now, side_t& before, const turn_t& turn) {
#pragma HLS INLINE off
#pragma HLS DATAFLOW
    hls::stream<tile_t, 2> score_tiles("score_tiles");
    hls::stream<tile_pair_t, 2> sum_tiles("sum_tiles");
#pragma HLS BIND_STORAGE variable = score_tiles type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = sum_tiles type = fifo impl = srl
    ECORL_REGION(turn);
    ECORL_PROCESS(array_turn(codes, state.query, before.weights, score_tiles, sum_tiles, turn));
    ECORL_PROCESS(drain_turn(score_tiles, sum_tiles, now.scores, state.context, before.down, turn));
    ECORL_PROCESS(softmax_turn(scales, before.scores, now.weights, now.down, state.row, state.sums,
                               state.mark, turn));
    ECORL_RUN(turn);
}

}  // namespace mha
}  // namespace ecorl

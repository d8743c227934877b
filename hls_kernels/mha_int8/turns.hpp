// The turns of a call: array and softmax side by side, one turn for each page of each block.
//
//   turn            0     1         2         3         4         5         6
//   queries         A     B                   C
//   scores                A0        B0        B1        C0
//   softmax                         A0        B0        B1        C0
//   sums                                      A0        B0        B1        C0
//
// for blocks A, B and C of one, two and one page. The array takes the weights of a page that the
// softmax made in the turn before. They would go back against the order of the processes, so no
// FIFO carries them: each turn is a region of its own that reads one memory of weights and fills
// another, and the two change places from turn to turn.
#pragma once

#include "array.hpp"
#include "softmax.hpp"

namespace ecorl {
namespace mha {

constexpr int EXTRA_TURNS =
    3;  ///< of a call: queries before its first page, two more after its last

/// Where the turns of a call are.
struct turn_plan_t {
    query_block_t block;  ///< whose page is scored next
    dim_t page;           ///< that page
    dim_t query_side;     ///< where its queries are
    turn_t before;        ///< what the last turn did
    dim_t scored_page;    ///< the page that was scored in it
    bool scored_last;     ///< whether that was its block's last
};

/// A call begins as if behind a block of one page without rows: its first queries come in.
inline turn_plan_t first_plan() {
#pragma HLS INLINE
    return {{0, 0, 0, 1}, 0, 1, {0, 0, 0, 0, 0, false, 0, 0}, 0, false};
}

/// What the processes do in turn t. A block without rows and without an end is the last one.
inline void plan_turn(hls::stream<query_block_t>& blocks, hls::stream<turn_t>& to_multiply,
                      hls::stream<turn_t>& to_arrange, hls::stream<turn_t>& to_first_look,
                      hls::stream<turn_t>& to_second_look, dim_t t) {
    ECORL_BUFFER turn_plan_t plan;
    if (t == 0) plan = first_plan();
    const bool is_last = plan.page + 1 == plan.block.n_pages;
    query_block_t next = plan.block;
    if (is_last) next = blocks.read();
    const turn_t turn = {plan.block.n_rows,        plan.before.score_rows,
                         plan.before.softmax_rows, is_last ? next.n_rows : 0,
                         plan.scored_page,         plan.scored_last,
                         plan.query_side,          t % 2};
    to_multiply.write(turn);
    to_arrange.write(turn);
    to_first_look.write(turn);
    to_second_look.write(turn);
    const dim_t next_page = is_last ? 0 : plan.page + 1;
    const dim_t next_side = is_last ? 1 - plan.query_side : plan.query_side;
    plan = {next, next_page, next_side, turn, plan.page, is_last};
    MHA_COUNT(TURNS, 1);
}

/// A turn: `weights` are those that the turn before has made, `made` those for the next one.
inline void run_turn(hls::stream<query_block_t>& blocks, hls::stream<query_row_t>& rows,
                     hls::stream<beat_t>& queries, hls::stream<beat_t>& keys,
                     hls::stream<beat_t>& values, hls::stream<beat_t>& scales,
                     const weight_word_t weights[PAGE_WEIGHTS], weight_word_t made[PAGE_WEIGHTS],
                     hls::stream<sum_quad_t>& sums, hls::stream<moves_t>& moves,
                     hls::stream<quad_total_t>& totals, dim_t t, dim_t d) {
#pragma HLS INLINE off
#pragma HLS DATAFLOW
    MHA_WATCH_TURN;
    hls::stream<turn_t, 2> to_multiply("to_multiply");
    hls::stream<turn_t, 2> to_arrange("to_arrange");
    hls::stream<turn_t, 2> to_first_look("to_first_look");
    hls::stream<turn_t, 2> to_second_look("to_second_look");
    hls::stream<sum_quad_t, 32> score_quads("score_quads");
    hls::stream<sum_word_t, 16> score_sums("score_sums");
    hls::stream<word_t, 64> scores("scores");
    hls::stream<quad_look_t, 16> looks("looks");
    hls::stream<beat_t, 16> value_scales("value_scales");
    ECORL_REGION(turn);
    ECORL_PROCESS(plan_turn(blocks, to_multiply, to_arrange, to_first_look, to_second_look, t));
    ECORL_PROCESS(multiply(to_multiply, queries, keys, values, weights, score_quads, sums, d));
    ECORL_PROCESS(arrange_scores(to_arrange, score_quads, score_sums));
    ECORL_PROCESS(look_at_scores(to_first_look, rows, scales, score_sums, scores, looks, moves,
                                 value_scales, d));
    ECORL_PROCESS(look_again(to_second_look, value_scales, scores, looks, made, totals));
    ECORL_RUN(turn);
}

/// All turns of a call. Processes keep memories from turn to turn, so both calls of `run_turn` must
/// be the same hardware.
inline void run_turns(hls::stream<query_block_t>& blocks, hls::stream<query_row_t>& rows,
                      hls::stream<beat_t>& queries, hls::stream<beat_t>& keys,
                      hls::stream<beat_t>& values, hls::stream<beat_t>& scales,
                      hls::stream<sum_quad_t>& sums, hls::stream<moves_t>& moves,
                      hls::stream<quad_total_t>& totals, dim_t n_turns, dim_t d) {
    ECORL_BUFFER weight_word_t even[PAGE_WEIGHTS];
    ECORL_BUFFER weight_word_t odd[PAGE_WEIGHTS];
#pragma HLS ALLOCATION function instances = run_turn limit = 1
#pragma HLS AGGREGATE variable = even
#pragma HLS AGGREGATE variable = odd
#pragma HLS BIND_STORAGE variable = even type = ram_2p impl = bram
#pragma HLS BIND_STORAGE variable = odd type = ram_2p impl = bram
TURN:
    for (dim_t t = 0; t < n_turns; ++t) {
#pragma HLS LOOP_TRIPCOUNT min = 4 max = 65536 avg = 2048
        if (t % 2 == 0) {
            run_turn(blocks, rows, queries, keys, values, scales, odd, even, sums, moves, totals, t,
                     d);
        } else {
            run_turn(blocks, rows, queries, keys, values, scales, even, odd, sums, moves, totals, t,
                     d);
        }
    }
}

}  // namespace mha
}  // namespace ecorl

// What the processes of mha_int8 hand to each other.
//
// Rows travel by fours. A word of the softmax holds QUAD_ROWS rows by STEP_KEYS keys: that is how
// scores leave the array (two words are a quad of sums) and how weights enter it, so nothing is
// transposed between them. Lane 4 r + k of a word is row r of the four and key k of the step.
#pragma once

#include <hls_stream.h>

#include "attention_lanes.hpp"
#include "ecorl_dataflow.hpp"
#include "ecorl_dependence.hpp"
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

namespace ecorl {
namespace mha {

constexpr int QUAD_ROWS = 4;                        ///< rows that travel together
constexpr int QUADS = QUERY_ROWS / QUAD_ROWS;       ///< of a block
constexpr int STEP_KEYS = MAC_STEP;                 ///< keys of a word of the softmax
constexpr int PAGE_STEPS = PAGE / STEP_KEYS;        ///< words of four rows and a page
constexpr int PAGE_TILES = PAGE / ARRAY_LANES;      ///< tiles of scores of a page
constexpr int HEAD_TILES = MAX_HEAD / ARRAY_LANES;  ///< at most, of sums
constexpr int OPERAND_CODES = 4 * MAC_STEP;         ///< of a row, in one word of its bank
constexpr int QUERY_OPERANDS = MAX_HEAD / OPERAND_CODES;
constexpr int PAGE_OPERANDS = 2 * PAGE / OPERAND_CODES;  ///< two codes for each weight
constexpr int PAGE_WEIGHTS = PAGE_OPERANDS * QUADS;      ///< words of a page's weights

static_assert(QUAD_ROWS * STEP_KEYS == LANES, "a word of the softmax is a word of 16 lanes");
static_assert(ARRAY_LANES == 2 * STEP_KEYS, "a quad of sums is two words of the softmax");
static_assert(BEAT == QUAD_ROWS * OPERAND_CODES, "a beat of weights is an operand of four rows");

/// A sum of the array. Scores of 128 channels take 23 bits; 128 * high + low codes of the weights
/// of a page, times their values, 28.
using sum_t = sint<28>;

/// Sums of four rows and ARRAY_LANES keys or channels. 896 bits.
struct sum_quad_t {
    sum_t row[QUAD_ROWS][ARRAY_LANES];
};

/// Sums of four rows and STEP_KEYS keys. 448 bits.
struct sum_word_t {
    sum_t lane[LANES];
};

/// What the array takes of a row in four cycles: 16 channels of a query; or of 8 keys' weights the
/// high codes of four, their low codes, and those of the other four. 128 bits.
struct operand_t {
    code_t code[OPERAND_CODES];
};

/// Weights of four rows and 8 keys. 512 bits.
struct weight_word_t {
    operand_t row[QUAD_ROWS];
};

/// A query row beside its codes.
struct query_row_t {
    scale_t query;  ///< its scale times that of all scores
    std::int32_t position;
};

/// How far the contexts of four rows move to the right before a page's sums are added.
struct moves_t {
    sint<6> row[QUAD_ROWS];
};

/// Moves everything out of an INT32: a row's first page finds the sums of another block.
constexpr std::int32_t MOVE_ALL = 31;

/// What the second look at a row's scores takes from the first.
struct row_look_t {
    sint<20> top;   ///< exponent of the largest weight
    sint<21> lead;  ///< that of the largest weight times its value's scale, less `top`
    sint<7> right;  ///< how far the sum of the row's weights moves down, 0..63
    sint<8> live;   ///< keys of the page that the row sees
    sint<2> mark;   ///< not 0 once a score did not fit
};

struct quad_look_t {
    row_look_t row[QUAD_ROWS];
};

/// A row after its last page.
struct row_total_t {
    sint<40> sum;  ///< of its weights
    sint<21> lead;
    sint<2> mark;
};

struct quad_total_t {
    row_total_t row[QUAD_ROWS];
};

/// How a row's context is divided.
struct divisor_t {
    std::int32_t room, inverse;
};

/// What the processes do in a turn. The softmax has the page that the array scored in the turn
/// before, and the array sums the values of the one before that.
struct turn_t {
    dim_t score_rows;    ///< queries whose scores are computed, 0 for none
    dim_t softmax_rows;  ///< queries of the softmax's page
    dim_t sum_rows;      ///< queries of the page whose values are summed
    dim_t next_rows;     ///< queries of the next block, whose codes are taken in
    dim_t page;          ///< the softmax's, within its block
    bool is_last;        ///< whether it is the block's last
    dim_t query_side;    ///< half of the query memory that the array reads; the other is filled
    dim_t page_side;     ///< half of the score memory that is filled; the softmax reads the other
};

/// Quads of so many rows.
inline dim_t quads_of(dim_t rows) {
#pragma HLS INLINE
    return (rows + QUAD_ROWS - 1) / QUAD_ROWS;
}

}  // namespace mha
}  // namespace ecorl

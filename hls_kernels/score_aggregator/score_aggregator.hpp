// score_aggregator: from the last products to results, on blocks of 16 token rows.
//
//   LOGITS   logits of one block of the vocabulary -> its part of each row's log-sum-exp, and the
//            targets that lie in it. The full logits never leave the chip.
//   FINISH   parts of all blocks, and targets -> log-probs
//   REWARDS  rewards of several objectives, and the outputs of a gating head -> one reward a row
//
// NUMERICS.md defines them. A row may have several results (`n_outputs` of
// its record): the completions of a group have their first token after the same row.
//
// Layout of the buffers, in words of 512 bits (blocks = ceil(m / 16), words(n) = ceil(n / 16)):
//   acc       LOGITS, REWARDS: [parts][m * words(n)], as gemm_int8 writes its results
//   side      the same: [words(n)][3] mantissas, shifts, biases (16 fraction bits, zeros where
//             there is none; LOGITS takes no bias)
//   rewards   REWARDS: [m][words(n)], 16 fraction bits, as FIXED of vector_ops gives them
//   outputs   [ceil(n_outputs / 4)], four results each, in the order of their rows
//   partials  [blocks of the vocabulary][blocks][4], parts of four rows a word; LOGITS writes the
//             block `block`, FINISH reads n_blocks of them
#pragma once

#include "ecorl_words.hpp"

namespace ecorl {
namespace score {

constexpr int MAX_COLUMNS = HEAD_BLOCK;  ///< outputs of one block of the vocabulary
constexpr int MAX_BLOCKS = 128;          ///< blocks of the vocabulary
constexpr int PANEL_WORDS = MAX_COLUMNS / LANES;
constexpr int BLOCK_WORDS = BLOCK_ROWS * PANEL_WORDS;
constexpr int ROW_WORDS = 2 * PANEL_WORDS;  ///< a row waits while the next one comes
constexpr int WORD_OUTPUTS = 4;             ///< results of a word
constexpr int WORD_PARTIALS = 4;            ///< parts of a word
constexpr int BLOCK_PARTIALS = BLOCK_ROWS / WORD_PARTIALS;

enum operation : std::int32_t { LOGITS, FINISH, REWARDS };

/// A result: LOGITS puts the target's logit into `value`, FINISH and REWARDS the result.
struct output_t {
    std::int32_t target;  ///< token of the vocabulary
    std::int32_t value;
    std::int32_t mark;  ///< not 0 where the result rests on a number that did not fit
    std::int32_t spare;
};

struct output_word_t {
    output_t output[WORD_OUTPUTS];
};

struct partial_word_t {
    partial_t part[WORD_PARTIALS];
};

static_assert(MAX_OBJECTIVES % LANES == 0, "biases of gates are whole words");
static_assert(sizeof(output_word_t) == 64 && sizeof(partial_word_t) == 64, "512-bit words");

/// What a task is: one word of the card's memory.
struct task_t {
    std::int32_t op;
    std::int32_t m;                   ///< token rows
    std::int32_t n;                   ///< LOGITS: outputs of the block; REWARDS: objectives
    std::int32_t parts;               ///< sums to be added, at least 1
    std::int32_t input_shift;         ///< of the sums
    std::int32_t exponent;            ///< of the values
    std::int32_t factor_m, factor_e;  ///< log2(e) / temperature, multiplies the rows' scales
    std::int32_t n_outputs;           ///< of all rows
    std::int32_t first_token;         ///< LOGITS: of the block
    std::int32_t block;               ///< LOGITS: which block of the vocabulary
    std::int32_t n_blocks;            ///< FINISH
    std::int32_t spare[4];
};

static_assert(sizeof(task_t) == 64, "a task is one 512-bit word");

/// Slots of the counters; see score_aggregator_counters.
enum counter {
    CALLS,
    ROWS,
    OUTPUTS,
    LOAD_CYCLES,
    ARRANGE_CYCLES,
    SIDE_CYCLES,
    FIRST_CYCLES,
    SECOND_CYCLES,
    MERGE_CYCLES,
    PARTIAL_CYCLES,
    BYTES_READ,
    BYTES_WRITTEN,
    N_COUNTERS
};

}  // namespace score
}  // namespace ecorl

extern "C" {

/// The kernel (top function). Unused buffers may be null. `rows_out` may be the memory of `rows`,
/// `outputs_out` that of `outputs`, and `partials_out` that of `partials`.
void score_aggregator_krnl(const ecorl::score::task_t* task, const ecorl::word_t* acc,
                           const ecorl::word_t* side, const ecorl::word_t* rewards,
                           const ecorl::row_t* rows, const ecorl::score::output_word_t* outputs,
                           const ecorl::score::partial_word_t* partials, ecorl::row_t* rows_out,
                           ecorl::score::output_word_t* outputs_out,
                           ecorl::score::partial_word_t* partials_out);

#ifdef ECORL_CSIM

/// Loop counts of the kernel over all threads since the last reset, 12 numbers:
///   0 calls
///   1 rows            token rows of all calls
///   2 outputs         results of all calls
///   3 load_cycles     words of products that are read
///   4 arrange_cycles  cycles of the buffer that brings products to rows
///   5 side_cycles     words of channel constants
///   6 first_cycles    words of outputs that are scaled
///   7 second_cycles   words whose powers are summed
///   8 merge_cycles    parts of rows that are merged, twice each
///   9 partial_cycles  words of parts, read or written
///  10 bytes_read      from the card's memory
///  11 bytes_written   to the card's memory
/// All processes run side by side.
void score_aggregator_counters(std::int64_t* out12);

/// Set the counters to zero.
void score_aggregator_counters_reset();

#endif  // ECORL_CSIM

}  // extern "C"

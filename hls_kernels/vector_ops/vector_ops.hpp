// vector_ops: what a decoder block needs between its products, one 512-bit word a cycle.
//
// One task is one operation on m rows. Products of gemm_int8 come in its C tile order, INT8 codes
// leave in its A tile order; the residual stream and the records of the rows stay in the card's
// memory. NUMERICS.md defines the operations.
//
//   EMBED     token of each row -> residual stream
//   NORM      residual stream -> codes and scales
//   RESIDUAL  products -> added to the residual stream
//   HEAD      products -> codes and scales of each head, as kv_cache_router and mha_int8 read them;
//             queries and keys rotated by RoPE
//   GATE      products of gate and up -> codes and scales of silu(gate) * up
//   CONTEXT   outputs and exponents of mha_int8, as they are -> codes and scales
//   FIXED     products -> values in fixed point (rewards)
//
// The kernel is a chain of processes with FIFOs between them; each word of 16 values of one row
// passes it once (vector_ops.cpp has the list):
//
//   load -> arrange -> dequantise -> pair ->FIFO-> transform ->FIFO-> quantise -> arrange -> store
//                          | peaks            scalars^  | peaks      scalars^
//                          +------> first scalars ------+--> second scalars -----> records
//
// What a row needs of all its values (a peak) is known once its last word has passed; until then
// its words wait in a FIFO that holds two of the longest rows, and the next row comes in behind
// them. So divisions and roots, which stand in processes of their own, are hidden under the rows
// that follow.
//
// GATE and CONTEXT have three stages (first_stage..last_stage). One card runs all of them in one
// call and reads the products once; two cards run one stage at a time and exchange maxima of the
// rows' records between them, and each call reads the products again.
//
// Layout of the buffers, in words of 512 bits (blocks = ceil(m / 16), words(n) = ceil(n / 16)):
//   acc     [parts][blocks][words(columns)][rows of the block], as `product_at` says; columns = 2 n
//           for GATE (n a multiple of 16), n otherwise. CONTEXT: [heads][stride][head / 16], as
//           mha_int8 writes it
//   x, y    [m][words(n)], rows one after the other
//   side    NORM: [words(n)] weights. RESIDUAL, GATE, FIXED: [words(columns)][3] mantissas, shifts,
//           biases (zeros where there is none). HEAD: the same, and before each HEADER_HEADS heads
//           4 words of their exponents. CONTEXT: [heads][stride / 8], 64 bits a row: exponent,
//           mark; the marks are added to those of the rows
//   table   EMBED: [vocabulary][1 + ceil(n / 32)], the exponent in the first word.
//           HEAD: [positions][4], cosines in two words, sines in two
//   codes   [units][blocks][ceil(unit / 4)]; a unit is MAX_SLICE columns in GATE (gemm_int8 takes
//           no more), all columns otherwise. HEAD: [heads][stride][token_beats(head)], a row's
//           codes one after the other, zeros behind them; rows beyond m stay as they are
//   scales  HEAD: [heads][stride / 4], 128 bits a row: head_row_t; zeros from m to the block's end
//
// A task may begin at any multiple of 16 rows of HEAD's outputs or CONTEXT's inputs, by pointers:
// so long runs of tokens go in parts, and heads keep their `stride`.
#pragma once

#include "ecorl_words.hpp"

namespace ecorl {
namespace vector {

constexpr int MAX_COLUMNS = 8192;    ///< the longest row of the residual stream, and of FIXED
constexpr int MAX_INNER = 32768;     ///< columns of gate, and of up; of CONTEXT
constexpr int MAX_CHANNELS = 65536;  ///< columns of a row of products
constexpr int MAX_SLICE = 16384;     ///< longest k that gemm_int8 takes
constexpr int MAX_HEAD = 128;        ///< values of a head; a multiple of 16
constexpr int MAX_ALL_HEADS = 256;   ///< of a row's attention
constexpr int HEADER_HEADS = 64;     ///< heads whose exponents stand together
constexpr int ROPE_WORDS = 4;        ///< cosines and sines of a position
constexpr int SCALE_WORDS = 4;       ///< of a head's 16 rows: scales and positions, 128 bits each
constexpr int RESULT_WORDS = 2;      ///< of a head's 16 rows: exponents and marks, 64 bits each

constexpr int NORM_WORDS = MAX_COLUMNS / LANES;
constexpr int CODE_WORDS = MAX_INNER / LANES;  ///< of a row that becomes codes
constexpr int CHANNEL_GROUPS = MAX_CHANNELS / LANES;
constexpr int TILE_WORDS = BLOCK_ROWS * CHANNEL_GROUPS;  ///< a block of the longest rows
constexpr int HEAD_WORDS = MAX_HEAD / LANES;
constexpr int ROW_DEPTH = 2 * CODE_WORDS;       ///< of the FIFOs in which rows wait
constexpr int BEAT_LINES = BEAT / LANES;        ///< 16 codes each
constexpr int LINE_STEPS = LANES / STEP_CODES;  ///< of gemm_int8 in 16 codes of a row

static_assert(MAX_CHANNELS == 2 * MAX_INNER, "a row of gate and up");

enum operation : std::int32_t { EMBED, NORM, RESIDUAL, HEAD, GATE, CONTEXT, FIXED };

/// Stages of GATE: largest gate and up of a row; largest result; codes.
enum gate_stage : std::int32_t { PEAKS, H_PEAK, GATE_CODES };
/// Stages of CONTEXT: largest exponent of a row's heads; largest value; codes.
enum context_stage : std::int32_t { EXPONENT, PEAK, CONTEXT_CODES };

/// What a task is: one word of the card's memory, so that one bitstream serves many models.
struct task_t {
    std::int32_t op;
    std::int32_t first_stage, last_stage;  ///< GATE, CONTEXT: 0 and 2 for all
    std::int32_t m;                        ///< token rows
    std::int32_t n;                        ///< columns; GATE: of one half
    std::int32_t parts;                    ///< sums to be added (slices of k, cards), at least 1
    std::int32_t head;                     ///< HEAD, CONTEXT: values of a head
    std::int32_t rotated;                  ///< HEAD: heads that RoPE rotates; they come first
    std::int32_t has_bias;                 ///< HEAD
    std::int32_t input_shift;              ///< of the sums
    std::int32_t fraction_bits;            ///< of the residual stream; FIXED: of the result
    std::int32_t exponent;                 ///< NORM: of the weights; else of the values (gate)
    std::int32_t exponent_up;              ///< GATE: of the values of up
    std::int32_t eps_m, eps_e;             ///< NORM
    std::int32_t stride;                   ///< HEAD, CONTEXT: rows from head to head, 16 i >= m
};

static_assert(sizeof(task_t) == 64, "a task is one 512-bit word");

/// Slots of the counters; see vector_ops_counters.
enum vector_counter {
    CALLS,
    ROWS,
    LOAD_CYCLES,
    ARRANGE_CYCLES,
    SIDE_CYCLES,
    OPEN_CYCLES,
    FIRST_CYCLES,
    PAIR_CYCLES,
    SCALAR_CYCLES,
    FACTOR_CYCLES,
    SECOND_CYCLES,
    CODE_CYCLES,
    STORE_CYCLES,
    BYTES_READ,
    BYTES_WRITTEN,
    N_COUNTERS
};

}  // namespace vector
}  // namespace ecorl

extern "C" {

/// The kernel (top function). Unused buffers may be null. `y` may be the memory of `x`, `rows_out`
/// that of `rows`: a block is written after it was read.
void vector_ops_krnl(const ecorl::vector::task_t* task, const ecorl::word_t* acc,
                     const ecorl::word_t* x, const ecorl::word_t* side,
                     const ecorl::table_word_t* table, const ecorl::row_t* rows,
                     ecorl::code_word_t* codes, ecorl::word_t* y, ecorl::row_t* rows_out,
                     ecorl::word_t* scales);

#ifdef ECORL_CSIM

/// Loop counts of the kernel over all threads since the last reset, 15 numbers. All processes run
/// side by side: a call lasts as long as its slowest one, and the chain's fill.
///   0 calls
///   1 rows            token rows of all calls
///   2 load_cycles     words of products that are read
///   3 arrange_cycles  steps of the block buffer, products in and rows out
///   4 side_cycles     words of channel constants, weights and exponents
///   5 open_cycles     steps before the first look: exponents of heads, records, rows or heads
///   6 first_cycles    words at the first look
///   7 pair_cycles     words that are brought to the second look
///   8 scalar_cycles   peaks of the first look that become scalars
///   9 factor_cycles   steps of weights or angles: in, prepared, and out for each word
///  10 second_cycles   words at the second look
///  11 code_cycles     steps of the codes' block buffer, rows in and columns out; HEAD: codes in
///  12 store_cycles    words of codes that are written
///  13 bytes_read      from the card's memory
///  14 bytes_written   to the card's memory
void vector_ops_counters(std::int64_t* out15);

/// Set the counters to zero.
void vector_ops_counters_reset();

#endif  // ECORL_CSIM

}  // extern "C"

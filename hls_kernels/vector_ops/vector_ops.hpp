// vector_ops: what a decoder block needs between its products, on blocks of 16 token rows.
//
// One task is one operation on m rows. Products of gemm_int8 come in its C tile order, INT8 codes
// leave in its A tile order; the residual stream and the records of the rows stay in the card's
// memory. NUMERICS.md defines the operations, rows.hpp computes them, 16 values a cycle.
//
//   EMBED     token of each row -> residual stream
//   NORM      residual stream -> codes and scales
//   RESIDUAL  products -> added to the residual stream
//   HEAD      products -> codes and scales of each head, as kv_cache_router and mha_int8 read them;
//             queries and keys turned by RoPE
//   GATE      products of gate and up -> codes and scales of silu(gate) * up
//   CONTEXT   outputs and exponents of mha_int8, as they are -> codes and scales
//   FIXED     products -> values in fixed point (rewards)
//
// GATE and CONTEXT have three stages (first_stage..last_stage): two cards run one stage at a time
// and exchange maxima of the rows' records between them. A stage reads the products anew, so that
// no row of values must be kept.
//
// Layout of the buffers, in words of 512 bits (blocks = ceil(m / 16), words(n) = ceil(n / 16)):
//   acc     [parts][words(columns)][m]; columns = 2 n for GATE (n a multiple of 16), n otherwise.
//           CONTEXT: [heads][stride][head / 16], as mha_int8 writes it
//   x, y    [m][words(n)], rows one after the other
//   side    NORM: [words(n)] weights. RESIDUAL, GATE, FIXED: [words(columns)][3] mantissas, shifts,
//           biases (zeros where there is none). HEAD: the same, and before each MAX_HEADS heads 4
//           words of their exponents. CONTEXT: [heads][stride / 8], 64 bits a row: exponent, mark;
//           the marks are added to those of the rows
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

constexpr int MAX_COLUMNS = 8192;   ///< of a panel: the longest row of the residual stream
constexpr int MAX_INNER = 32768;    ///< columns of gate, and of up
constexpr int MAX_SLICE = 16384;    ///< longest k that gemm_int8 takes
constexpr int MAX_HEADS = 64;       ///< of a panel
constexpr int MAX_HEAD = 128;       ///< values of a head; a multiple of 16
constexpr int MAX_ALL_HEADS = 256;  ///< of a row's attention
constexpr int GATE_COLUMNS = MAX_COLUMNS / 2;
constexpr int PANEL_WORDS = MAX_COLUMNS / LANES;
constexpr int HEAD_WORDS = MAX_HEAD / LANES;
constexpr int ROPE_WORDS = 4;
constexpr int LINE_STEPS = LANES / STEP_CODES;  ///< of gemm_int8 in 16 codes of a row
constexpr int BEAT_LINES = BEAT / LANES;        ///< 16 codes each
constexpr int EXPONENT_WORDS = MAX_HEADS / LANES;
constexpr int SCALE_WORDS = 4;   ///< of a head's 16 rows: scales and positions, 128 bits each
constexpr int RESULT_WORDS = 2;  ///< of a head's 16 rows: exponents and marks, 64 bits each

static_assert(MAX_HEADS * MAX_HEAD == MAX_COLUMNS, "heads stand side by side in a line");

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
    std::int32_t turned;                   ///< HEAD: heads that RoPE turns; they come first
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
enum counter {
    CALLS,
    ROWS,
    LOAD_CYCLES,
    TURN_CYCLES,
    SIDE_CYCLES,
    TAKE_CYCLES,
    WORK_CYCLES,
    GIVE_CYCLES,
    CODE_CYCLES,
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

/// Loop counts of the kernel over all threads since the last reset, 11 numbers:
///   0 calls
///   1 rows          token rows of all calls
///   2 load_cycles   words of products that are read
///   3 turn_cycles   cycles of the block buffer, products in beside rows out
///   4 side_cycles   words of channel constants, weights and exponents
///   5 take_cycles   words of a row that enter its line buffers (the most of products, residual
///                   stream and table, which come side by side)
///   6 work_cycles   cycles of the row functions' loops, 16 values each
///   7 give_cycles   words of a row that leave its line buffers
///   8 code_cycles   words of codes that are written
///   9 bytes_read    from the card's memory
///  10 bytes_written to the card's memory
/// Take, work and give of neighbouring rows run side by side, as do the other processes.
void vector_ops_counters(std::int64_t* out11);

/// Set the counters to zero.
void vector_ops_counters_reset();

#endif  // ECORL_CSIM

}  // extern "C"

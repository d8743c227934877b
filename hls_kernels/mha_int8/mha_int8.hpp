// mha_int8: causal attention over the pages of the KV cache, with a streaming softmax.
//
// A block is up to 64 query rows that read the same pages, each with its position: queries of one
// head, or of several heads that share keys and values. The array holds BLOCK_ROWS x ARRAY_LANES
// sums and takes MAC_STEP steps a cycle: 64 * 8 * 4 / 2 = 1,024 DSPs, 2,048 MAC. It computes both
// products: the scores of a page, and the sums of its values under the weights, these as two codes
// each. No more scores are kept than those of two pages.
//
// Queries and rows come as HEAD of vector_ops writes them, contexts and results go out as its
// CONTEXT reads them: [heads][stride], so that row head * stride + token is a query's everywhere,
// and one call takes the blocks of all heads and sequences.
//
// A block goes in turns. In turn t the array computes the scores of page t and then sums the
// values of page t - 2, while the softmax works on the scores of page t - 1.
#pragma once

#include "kv_pages.hpp"

namespace ecorl {
namespace mha {

constexpr int BLOCK_ROWS = 64;  ///< queries in the array at a time
constexpr int MAX_STEPS = MAX_HEAD / MAC_STEP;
constexpr int PAGE_STEPS = PAGE / MAC_STEP;

/// A block of queries. 128 bits.
struct block_t {
    std::int32_t first_row;    ///< of queries, rows and results
    std::int32_t n_rows;       ///< 1..BLOCK_ROWS
    std::int32_t first_entry;  ///< of the page table
    std::int32_t n_pages;      ///< up to that of the last position; at most MAX_PAGES
};

/// What comes out beside the context. 64 bits.
struct result_t {
    std::int32_t exponent;  ///< of the context, NO_EXPONENT for zeros
    std::int32_t mark;      ///< not 0 where a number did not fit its format
};

/// Slots of the counters; see mha_int8_counters.
enum counter {
    CALLS,
    BLOCKS,
    PAGES,
    TURNS,
    FILL_CYCLES,
    SCORE_CYCLES,
    CONTEXT_CYCLES,
    SOFTMAX_CYCLES,
    DRAIN_CYCLES,
    TURN_CYCLES,
    FINISH_CYCLES,
    BYTES_QUERIES,
    BYTES_PAGES,
    BYTES_WRITTEN,
    MACS,
    N_COUNTERS
};

}  // namespace mha
}  // namespace ecorl

extern "C" {

/// The kernel (top function).
///
/// blocks   [n_blocks]
/// rows     [rows] scales, and positions: a query sees the keys up to its own
/// queries  [rows][token_beats(d)] codes in row order, filled up with zeros behind d
/// table    page table entries
/// pages    as include/kv_pages.hpp says
/// context  [rows][d / 16] beats of INT32
/// results  [rows]
/// d        head size, a multiple of HEAD_UNIT, at most MAX_HEAD
/// score_m, score_e  the scale log2(e) / sqrt(d)
void mha_int8_krnl(const ecorl::mha::block_t* blocks, const ecorl::head_row_t* rows,
                   const ecorl::beat_t* queries, const std::int32_t* table,
                   const ecorl::beat_t* pages, ecorl::beat_t* context,
                   ecorl::mha::result_t* results, std::int32_t n_blocks, std::int32_t d,
                   std::int32_t score_m, std::int32_t score_e);

#ifdef ECORL_CSIM

// ---- C API of the C-simulation library. ----

/// The kernel on row-major arrays, for queries that share one page table: queries [m, head_dim],
/// scales [m, 2] as (m, e), positions [m]; context [m, head_dim], exponents [m], marks [m]. Pages
/// as kv_cache_router writes them. A call with m < 1, a head size beyond 1..128 or a position
/// beyond 0..65,535 does nothing. Returns 0, or dataflow::FAULT where the kernel could not go on.
std::int32_t mha_int8(const std::int8_t* queries, const std::int32_t* query_scales,
                      const std::int32_t* positions, std::int32_t m, std::int32_t head_dim,
                      std::int32_t score_m, std::int32_t score_e, const void* pages,
                      const std::int32_t* table, std::int32_t* context, std::int32_t* exponents,
                      std::int32_t* marks);

/// Counts of the kernel over all threads since the last reset, 15 numbers; cycles at II as in
/// qor.json:
///   0 calls
///   1 blocks
///   2 pages           taken up by blocks
///   3 turns           of blocks, n_pages + 2 each
///   4 fill_cycles     a block's rows, page table and queries, before its first turn
///   5 score_cycles    of the array: scores
///   6 context_cycles  of the array: values under weights
///   7 softmax_cycles  of the rows' softmax
///   8 drain_cycles    in which sums leave the array
///   9 turn_cycles     the longest of array, softmax and drain in each turn, summed
///  10 finish_cycles   of the rows' division
///  11 bytes_queries   read: blocks, rows, queries and page table entries
///  12 bytes_pages     read: keys, values and scales of pages
///  13 bytes_written   contexts and results
///  14 macs            useful: d for each score and 2 d for each weight of a query with a key that
///                     it sees
void mha_int8_counters(std::int64_t* out15);

/// Set the counters to zero.
void mha_int8_counters_reset();

#endif  // ECORL_CSIM

}  // extern "C"

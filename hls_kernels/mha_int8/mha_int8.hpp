// mha_int8: causal attention over the pages of the KV cache, with a streaming softmax.
//
// A block is up to 64 query rows that read the same pages, each with its position: queries of one
// head, or of several heads that share keys and values. The array holds QUERY_ROWS x ARRAY_LANES
// sums and takes MAC_STEP codes of each row a cycle: 64 * 8 * 4 / 2 = 1,024 DSPs, 2,048 MAC. It
// computes both products: the scores of a page, and the sums of its values under the weights, these
// as two codes each.
//
// Queries and rows come as HEAD of vector_ops writes them, contexts and results go out as its
// CONTEXT reads them: [heads][stride], so that row head * stride + token is a query's everywhere,
// and one call takes the blocks of all heads and sequences.
//
// A call goes in turns, one for each page of each block, and a block begins while the one before is
// still under way: in a turn the array computes the scores of a page and then sums the values of
// the page two turns before, while the softmax works on the page between them (turns.hpp).
#pragma once

#include "ecorl_words.hpp"
#include "kv_pages.hpp"

namespace ecorl {
namespace mha {

constexpr int QUERY_ROWS = 64;  ///< queries in the array at a time

/// A block of queries. 128 bits.
struct query_block_t {
    std::int32_t first_row;    ///< of queries, rows and results
    std::int32_t n_rows;       ///< 1..QUERY_ROWS
    std::int32_t first_entry;  ///< of the page table
    std::int32_t n_pages;      ///< up to that of the last position; at most MAX_PAGES
};

/// What comes out beside the context. 64 bits.
struct head_result_t {
    std::int32_t exponent;  ///< of the context, NO_EXPONENT for zeros
    std::int32_t mark;      ///< not 0 where a number did not fit its format
};

/// Slots of the counters; see mha_int8_counters.
enum mha_counter {
    CALLS,
    BLOCKS,
    PAGES,
    TURNS,
    ARRAY_CYCLES,
    SCORE_CYCLES,
    CONTEXT_CYCLES,
    ARRANGE_CYCLES,
    SOFTMAX_CYCLES,
    WEIGHT_CYCLES,
    TURN_CYCLES,
    ACCUMULATE_CYCLES,
    EMIT_CYCLES,
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
/// context  [rows][d / 16] words of INT32
/// results  [rows]
/// d        head size, a multiple of HEAD_UNIT, at most MAX_HEAD
/// score_m, score_e  the scale log2(e) / sqrt(d)
void mha_int8_krnl(const ecorl::mha::query_block_t* blocks, const ecorl::head_row_t* rows,
                   const ecorl::beat_t* queries, const std::int32_t* table,
                   const ecorl::beat_t* pages, ecorl::word_t* context,
                   ecorl::mha::head_result_t* results, std::int32_t n_blocks, std::int32_t d,
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

/// Counts of the kernel over all threads since the last reset, 17 numbers; cycles are trips of
/// loops with the II of qor.json:
///   0 calls
///   1 blocks
///   2 pages              taken up by blocks
///   3 turns              one for each page, and three more in a call
///   4 array_cycles       of the array's loop, those included in which it only takes in or gives
///   out 5 score_cycles       of them, those with products of queries and keys 6 context_cycles of
///   them, those with products of weights and values 7 arrange_cycles     scores from the order of
///   the array to that of the softmax 8 softmax_cycles     scores to units of log2, and what a row
///   or page takes before 9 weight_cycles      scores to weights, and what a page takes before
///  10 turn_cycles        the longest of these four in each turn, summed
///  11 accumulate_cycles  sums of a page to those of the pages before
///  12 emit_cycles        contexts of a block leave, to be divided
///  13 bytes_queries      read: blocks, rows, queries and page table entries
///  14 bytes_pages        read: keys, values and scales of pages
///  15 bytes_written      contexts and results
///  16 macs               useful: d for each score and 2 d for each weight of a query with a key
///                        that it sees
void mha_int8_counters(std::int64_t* out17);

/// Set the counters to zero.
void mha_int8_counters_reset();

#endif  // ECORL_CSIM

}  // extern "C"

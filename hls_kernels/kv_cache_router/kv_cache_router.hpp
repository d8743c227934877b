// kv_cache_router: writes keys and values into pages, and page tables that let sequences share
// them.
//
// include/kv_pages.hpp says how a page lies in memory. The kernel works through a list of jobs, one
// for each page of a sequence, in the order of the sequence. A page that a sequence shares as a
// whole with another costs one entry of the page table. The page in which it leaves the other is
// copied and continued, so that the other's page stays as it is (copy on write).
//
// Keys and values come as HEAD of vector_ops writes them. One call may serve many heads: in its
// output the rows of a head follow `stride` rows after those of the one before, and numbers of
// pages and of entries are those of the whole card.
#pragma once

#include "kv_pages.hpp"

namespace ecorl {
namespace router {

/// One page of a sequence. 256 bits.
struct job_t {
    std::int32_t source;       ///< page whose first positions are taken over; unused if kept = 0
    std::int32_t kept;         ///< positions taken over; PAGE: the table refers to the page itself
    std::int32_t first_token;  ///< of the new ones, which follow: row of keys, of values and theirs
    std::int32_t n_tokens;     ///< new ones; kept + n_tokens <= PAGE
    std::int32_t destination;  ///< page to be written, unless kept = PAGE; may be `source`
    std::int32_t entry;        ///< of the page table, to be set
    std::int32_t spare[2];
};

/// Slots of the counters; see kv_cache_router_counters.
enum router_counter {
    CALLS,
    PAGES_WRITTEN,
    PAGES_COPIED,
    PAGES_SHARED,
    COPY_CYCLES,
    ROW_CYCLES,
    EMIT_CYCLES,
    BYTES_TOKENS,
    BYTES_READ,
    BYTES_WRITTEN,
    N_COUNTERS
};

}  // namespace router
}  // namespace ecorl

extern "C" {

/// The kernel (top function).
///
/// keys, values          [tokens][token_beats(d)] codes in row order, zeros behind d
/// key_rows, value_rows  [tokens] their scales; positions are not read
/// jobs                  [n_jobs], whose new tokens do not overlap. A source has been written by an
///                       earlier call.
/// sources               the pages, read; pages: the same memory, written
/// table                 INT32 entries
/// d                     head size, a multiple of HEAD_UNIT, at most MAX_HEAD
void kv_cache_router_krnl(const ecorl::beat_t* keys, const ecorl::beat_t* values,
                          const ecorl::head_row_t* key_rows, const ecorl::head_row_t* value_rows,
                          const ecorl::router::job_t* jobs, const ecorl::beat_t* sources,
                          ecorl::beat_t* pages, std::int32_t* table, std::int32_t n_jobs,
                          std::int32_t d);

#ifdef ECORL_CSIM

// ---- C API of the C-simulation library. ----

/// Bytes of a page for heads of `head_dim` channels: filled up to a multiple of 16, at most 128.
/// 0 for other sizes.
std::int64_t kv_cache_router_page_bytes(std::int32_t head_dim);

/// The kernel on row-major arrays: keys and values [tokens, head_dim], scales [tokens, 2] as (m,
/// e). `jobs` [n_jobs, 8] are the fields of job_t; `pages` has kv_cache_router_page_bytes each. A
/// call with n_jobs < 1 or another head size does nothing. Returns 0, or dataflow::FAULT where the
/// kernel could not go on.
std::int32_t kv_cache_router(const std::int8_t* keys, const std::int32_t* key_scales,
                             const std::int8_t* values, const std::int32_t* value_scales,
                             std::int32_t n_tokens, std::int32_t head_dim, const std::int32_t* jobs,
                             std::int32_t n_jobs, void* pages, std::int32_t* table);

/// Counts of the kernel over all threads since the last reset, 10 numbers:
///   0 calls
///   1 pages_written
///   2 pages_copied    of them, begun with positions of another page
///   3 pages_shared    referred to and not written
///   4 copy_cycles     beats of a page that is copied, at II=1
///   5 row_cycles      beats of keys (and of values beside them), zeros behind the last included
///   6 emit_cycles     beats of pages written
///   7 bytes_tokens    read: keys, values and scales of tokens, and jobs
///   8 bytes_read      read from pages
///   9 bytes_written   to pages and page tables
void kv_cache_router_counters(std::int64_t* out10);

/// Set the counters to zero.
void kv_cache_router_counters_reset();

#endif  // ECORL_CSIM

}  // extern "C"

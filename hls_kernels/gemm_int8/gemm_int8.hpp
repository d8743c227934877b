// gemm_int8: C[m,n] = A[m,k] * W[n,k]^T, INT8 in, exact INT32 out.
//
// The array: TILE_M x TILE_N outputs stay in place while TILE_K steps of k pass per cycle. One
// DSP48E2 holds two INT8 products (two rows of A, one weight), and TILE_K of them form a cascade:
// 64 * 16 * 4 / 2 = 2,048 DSPs, 4,096 MAC per cycle. One 512-bit weight word enters per cycle. A
// finished tile moves into a shadow register and leaves from there, a row of 512 bits a cycle,
// while the next tile is multiplied.
//
// Memory on the card is in tile order, one 512-bit word = 16 rows x 4 values of k:
//   A, W   word [row / 16][k / 4], byte [row % 16][k % 4]; rows and k padded with zeros
//   C      word [m / 16][n / 16][m % 16], INT32 lane [n % 16]; see `product_at`
#pragma once

#include "ecorl_words.hpp"

namespace ecorl {
namespace gemm {

constexpr int TILE_M = 64;        ///< rows of A in the array at a time
constexpr int TILE_N = 16;        ///< columns (rows of W) in the array at a time
constexpr int TILE_K = 4;         ///< steps of k per cycle: the depth of one DSP cascade
constexpr int MAX_K = 16384;      ///< longest k that the activation buffer holds
constexpr int MAX_DIM = 1 << 20;  ///< largest m and n

constexpr int ROW_BLOCKS = TILE_M / BLOCK_ROWS;  ///< of a tile; each has a queue of its results
constexpr int BURST_TILES = 16;  ///< neighbouring tiles whose results leave in one burst
constexpr int QUEUE_WORDS = 2 * BURST_TILES * BLOCK_ROWS;  ///< results of 16 rows that wait
constexpr int SETTLE_TRIPS = 8;  ///< from a block's last activation to its first product

/// Half a word of W: 8 of its 16 rows. A port of 512 bits would ask one channel of the memory for
/// more than the channel gives at this clock; two of 256 bits stay below.
struct half_word_t {
    code_t code[TILE_N / 2][TILE_K];
};

static_assert(TILE_N == BLOCK_ROWS && TILE_K == STEP_CODES, "A and W share one word format");
static_assert(TILE_N == LANES, "a row of a tile is a word of results");
static_assert(TILE_M % BLOCK_ROWS == 0, "a tile has whole blocks of rows");

/// Slots of the counters; see gemm_int8_counters.
enum counter {
    CALLS,
    TILES,
    MAC_CYCLES,
    FILL_CYCLES,
    DRAIN_CYCLES,
    BYTES_A,
    BYTES_W,
    BYTES_C,
    MACS,
    N_COUNTERS
};

}  // namespace gemm
}  // namespace ecorl

extern "C" {

/// The kernel (top function). All buffers in tile order; 1 <= k <= MAX_K. The words of W lie in
/// halves in two places: rows 0..7 of each word, and rows 8..15.
void gemm_int8_krnl(const ecorl::code_word_t* a, const ecorl::gemm::half_word_t* w_low,
                    const ecorl::gemm::half_word_t* w_high, ecorl::word_t* c, std::int32_t m,
                    std::int32_t n, std::int32_t k);

#ifdef ECORL_CSIM

// ---- C API of the C-simulation library: what the Python side and the other kernels call. ----
// All functions may be called from several threads at once on disjoint outputs. Inputs may hold
// the full range -128..127. Limits: m, n <= MAX_DIM, k <= MAX_K; a call with m, n or k < 1 does
// nothing. Products return 0, or dataflow::FAULT where the kernel could not go on.

/// Bytes of the packed form of [n,k] weights: ceil(n/16) * ceil(k/4) * 64.
std::int64_t gemm_int8_packed_bytes(std::int32_t n, std::int32_t k);

/// Put row-major weights w [n,k] into tile order, as the card's HBM holds them.
void gemm_int8_pack(const std::int8_t* w, void* packed, std::int32_t n, std::int32_t k);

/// c [m,n] = a [m,k] * w^T with packed w [n,k]; a and c row-major; exact.
std::int32_t gemm_int8(const std::int8_t* a, const void* packed, std::int32_t* c, std::int32_t m,
                       std::int32_t n, std::int32_t k);

/// `batch` independent small products in one call, nothing packed beforehand:
/// c [batch,m,n] = a [batch,m,k] * w [batch,n,k]^T. Counts as `batch` calls.
std::int32_t gemm_int8_batched(const std::int8_t* a, const std::int8_t* w, std::int32_t* c,
                               std::int32_t batch, std::int32_t m, std::int32_t n, std::int32_t k);

/// Loop counts of the kernel over all threads since the last reset, 9 numbers. Cycles are trips of
/// the array's one loop, each of which is counted once:
///   0 calls
///   1 tiles         TILE_M x TILE_N output tiles
///   2 mac_cycles    the array multiplies, tails of tiles included
///   3 fill_cycles   it waits for activations (first block of a call, and what does not fit beside
///                   the work on the block before)
///   4 drain_cycles  it waits for results to leave (tiles with fewer steps of k than rows, and the
///                   last tile of a call)
///   5 bytes_a       read from HBM on the activation port
///   6 bytes_w       read from HBM on the weight ports
///   7 bytes_c       written to HBM
///   8 macs          useful multiply-accumulates, m * n * k
/// Where a native path answers in place of the kernel's loops, the same numbers come from their
/// closed form.
void gemm_int8_counters(std::int64_t* out9);

/// Set the counters to zero.
void gemm_int8_counters_reset();

/// Choose who computes: 0 automatic, 1 the kernel's own source, 2 portable C++, 3 AVX2,
/// 4 AVX512-VNNI. Returns 0, or -1 where this build or CPU lacks the path. The strict build knows
/// only 0 and 1. The environment variable ECORL_GEMM_PATH (auto, kernel, portable, avx2, vnni)
/// sets the initial choice; an unknown or unavailable name leaves it automatic.
std::int32_t gemm_int8_set_path(std::int32_t path);

/// The path that gemm_int8 takes now, never 0.
std::int32_t gemm_int8_path();

#endif  // ECORL_CSIM

}  // extern "C"

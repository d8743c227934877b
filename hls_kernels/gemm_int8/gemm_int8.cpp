#include "gemm_int8.hpp"

#include <hls_stream.h>

#include "ecorl_dataflow.hpp"

#include "packed_mac.hpp"

#ifdef ECORL_CSIM
#include "gemm_int8_sim.hpp"
#define GEMM_COUNT(slot, amount) ::ecorl::gemm::count(slot, amount)
#else
#define GEMM_COUNT(slot, amount)
#endif

namespace ecorl {
namespace gemm {

// ---- the four processes ---------------------------------------------------------------------

/// One finished output tile, handed over in a shadow register so that the array goes on at once.
template <int TM, int TN>
struct tile_t {
    acc_t value[TM][TN];
};

/// What one row pair of the array takes in one cycle, TK values of k of each row. At TK = 4 these
/// are 64 of an URAM's 72 bits, so that 4,096 steps fill one URAM288.
template <int TK>
struct step_t {
    value_t value[2][TK];
};

inline dim_t min_dim(dim_t x, dim_t y) {
    return x < y ? x : y;
}

/// Read A once, in the order of memory.
template <int TN, int TK>
void load_a(const word_t* a, hls::stream<word_t>& out, dim_t m, dim_t k) {
    const dim_t words = ceil_div(m, TN) * ceil_div(k, TK);
LOAD_A:
    for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 65536 avg = 16384
        out.write(a[i]);
        GEMM_COUNT(BYTES_A, sizeof(word_t));
    }
}

/// Read all of W once for each block of TM rows, a half of each word from either port.
template <int TM, int TN, int TK>
void load_w(const half_word_t* w_low, const half_word_t* w_high, hls::stream<word_t>& out, dim_t m,
            dim_t n, dim_t k) {
    const dim_t blocks = ceil_div(m, TM);
    const dim_t words = ceil_div(n, TN) * ceil_div(k, TK);
LOAD_W_BLOCK:
    for (dim_t block = 0; block < blocks; ++block) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 128 avg = 16
    LOAD_W:
        for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1048576 avg = 16384
            const half_word_t low = w_low[i];
            const half_word_t high = w_high[i];
            word_t word;
            for (int r = 0; r < TN / 2; ++r) {
#pragma HLS UNROLL
                for (int t = 0; t < TK; ++t) {
#pragma HLS UNROLL
                    word.value[r][t] = low.value[r][t];
                    word.value[TN / 2 + r][t] = high.value[r][t];
                }
            }
            out.write(word);
            GEMM_COUNT(BYTES_W, sizeof(word_t));
        }
    }
}

/// Place of the next activation word in one bank of the buffer: group of rows, step of k.
struct place_t {
    dim_t group;
    dim_t step;
};

template <int TM, int TN, int TK, int STEPS>
void place_word(step_t<TK> bank[TM / 2][STEPS], const word_t& word, place_t& place, dim_t steps) {
#pragma HLS INLINE
PLACE:
    for (int p = 0; p < TN / 2; ++p) {
#pragma HLS UNROLL
        step_t<TK> pair;  // whole words only: parts of one would need more ports
        for (int t = 0; t < TK; ++t) {
#pragma HLS UNROLL
            pair.value[0][t] = word.value[2 * p][t];
            pair.value[1][t] = word.value[2 * p + 1][t];
        }
        bank[place.group * (TN / 2) + p][place.step] = pair;
    }
    if (++place.step == steps) {
        place.step = 0;
        ++place.group;
    }
}

/// One cycle of the array: every output takes TK products.
template <int TM, int TN, int TK, int STEPS>
void mac_step(const step_t<TK> bank[TM / 2][STEPS], const word_t& weight, acc_t acc[TM][TN],
              dim_t step, dim_t live_rows) {
#pragma HLS INLINE
    const dim_t pairs = ECORL_LANES(TM / 2, ceil_div(live_rows, 2));
PAIRS:
    for (dim_t p = 0; p < pairs; ++p) {
#pragma HLS UNROLL
        const step_t<TK> pair = bank[p][step];
        packed_act_t act[TK];
#pragma HLS ARRAY_PARTITION variable = act complete
        for (int t = 0; t < TK; ++t) {
#pragma HLS UNROLL
            act[t] = pack_pair(pair.value[0][t], pair.value[1][t]);
        }
    COLUMNS:
        for (int j = 0; j < TN; ++j) {
#pragma HLS UNROLL
            const pair_t products = dsp_cascade<TK>(act, weight.value[j]);
            acc[2 * p][j] += products.low;
            acc[2 * p + 1][j] += products.high;
        }
    }
}

template <int TM, int TN>
void clear_tile(tile_t<TM, TN>& tile) {
#pragma HLS INLINE
CLEAR:
    for (int r = 0; r < TM; ++r) {
#pragma HLS UNROLL
        for (int j = 0; j < TN; ++j) {
#pragma HLS UNROLL
            tile.value[r][j] = 0;
        }
    }
}

/// Activation words of one block of TM rows; 0 behind the last block.
template <int TM, int TN>
dim_t block_words(dim_t m, dim_t block, dim_t steps) {
#pragma HLS INLINE
    const dim_t rows = min_dim(m - block * TM, TM);
    return rows > 0 ? ceil_div(rows, TN) * steps : 0;
}

/// The array. The next block's activations come in beside the work on the present one.
template <int TM, int TN, int TK, int KMAX>
void mac_array(hls::stream<word_t>& acts, hls::stream<word_t>& weights,
               hls::stream<tile_t<TM, TN>>& out, dim_t m, dim_t n, dim_t k) {
    constexpr int STEPS = KMAX / TK;
    ECORL_BUFFER step_t<TK> bank[2][TM / 2][STEPS];
#pragma HLS BIND_STORAGE variable = bank type = ram_2p impl = uram
#pragma HLS ARRAY_PARTITION variable = bank complete dim = 1
#pragma HLS ARRAY_PARTITION variable = bank complete dim = 2
#pragma HLS AGGREGATE variable = bank
    tile_t<TM, TN> tile;
#pragma HLS ARRAY_PARTITION variable = tile.value complete dim = 0

    const dim_t blocks = ceil_div(m, TM);
    const dim_t n_tiles = ceil_div(n, TN);
    const dim_t steps = ceil_div(k, TK);
    const dim_t first_words = block_words<TM, TN>(m, 0, steps);
    place_t place = {0, 0};

FILL:
    for (dim_t i = 0; i < first_words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 16384 avg = 512
        place_word<TM, TN, TK, STEPS>(bank[0], acts.read(), place, steps);
        GEMM_COUNT(FILL_CYCLES, 1);
    }
BLOCK:
    for (dim_t block = 0; block < blocks; ++block) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 128 avg = 16
        const int now = block & 1;
        const dim_t live_rows = min_dim(m - block * TM, TM);
        dim_t pending = block_words<TM, TN>(m, block + 1, steps);
        place.group = 0;
        place.step = 0;
    TILE:
        for (dim_t n_tile = 0; n_tile < n_tiles; ++n_tile) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 32
            clear_tile<TM, TN>(tile);
        MAC:
            for (dim_t step = 0; step < steps; ++step) {
#pragma HLS PIPELINE II = 1
#pragma HLS DEPENDENCE variable = bank type = inter false
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 4096 avg = 128
                const word_t weight = weights.read();
                mac_step<TM, TN, TK, STEPS>(bank[now], weight, tile.value, step, live_rows);
                if (pending > 0) {
                    place_word<TM, TN, TK, STEPS>(bank[1 - now], acts.read(), place, steps);
                    --pending;
                }
                GEMM_COUNT(MAC_CYCLES, 1);
            }
            out.write(tile);
            GEMM_COUNT(TILES, 1);
        }
    REST:
        for (; pending > 0; --pending) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 16384 avg = 0
            place_word<TM, TN, TK, STEPS>(bank[1 - now], acts.read(), place, steps);
            GEMM_COUNT(FILL_CYCLES, 1);
        }
    }
}

/// Write the rows of each tile that exist; one burst for each 16 of them.
template <int TM, int TN>
void store_c(hls::stream<tile_t<TM, TN>>& tiles, acc_word_t* c, dim_t m, dim_t n) {
    const dim_t blocks = ceil_div(m, TM);
    const dim_t n_tiles = ceil_div(n, TN);
STORE_BLOCK:
    for (dim_t block = 0; block < blocks; ++block) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 128 avg = 16
    STORE_TILE:
        for (dim_t n_tile = 0; n_tile < n_tiles; ++n_tile) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 32
            const tile_t<TM, TN> tile = tiles.read();
            const dim_t live_rows = min_dim(m - block * TM, TM);
        STORE_ROWS:
            for (dim_t r0 = 0; r0 < live_rows; r0 += BLOCK_ROWS) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 4 avg = 4
                const std::int64_t first = product_at(block * TM + r0, n_tile, m, n_tiles);
                const dim_t rows = min_dim(live_rows - r0, BLOCK_ROWS);
            STORE:
                for (dim_t r = 0; r < rows; ++r) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 16 avg = 16
                    acc_word_t word;
                    for (int j = 0; j < TN; ++j) {
#pragma HLS UNROLL
                        word.value[j] = tile.value[r0 + r][j];
                    }
                    c[first + r] = word;
                    GEMM_COUNT(BYTES_C, sizeof(acc_word_t));
                }
            }
        }
    }
}

/// Load, compute and store as processes of one dataflow region.
template <int TM, int TN, int TK, int KMAX>
void gemm_dataflow(const word_t* a, const half_word_t* w_low, const half_word_t* w_high,
                   acc_word_t* c, dim_t m, dim_t n, dim_t k) {
#pragma HLS DATAFLOW
    hls::stream<word_t, 64> acts("acts");
    hls::stream<word_t, 512> weights("weights");
    hls::stream<tile_t<TM, TN>, 2> tiles("tiles");
    ECORL_REGION(gemm_int8);
    ECORL_PROCESS(load_a<TN, TK>(a, acts, m, k));
    ECORL_PROCESS(load_w<TM, TN, TK>(w_low, w_high, weights, m, n, k));
    ECORL_PROCESS(mac_array<TM, TN, TK, KMAX>(acts, weights, tiles, m, n, k));
    ECORL_PROCESS(store_c<TM, TN>(tiles, c, m, n));
    ECORL_RUN(gemm_int8);
}

}  // namespace gemm
}  // namespace ecorl

extern "C" void gemm_int8_krnl(const ecorl::gemm::word_t* a, const ecorl::gemm::half_word_t* w_low,
                               const ecorl::gemm::half_word_t* w_high, ecorl::gemm::acc_word_t* c,
                               std::int32_t m, std::int32_t n, std::int32_t k) {
#pragma HLS INTERFACE m_axi port = a bundle = gmem_a max_read_burst_length = 256 offset = slave
#pragma HLS INTERFACE m_axi port = w_low bundle = gmem_w0 max_read_burst_length = 256 offset = slave
#pragma HLS INTERFACE m_axi port = w_high bundle = gmem_w1 max_read_burst_length = 256 offset = \
    slave
#pragma HLS INTERFACE m_axi port = c bundle = gmem_c max_write_burst_length = 256 offset = slave
#pragma HLS INTERFACE s_axilite port = m
#pragma HLS INTERFACE s_axilite port = n
#pragma HLS INTERFACE s_axilite port = k
#pragma HLS INTERFACE s_axilite port = return
#pragma HLS AGGREGATE variable = a compact = bit
#pragma HLS AGGREGATE variable = w_low compact = bit
#pragma HLS AGGREGATE variable = w_high compact = bit
#pragma HLS AGGREGATE variable = c compact = bit
    using namespace ecorl::gemm;
    GEMM_COUNT(CALLS, 1);
    GEMM_COUNT(MACS, static_cast<std::int64_t>(m) * n * k);
    gemm_dataflow<TILE_M, TILE_N, TILE_K, MAX_K>(a, w_low, w_high, c, m, n, k);
}

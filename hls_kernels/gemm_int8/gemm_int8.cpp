#include "gemm_int8.hpp"

#include <hls_stream.h>

#include "ecorl_dataflow.hpp"
#include "ecorl_dependence.hpp"
#include "packed_mac.hpp"

#ifdef ECORL_CSIM
#include "gemm_int8_sim.hpp"
#define GEMM_COUNT(slot, amount) ::ecorl::gemm::count(slot, amount)
#else
#define GEMM_COUNT(slot, amount)
#endif

namespace ecorl {
namespace gemm {

// ---- load -----------------------------------------------------------------------------------

/// Read A once, in the order of memory.
void load_a(const code_word_t* a, hls::stream<code_word_t>& out, dim_t m, dim_t k) {
    const dim_t words = ceil_div(m, BLOCK_ROWS) * ceil_div(k, TILE_K);
LOAD_A:
    for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 65536 avg = 16384
        out.write(a[i]);
        GEMM_COUNT(BYTES_A, sizeof(code_word_t));
    }
}

/// Read all of W once for each block of TILE_M rows, a half of each word from either port.
void load_w(const half_word_t* w_low, const half_word_t* w_high, hls::stream<code_word_t>& out,
            dim_t m, dim_t n, dim_t k) {
    const dim_t blocks = ceil_div(m, TILE_M);
    const dim_t words = ceil_div(n, TILE_N) * ceil_div(k, TILE_K);
LOAD_W_BLOCK:
    for (dim_t block = 0; block < blocks; ++block) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 128 avg = 16
    LOAD_W:
        for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1048576 avg = 16384
            const half_word_t low = w_low[i];
            const half_word_t high = w_high[i];
            code_word_t word;
            for (int r = 0; r < TILE_N / 2; ++r) {
#pragma HLS UNROLL
                for (int t = 0; t < TILE_K; ++t) {
#pragma HLS UNROLL
                    word.code[r][t] = low.code[r][t];
                    word.code[TILE_N / 2 + r][t] = high.code[r][t];
                }
            }
            out.write(word);
            GEMM_COUNT(BYTES_W, sizeof(code_word_t));
        }
    }
}

// ---- compute --------------------------------------------------------------------------------

/// What one row pair of the array takes in one cycle, TILE_K values of k of each row. At TILE_K = 4
/// these are 64 of an URAM's 72 bits, so that 4,096 steps fill one URAM288.
struct act_pair_t {
    code_t code[2][TILE_K];
};

constexpr int MAX_STEPS = MAX_K / TILE_K;

/// How the array goes over a block of rows.
struct array_tiles_t {
    dim_t n;      ///< tiles of columns
    dim_t steps;  ///< of k
    dim_t trips;  ///< of one tile: its steps, and at least as many as there are rows to leave
};

array_tiles_t tiles_of(dim_t m, dim_t n, dim_t k) {
#pragma HLS INLINE
    const dim_t steps = ceil_div(k, TILE_K);
    return {ceil_div(n, TILE_N), steps, most(steps, least(m, TILE_M))};
}

/// The array's work, known before its loop begins. The loop goes through phases: phase b multiplies
/// block b of TILE_M rows with all columns, while the activations of block b + 1 come in. Before
/// the first, phase -1 brings in block 0; after the last the results of the last tile leave.
struct array_plan_t {
    dim_t blocks;
    dim_t block_trips;
    dim_t words, last_words;  ///< activations of a block, and of the last one
    dim_t last_rows;          ///< rows of the last block
};

/// One phase: trips of the loop, words that come in, rows that are multiplied.
struct phase_t {
    dim_t trips, words, rows;
};

array_plan_t plan_array(dim_t m, dim_t n, dim_t k) {
#pragma HLS INLINE
    const array_tiles_t tiles = tiles_of(m, n, k);
    array_plan_t plan;
    plan.blocks = ceil_div(m, TILE_M);
    plan.block_trips = tiles.n * tiles.trips;
    plan.words = ROW_BLOCKS * tiles.steps;
    plan.last_rows = m - (plan.blocks - 1) * TILE_M;
    plan.last_words = ceil_div(plan.last_rows, BLOCK_ROWS) * tiles.steps;
    return plan;
}

phase_t phase_of(const array_plan_t& plan, dim_t block) {
#pragma HLS INLINE
    const dim_t after = block + 2 - plan.blocks;  // blocks that the next one is beyond the last
    phase_t phase;
    phase.words = after < 0 ? plan.words : after == 0 ? plan.last_words : 0;
    phase.rows = block < 0 || after > 1 ? 0 : after == 1 ? plan.last_rows : TILE_M;
    const dim_t fill = phase.words + SETTLE_TRIPS;
    const dim_t work = block < 0 ? 0 : plan.block_trips;
    phase.trips = after > 1 ? plan.last_rows : after == 1 ? work : most(work, fill);
    return phase;
}

/// Trips of all phases.
std::int64_t trips_of(const array_plan_t& plan) {
#pragma HLS INLINE
    const std::int64_t alike = plan.blocks > 2 ? plan.blocks - 2 : 0;
    std::int64_t trips = alike * phase_of(plan, 0).trips;
    trips += phase_of(plan, -1).trips;
    if (plan.blocks > 1) trips += phase_of(plan, plan.blocks - 2).trips;
    trips += phase_of(plan, plan.blocks - 1).trips;
    return trips + phase_of(plan, plan.blocks).trips;
}

/// Send the array its trips, then its phases. Computed in the array's loop, the next phase would be
/// a recurrence of more than a cycle: block, phase, trips that are left, next block.
void plan_phases(hls::stream<std::int64_t>& all_trips, hls::stream<phase_t>& phases, dim_t m,
                 dim_t n, dim_t k) {
    const array_plan_t plan = plan_array(m, n, k);
    all_trips.write(trips_of(plan));
PLAN:
    for (dim_t block = -1; block <= plan.blocks; ++block) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 3 max = 16386 avg = 18
        phases.write(phase_of(plan, block));
    }
}

/// Place of the next activation word in one half of the bank: block of rows, step of k. What comes
/// next is told from the place itself, not from the next one: an addition before the comparison
/// would be in the recurrence too.
struct bank_place_t {
    dim_t group;
    dim_t step;
};

void place_word(watched<act_pair_t> half[TILE_M / 2][MAX_STEPS], const code_word_t& word,
                bank_place_t& place, dim_t steps) {
#pragma HLS INLINE
PLACE:
    for (int p = 0; p < BLOCK_ROWS / 2; ++p) {
#pragma HLS UNROLL
        act_pair_t pair;  // whole words only: parts of one would need more ports
        for (int t = 0; t < TILE_K; ++t) {
#pragma HLS UNROLL
            pair.code[0][t] = word.code[2 * p][t];
            pair.code[1][t] = word.code[2 * p + 1][t];
        }
        half[place.group * (BLOCK_ROWS / 2) + p][place.step] = pair;
    }
    const bool is_last = place.step == steps - 1;
    const bool is_last_group = place.group == ROW_BLOCKS - 1;
    if (is_last) place.group = is_last_group ? 0 : place.group + 1;
    place.step = is_last ? 0 : place.step + 1;
}

/// One cycle of the array: every output takes TILE_K products.
void mac_step(const watched<act_pair_t> half[TILE_M / 2][MAX_STEPS], const code_word_t& weight,
              value_t acc[TILE_M][TILE_N], dim_t step, dim_t rows) {
#pragma HLS INLINE
    const dim_t pairs = ECORL_LANES(TILE_M / 2, ceil_div(rows, 2));
PAIRS:
    for (dim_t p = 0; p < pairs; ++p) {
#pragma HLS UNROLL
        const act_pair_t pair = half[p][step];
        packed_act_t act[TILE_K];
#pragma HLS ARRAY_PARTITION variable = act complete
        for (int t = 0; t < TILE_K; ++t) {
#pragma HLS UNROLL
            act[t] = pack_pair(pair.code[0][t], pair.code[1][t]);
        }
    COLUMNS:
        for (int j = 0; j < TILE_N; ++j) {
#pragma HLS UNROLL
            const pair_t products = dsp_cascade<TILE_K>(act, weight.code[j]);
            acc[2 * p][j] = (step == 0 ? value_t(0) : acc[2 * p][j]) + products.low;
            acc[2 * p + 1][j] = (step == 0 ? value_t(0) : acc[2 * p + 1][j]) + products.high;
        }
    }
}

/// Take a finished tile over, so that the array goes on at once.
void take_tile(const value_t acc[TILE_M][TILE_N], word_t shadow[TILE_M], dim_t rows) {
#pragma HLS INLINE
    const dim_t live = ECORL_LANES(TILE_M, rows);
TAKE:
    for (dim_t r = 0; r < live; ++r) {
#pragma HLS UNROLL
        for (int j = 0; j < TILE_N; ++j) {
#pragma HLS UNROLL
            shadow[r].lane[j] = acc[r][j];
        }
    }
}

/// The first row leaves, the others move up: no multiplexer over all rows.
word_t shift_out(word_t shadow[TILE_M], dim_t held) {
#pragma HLS INLINE
    const word_t first = shadow[0];
    const dim_t live = ECORL_LANES(TILE_M, held);
SHIFT:
    for (dim_t r = 1; r < live; ++r) {
#pragma HLS UNROLL
        shadow[r - 1] = shadow[r];
    }
    return first;
}

/// Results leave into the queue of their block of 16 rows.
void put_result(hls::stream<word_t>& rows0, hls::stream<word_t>& rows16,
                hls::stream<word_t>& rows32, hls::stream<word_t>& rows48, const word_t& word,
                dim_t row) {
#pragma HLS INLINE
    const dim_t queue = row / BLOCK_ROWS;
    if (queue == 0) rows0.write(word);
    if (queue == 1) rows16.write(word);
    if (queue == 2) rows32.write(word);
    if (queue == 3) rows48.write(word);
}

/// The array: one loop over all blocks, tiles and steps, so that its pipeline fills once. Beside
/// the products of a tile the results of the one before leave, a row a cycle, and the activations
/// of the next block come in.
void mac_array(hls::stream<std::int64_t>& all_trips, hls::stream<phase_t>& phases,
               hls::stream<code_word_t>& acts, hls::stream<code_word_t>& weights,
               hls::stream<word_t>& rows0, hls::stream<word_t>& rows16, hls::stream<word_t>& rows32,
               hls::stream<word_t>& rows48, dim_t m, dim_t n, dim_t k) {
    ECORL_BUFFER watched<act_pair_t> bank[2][TILE_M / 2][MAX_STEPS];
#pragma HLS BIND_STORAGE variable = bank type = ram_2p impl = uram
#pragma HLS ARRAY_PARTITION variable = bank complete dim = 1
#pragma HLS ARRAY_PARTITION variable = bank complete dim = 2
#pragma HLS AGGREGATE variable = bank
    value_t acc[TILE_M][TILE_N];
#pragma HLS ARRAY_PARTITION variable = acc complete dim = 0
    word_t shadow[TILE_M];
#pragma HLS ARRAY_PARTITION variable = shadow complete
#pragma HLS AGGREGATE variable = shadow

    const array_tiles_t tiles = tiles_of(m, n, k);
    const std::int64_t trips = all_trips.read();
    phase_t phase = {0, 0, 0};
    bool begins = true;  // a phase, with this trip
    bool fills = false;  // the bank, in this phase
    int now = 0;         // half of the bank that is multiplied
    bank_place_t place = {0, 0};
    dim_t tile = 0;
    dim_t step = 0;
    dim_t held = 0;  // rows of the shadow that have not left, and all of that tile
    dim_t held_all = 0;
MAC:
    for (std::int64_t trip = 0; trip < trips; ++trip) {
#pragma HLS PIPELINE II = 1
#pragma HLS DEPENDENCE variable = bank type = inter direction = RAW distance = 9 true
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 16777216 avg = 65536
        ECORL_WATCH(bank, MAC, RAW, 9, trip, m, n, k);
        if (begins) {
            phase = phases.read();
            fills = phase.words > 0;
            now = 1 - now;
            tile = 0;
        }
        begins = phase.trips == 1;
        --phase.trips;
        const bool has_tile = phase.rows > 0 && tile < tiles.n;
        if (held > 0) {
            const dim_t row = held_all - held;
            put_result(rows0, rows16, rows32, rows48, shift_out(shadow, held), row);
            --held;
        }
        if (has_tile && step < tiles.steps) {
            mac_step(bank[now], weights.read(), acc, step, phase.rows);
            GEMM_COUNT(MAC_CYCLES, 1);
        } else if (has_tile || (phase.rows == 0 && !fills)) {
            GEMM_COUNT(DRAIN_CYCLES, 1);
        } else {
            GEMM_COUNT(FILL_CYCLES, 1);
        }
        if (phase.words > 0) {
            place_word(bank[1 - now], acts.read(), place, tiles.steps);
            --phase.words;
        }
        if (has_tile && ++step == tiles.trips) {
            take_tile(acc, shadow, phase.rows);
            held = held_all = phase.rows;
            step = 0;
            ++tile;
            GEMM_COUNT(TILES, 1);
        }
    }
}

// ---- store ----------------------------------------------------------------------------------

word_t take_result(hls::stream<word_t>& rows0, hls::stream<word_t>& rows16,
                   hls::stream<word_t>& rows32, hls::stream<word_t>& rows48, dim_t queue) {
#pragma HLS INLINE
    if (queue == 0) return rows0.read();
    if (queue == 1) return rows16.read();
    if (queue == 2) return rows32.read();
    return rows48.read();
}

/// Write what exists of each tile. BURST_TILES neighbouring tiles of 16 rows are one run of memory
/// and leave in one burst, 16 rows after the other. A queue holds two of them: one leaves while
/// the next is made.
void store_c(hls::stream<word_t>& rows0, hls::stream<word_t>& rows16, hls::stream<word_t>& rows32,
             hls::stream<word_t>& rows48, word_t* c, dim_t m, dim_t n) {
    const dim_t n_tiles = ceil_div(n, TILE_N);
STORE_BLOCK:
    for (dim_t first = 0; first < m; first += TILE_M) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 128 avg = 16
        const dim_t queues = ceil_div(least(m - first, TILE_M), BLOCK_ROWS);
    STORE_TILES:
        for (dim_t tile = 0; tile < n_tiles; tile += BURST_TILES) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 128 avg = 16
            const dim_t tiles = least(n_tiles - tile, BURST_TILES);
        STORE_QUEUE:
            for (dim_t queue = 0; queue < queues; ++queue) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 4 avg = 4
                const dim_t row = first + queue * BLOCK_ROWS;
                const dim_t words = tiles * least(m - row, BLOCK_ROWS);
                const std::int64_t base = product_at(row, tile, m, n_tiles);
            STORE:
                for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 256 avg = 256
                    c[base + i] = take_result(rows0, rows16, rows32, rows48, queue);
                    GEMM_COUNT(BYTES_C, sizeof(word_t));
                }
            }
        }
    }
}

/// Load, compute and store as processes of one dataflow region.
void gemm_dataflow(const code_word_t* a, const half_word_t* w_low, const half_word_t* w_high,
                   word_t* c, dim_t m, dim_t n, dim_t k) {
#pragma HLS DATAFLOW
    hls::stream<std::int64_t, 2> all_trips("all_trips");
    hls::stream<phase_t, 4> phases("phases");
    hls::stream<code_word_t, 64> acts("acts");
    hls::stream<code_word_t, 512> weights("weights");
    hls::stream<word_t, QUEUE_WORDS> rows0("rows0");
    hls::stream<word_t, QUEUE_WORDS> rows16("rows16");
    hls::stream<word_t, QUEUE_WORDS> rows32("rows32");
    hls::stream<word_t, QUEUE_WORDS> rows48("rows48");
    ECORL_REGION(gemm_int8);
    ECORL_PROCESS(load_a(a, acts, m, k));
    ECORL_PROCESS(load_w(w_low, w_high, weights, m, n, k));
    ECORL_PROCESS(plan_phases(all_trips, phases, m, n, k));
    ECORL_PROCESS(
        mac_array(all_trips, phases, acts, weights, rows0, rows16, rows32, rows48, m, n, k));
    ECORL_PROCESS(store_c(rows0, rows16, rows32, rows48, c, m, n));
    ECORL_RUN(gemm_int8);
}

}  // namespace gemm
}  // namespace ecorl

extern "C" void gemm_int8_krnl(const ecorl::code_word_t* a, const ecorl::gemm::half_word_t* w_low,
                               const ecorl::gemm::half_word_t* w_high, ecorl::word_t* c,
                               std::int32_t m, std::int32_t n, std::int32_t k) {
#pragma HLS INTERFACE m_axi port = a bundle = gmem_a max_read_burst_length = 64 offset = slave
#pragma HLS INTERFACE m_axi port = w_low bundle = gmem_w0 max_read_burst_length = 128 offset = slave
#pragma HLS INTERFACE m_axi port = w_high bundle = gmem_w1 max_read_burst_length = 128 offset = \
    slave
#pragma HLS INTERFACE m_axi port = c bundle = gmem_c max_write_burst_length = 64 offset = slave
#pragma HLS INTERFACE s_axilite port = m
#pragma HLS INTERFACE s_axilite port = n
#pragma HLS INTERFACE s_axilite port = k
#pragma HLS INTERFACE s_axilite port = return
    using namespace ecorl::gemm;
    GEMM_COUNT(CALLS, 1);
    GEMM_COUNT(MACS, static_cast<std::int64_t>(m) * n * k);
    gemm_dataflow(a, w_low, w_high, c, m, n, k);
}

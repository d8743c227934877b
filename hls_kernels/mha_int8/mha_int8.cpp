#include "mha_int8.hpp"

#include <hls_stream.h>

#include "ecorl_dataflow.hpp"
#include "turn.hpp"

namespace ecorl {
namespace mha {

// ---- load -----------------------------------------------------------------------------------

inline std::int64_t place_of(std::int32_t page, dim_t d) {
#pragma HLS INLINE
    return static_cast<std::int64_t>(page) * page_beats(d);
}

/// `Slot` counts the bytes.
template <counter Slot>
void read_beats(const beat_t* memory, hls::stream<beat_t>& out, std::int64_t first, dim_t n) {
READ:
    for (dim_t i = 0; i < n; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 128 avg = 128
        out.write(memory[first + i]);
        MHA_COUNT(Slot, sizeof(beat_t));
    }
}

inline void read_table(const std::int32_t* table, std::int32_t entries[MAX_PAGES],
                       const block_t& block) {
READ_TABLE:
    for (dim_t i = 0; i < block.n_pages; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 32
        entries[i] = table[block.first_entry + i];
        MHA_COUNT(BYTES_QUERIES, sizeof(std::int32_t));
    }
}

inline void read_rows(const head_row_t* rows, hls::stream<row_t>& out, const block_t& block,
                      scale_t score) {
READ_ROWS:
    for (dim_t r = 0; r < block.n_rows; ++r) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 64 avg = 64
        const head_row_t query = rows[block.first_row + r];
        out.write({times({query.m, query.e}, score), query.position});
        MHA_COUNT(BYTES_QUERIES, sizeof(head_row_t));
        MHA_COUNT(FILL_CYCLES, 1);
    }
}

/// The parts of pages in the order in which the turns take them.
inline void read_pages(const beat_t* pages, const std::int32_t entries[MAX_PAGES],
                       hls::stream<beat_t>& codes, hls::stream<beat_t>& scales, dim_t n_pages,
                       dim_t d) {
READ_TURN:
    for (dim_t t = 0; t < n_pages + 2; ++t) {
#pragma HLS LOOP_TRIPCOUNT min = 3 max = 1026 avg = 34
        const bool has_keys = t < n_pages;
        const bool has_scales = t > 0 && t <= n_pages;
        const bool has_values = t > 1;
        const std::int64_t keys = place_of(has_keys ? entries[t] : 0, d);
        const std::int64_t rows = place_of(has_scales ? entries[t - 1] : 0, d) + 2 * d;
        const std::int64_t values = place_of(has_values ? entries[t - 2] : 0, d) + d;
        read_beats<BYTES_PAGES>(pages, codes, keys, has_keys ? d : 0);
        read_beats<BYTES_PAGES>(pages, scales, rows, has_scales ? SCALE_BEATS : 0);
        read_beats<BYTES_PAGES>(pages, codes, values, has_values ? d : 0);
    }
}

inline void load(const block_t* blocks, const head_row_t* rows, const beat_t* queries,
                 const std::int32_t* table, const beat_t* pages, hls::stream<block_t>& to_compute,
                 hls::stream<row_t>& row_stream, hls::stream<beat_t>& query_beats,
                 hls::stream<beat_t>& codes, hls::stream<beat_t>& scales, dim_t n_blocks, dim_t d,
                 scale_t score) {
    ECORL_BUFFER std::int32_t entries[MAX_PAGES];
#pragma HLS BIND_STORAGE variable = entries type = ram_1p impl = bram
LOAD_BLOCK:
    for (dim_t b = 0; b < n_blocks; ++b) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 64
        const block_t block = blocks[b];
        MHA_COUNT(BYTES_QUERIES, sizeof(block_t));
        to_compute.write(block);
        const dim_t parts = token_beats(d);
        read_table(table, entries, block);
        read_rows(rows, row_stream, block, score);
        read_beats<BYTES_QUERIES>(queries, query_beats,
                                  static_cast<std::int64_t>(block.first_row) * parts,
                                  block.n_rows * parts);
        read_pages(pages, entries, codes, scales, block.n_pages, d);
    }
}

// ---- a block --------------------------------------------------------------------------------

/// Queries of a block, from rows of codes to steps of the array.
inline void fill_queries(hls::stream<beat_t>& in, step_t query[BLOCK_ROWS][MAX_STEPS], dim_t n_rows,
                         dim_t d) {
    ECORL_BUFFER chunks_t chunks;
#pragma HLS BIND_STORAGE variable = chunks type = ram_2p impl = lutram
#pragma HLS ARRAY_PARTITION variable = chunks complete dim = 1
#pragma HLS ARRAY_PARTITION variable = chunks cyclic factor = 8 dim = 2
#pragma HLS AGGREGATE variable = chunks
    const dim_t parts = token_beats(d);
TAKE_QUERIES:
    for (dim_t i = 0; i < n_rows * parts; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 128 avg = 128
        put_codes(chunks, in.read(), parts == 2 ? i >> 1 : i, parts == 2 ? i & 1 : 0);
        MHA_COUNT(FILL_CYCLES, 1);
    }
    const dim_t groups = ceil_div(n_rows, ARRAY_LANES);
    dim_t group = 0;
    dim_t c8 = 0;
FILL:
    for (dim_t i = 0; i < groups * (d / ARRAY_LANES); ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 4 max = 128 avg = 128
        for (int lane = 0; lane < ARRAY_LANES; ++lane) {
#pragma HLS UNROLL
            const chunk_t chunk = chunks[lane][c8][group];
            for (int c = 0; c < ARRAY_LANES; ++c) {
#pragma HLS UNROLL
                query[group * ARRAY_LANES + lane][2 * c8 + c / MAC_STEP].value[c % MAC_STEP] =
                    chunk.value[c];
            }
        }
        if (++c8 == d / ARRAY_LANES) {
            c8 = 0;
            ++group;
        }
        MHA_COUNT(FILL_CYCLES, 1);
    }
}

inline void take_rows(hls::stream<row_t>& in, state_t& state, dim_t n_rows) {
TAKE_ROWS:
    for (dim_t r = 0; r < n_rows; ++r) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 64 avg = 64
        state.row[r] = in.read();
        state.sums[r] = NOTHING_SEEN;
        state.mark[r] = 0;
    }
}

/// Contexts of a block, divided. A row takes 8 cycles: its loops of 128 channels become 16 lanes.
inline void finish(const state_t& state, hls::stream<beat_t>& context,
                   hls::stream<result_t>& results, dim_t n_rows, dim_t d) {
FINISH_ROWS:
    for (dim_t r = 0; r < n_rows; ++r) {
#pragma HLS PIPELINE II = 8
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 64 avg = 64
        value_t row[MAX_HEAD];
#pragma HLS ARRAY_PARTITION variable = row complete
        for (int j = 0; j < MAX_HEAD; ++j) {
#pragma HLS UNROLL
            row[j] = j < d ? state.context[r][j] : value_t(0);
        }
        std::int32_t exponent = 0;
        kernel::finish_row(row, state.sums[r], exponent, MAX_HEAD);
        for (int w = 0; w < MAX_HEAD / BEAT_INTS; ++w) {
#pragma HLS UNROLL
            beat_t beat;
            for (int k = 0; k < BEAT_INTS; ++k) {
#pragma HLS UNROLL
                put_int(beat, k, row[w * BEAT_INTS + k]);
            }
            if (w < d / BEAT_INTS) context.write(beat);
        }
        results.write({exponent, state.mark[r] != 0 ? 1 : 0});
        MHA_COUNT(FINISH_CYCLES, 8);
    }
}

/// All turns of a block, the two sides changing places.
inline void run_turns(hls::stream<beat_t>& codes, hls::stream<beat_t>& scales, state_t& state,
                      side_t& even, side_t& odd, const block_t& block, dim_t d) {
#pragma HLS ALLOCATION function instances = run_turn limit = 1
TURN:
    for (dim_t t = 0; t < block.n_pages + 2; ++t) {
#pragma HLS LOOP_TRIPCOUNT min = 3 max = 1026 avg = 34
        MHA_WATCH_TURN;
        const turn_t turn = {t, block.n_pages, block.n_rows, d};
        if ((t & 1) == 0) {
            run_turn(codes, scales, state, even, odd, turn);
        } else {
            run_turn(codes, scales, state, odd, even, turn);
        }
        MHA_COUNT(TURNS, 1);
    }
}

/// One block after the other.
inline void compute(hls::stream<block_t>& blocks, hls::stream<row_t>& rows,
                    hls::stream<beat_t>& queries, hls::stream<beat_t>& codes,
                    hls::stream<beat_t>& scales, hls::stream<block_t>& to_store,
                    hls::stream<beat_t>& context, hls::stream<result_t>& results, dim_t n_blocks,
                    dim_t d) {
    ECORL_BUFFER state_t state;
    ECORL_BUFFER side_t even;
    ECORL_BUFFER side_t odd;
#pragma HLS BIND_STORAGE variable = state.query type = ram_2p impl = lutram
#pragma HLS BIND_STORAGE variable = state.context type = ram_2p impl = bram
#pragma HLS BIND_STORAGE variable = even.scores type = ram_2p impl = lutram
#pragma HLS BIND_STORAGE variable = even.weights type = ram_2p impl = lutram
#pragma HLS BIND_STORAGE variable = odd.scores type = ram_2p impl = lutram
#pragma HLS BIND_STORAGE variable = odd.weights type = ram_2p impl = lutram
#pragma HLS ARRAY_PARTITION variable = state.query complete dim = 1
#pragma HLS ARRAY_PARTITION variable = state.query cyclic factor = 2 dim = 2
#pragma HLS ARRAY_PARTITION variable = state.context cyclic factor = 2 dim = 1
#pragma HLS ARRAY_PARTITION variable = state.context cyclic factor = 16 dim = 2
#pragma HLS ARRAY_PARTITION variable = even.scores cyclic factor = 8 dim = 1
#pragma HLS ARRAY_PARTITION variable = even.scores cyclic factor = 16 dim = 2
#pragma HLS ARRAY_PARTITION variable = even.weights complete dim = 1
#pragma HLS ARRAY_PARTITION variable = even.weights complete dim = 2
#pragma HLS ARRAY_PARTITION variable = even.weights cyclic factor = 4 dim = 3
#pragma HLS ARRAY_PARTITION variable = odd.scores cyclic factor = 8 dim = 1
#pragma HLS ARRAY_PARTITION variable = odd.scores cyclic factor = 16 dim = 2
#pragma HLS ARRAY_PARTITION variable = odd.weights complete dim = 1
#pragma HLS ARRAY_PARTITION variable = odd.weights complete dim = 2
#pragma HLS ARRAY_PARTITION variable = odd.weights cyclic factor = 4 dim = 3
COMPUTE_BLOCK:
    for (dim_t b = 0; b < n_blocks; ++b) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 64
        const block_t block = blocks.read();
        to_store.write(block);
        take_rows(rows, state, block.n_rows);
        fill_queries(queries, state.query, block.n_rows, d);
        run_turns(codes, scales, state, even, odd, block, d);
        finish(state, context, results, block.n_rows, d);
        MHA_COUNT(BLOCKS, 1);
        MHA_COUNT(PAGES, block.n_pages);
    }
}

// ---- store ----------------------------------------------------------------------------------

inline void store(hls::stream<block_t>& blocks, hls::stream<beat_t>& context_beats,
                  hls::stream<result_t>& row_results, beat_t* context, result_t* results,
                  dim_t n_blocks, dim_t d) {
    const dim_t width = d / BEAT_INTS;
STORE_BLOCK:
    for (dim_t b = 0; b < n_blocks; ++b) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 64
        const block_t block = blocks.read();
        const std::int64_t first = static_cast<std::int64_t>(block.first_row) * width;
    STORE_CONTEXT:
        for (dim_t i = 0; i < block.n_rows * width; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 2 max = 512 avg = 512
            context[first + i] = context_beats.read();
            MHA_COUNT(BYTES_WRITTEN, sizeof(beat_t));
        }
    STORE_RESULTS:
        for (dim_t r = 0; r < block.n_rows; ++r) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 64 avg = 64
            results[block.first_row + r] = row_results.read();
            MHA_COUNT(BYTES_WRITTEN, sizeof(result_t));
        }
    }
}

/// Load, compute and store as processes of one dataflow region.
inline void attend(const block_t* blocks, const head_row_t* rows, const beat_t* queries,
                   const std::int32_t* table, const beat_t* pages, beat_t* context,
                   result_t* results, dim_t n_blocks, dim_t d, scale_t score) {
#pragma HLS DATAFLOW
    hls::stream<block_t, 2> to_compute("to_compute");
    hls::stream<block_t, 2> to_store("to_store");
    hls::stream<row_t, 64> row_stream("rows");
    hls::stream<beat_t, 128> query_beats("queries");
    hls::stream<beat_t, 512> codes("codes");
    hls::stream<beat_t, 32> scales("scales");
    hls::stream<beat_t, 512> context_beats("context");
    hls::stream<result_t, 64> row_results("results");
#pragma HLS BIND_STORAGE variable = to_compute type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = to_store type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = row_stream type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = query_beats type = fifo impl = bram
#pragma HLS BIND_STORAGE variable = codes type = fifo impl = bram
#pragma HLS BIND_STORAGE variable = scales type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = context_beats type = fifo impl = bram
#pragma HLS BIND_STORAGE variable = row_results type = fifo impl = srl
    ECORL_REGION(mha_int8);
    ECORL_PROCESS(load(blocks, rows, queries, table, pages, to_compute, row_stream, query_beats,
                       codes, scales, n_blocks, d, score));
    ECORL_PROCESS(compute(to_compute, row_stream, query_beats, codes, scales, to_store,
                          context_beats, row_results, n_blocks, d));
    ECORL_PROCESS(store(to_store, context_beats, row_results, context, results, n_blocks, d));
    ECORL_RUN(mha_int8);
}

}  // namespace mha
}  // namespace ecorl

extern "C" void mha_int8_krnl(const ecorl::mha::block_t* blocks, const ecorl::head_row_t* rows,
                              const ecorl::beat_t* queries, const std::int32_t* table,
                              const ecorl::beat_t* pages, ecorl::beat_t* context,
                              ecorl::mha::result_t* results, std::int32_t n_blocks, std::int32_t d,
                              std::int32_t score_m, std::int32_t score_e) {
#pragma HLS INTERFACE m_axi port = blocks bundle = gmem_b max_read_burst_length = 256 offset = slave
#pragma HLS INTERFACE m_axi port = rows bundle = gmem_r max_read_burst_length = 256 offset = slave
#pragma HLS INTERFACE m_axi port = queries bundle = gmem_q max_read_burst_length = 256 offset = \
    slave
#pragma HLS INTERFACE m_axi port = table bundle = gmem_t max_read_burst_length = 256 offset = slave
#pragma HLS INTERFACE m_axi port = pages bundle = gmem_p max_read_burst_length = 256 offset = slave
#pragma HLS INTERFACE m_axi port = context bundle = gmem_c max_write_burst_length = 256 offset = \
    slave
#pragma HLS INTERFACE m_axi port = results bundle = gmem_o max_write_burst_length = 256 offset = \
    slave
#pragma HLS INTERFACE s_axilite port = n_blocks
#pragma HLS INTERFACE s_axilite port = d
#pragma HLS INTERFACE s_axilite port = score_m
#pragma HLS INTERFACE s_axilite port = score_e
#pragma HLS INTERFACE s_axilite port = return
#pragma HLS AGGREGATE variable = blocks compact = bit
#pragma HLS AGGREGATE variable = rows compact = bit
#pragma HLS AGGREGATE variable = queries compact = bit
#pragma HLS AGGREGATE variable = pages compact = bit
#pragma HLS AGGREGATE variable = context compact = bit
#pragma HLS AGGREGATE variable = results compact = bit
    using namespace ecorl::mha;
    MHA_COUNT(CALLS, 1);
    attend(blocks, rows, queries, table, pages, context, results, n_blocks, d, {score_m, score_e});
}

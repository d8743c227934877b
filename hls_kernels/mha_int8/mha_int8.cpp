#include "mha_int8.hpp"

#include "finish.hpp"
#include "load.hpp"

namespace ecorl {
namespace mha {

/// The turns of a call, as a process.
inline void attend(hls::stream<dim_t>& turn_counts, hls::stream<query_block_t>& blocks,
                   hls::stream<query_row_t>& rows, hls::stream<beat_t>& queries,
                   hls::stream<beat_t>& keys, hls::stream<beat_t>& values,
                   hls::stream<beat_t>& scales, hls::stream<sum_quad_t>& sums,
                   hls::stream<moves_t>& moves, hls::stream<quad_total_t>& totals, dim_t d) {
    const dim_t n_turns = turn_counts.read();
    run_turns(blocks, rows, queries, keys, values, scales, sums, moves, totals, n_turns, d);
}

inline void store_context(hls::stream<query_block_t>& blocks, hls::stream<word_t>& words,
                          word_t* context, dim_t n_blocks, dim_t d) {
    const dim_t row_words = words_of(d);
CONTEXT_OF_BLOCK:
    for (dim_t b = 0; b < n_blocks; ++b) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 64
        const query_block_t block = blocks.read();
        const std::int64_t first = static_cast<std::int64_t>(block.first_row) * row_words;
    STORE_CONTEXT:
        for (dim_t i = 0; i < block.n_rows * row_words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 512 avg = 512
            context[first + i] = words.read();
            MHA_COUNT(BYTES_WRITTEN, sizeof(word_t));
        }
    }
}

inline void store_results(hls::stream<query_block_t>& blocks,
                          hls::stream<head_result_t>& row_results, head_result_t* results,
                          dim_t n_blocks) {
RESULTS_OF_BLOCK:
    for (dim_t b = 0; b < n_blocks; ++b) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 64
        const query_block_t block = blocks.read();
    STORE_RESULTS:
        for (dim_t r = 0; r < block.n_rows; ++r) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 64 avg = 64
            results[block.first_row + r] = row_results.read();
            MHA_COUNT(BYTES_WRITTEN, sizeof(head_result_t));
        }
    }
}

/// Load, the turns, contexts and store as processes of one dataflow region.
void mha_dataflow(const query_block_t* blocks, const head_row_t* rows, const beat_t* queries,
                  const std::int32_t* table, const beat_t* pages, word_t* context,
                  head_result_t* results, dim_t n_blocks, dim_t d, const scale_t score) {
#pragma HLS DATAFLOW
    hls::stream<dim_t, 2> page_counts("page_counts");
    hls::stream<dim_t, 2> turn_counts("turn_counts");
    hls::stream<query_block_t, 16> to_table("to_table");
    hls::stream<query_block_t, 16> to_rows("to_rows");
    hls::stream<query_block_t, 16> to_queries("to_queries");
    hls::stream<query_block_t, 16> to_turns("to_turns");
    hls::stream<query_block_t, 16> to_accumulate("to_accumulate");
    hls::stream<query_block_t, 16> to_divide("to_divide");
    hls::stream<query_block_t, 16> to_scale("to_scale");
    hls::stream<query_block_t, 16> to_context("to_context");
    hls::stream<query_block_t, 16> to_results("to_results");
    hls::stream<std::int32_t, 64> entries("entries");
    hls::stream<query_row_t, 64> query_rows("query_rows");
    hls::stream<beat_t, 128> query_beats("query_beats");
    hls::stream<beat_t, 512> keys("keys");
    hls::stream<beat_t, 512> values("values");
    hls::stream<beat_t, 64> scales("scales");
    hls::stream<sum_quad_t, 512> sums("sums");
    hls::stream<moves_t, 64> moves("moves");
    hls::stream<quad_total_t, 64> totals("totals");
    hls::stream<word_t, 512> context_words("context_words");
    hls::stream<value_t, 64> peaks("peaks");
    hls::stream<divisor_t, 64> divisors("divisors");
    hls::stream<head_result_t, 64> row_results("row_results");
    hls::stream<word_t, 32> scaled("scaled");
#pragma HLS BIND_STORAGE variable = query_beats type = fifo impl = bram
#pragma HLS BIND_STORAGE variable = keys type = fifo impl = bram
#pragma HLS BIND_STORAGE variable = values type = fifo impl = bram
#pragma HLS BIND_STORAGE variable = scales type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = sums type = fifo impl = bram
#pragma HLS BIND_STORAGE variable = totals type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = context_words type = fifo impl = bram
#pragma HLS BIND_STORAGE variable = scaled type = fifo impl = srl
    ECORL_REGION(mha_int8);
    ECORL_PROCESS(load_blocks(blocks, page_counts, turn_counts, to_table, to_rows, to_queries,
                              to_turns, to_accumulate, to_divide, to_scale, to_context, to_results,
                              n_blocks));
    ECORL_PROCESS(load_table(table, to_table, entries, n_blocks));
    ECORL_PROCESS(load_rows(rows, to_rows, query_rows, n_blocks, score));
    ECORL_PROCESS(load_queries(queries, to_queries, query_beats, n_blocks, d));
    ECORL_PROCESS(load_pages(pages, page_counts, entries, keys, values, scales, d));
    ECORL_PROCESS(attend(turn_counts, to_turns, query_rows, query_beats, keys, values, scales, sums,
                         moves, totals, d));
    ECORL_PROCESS(accumulate(to_accumulate, moves, sums, context_words, peaks, n_blocks, d));
    ECORL_PROCESS(divide(to_divide, peaks, totals, divisors, row_results, n_blocks));
    ECORL_PROCESS(scale_rows(to_scale, context_words, divisors, scaled, n_blocks, d));
    ECORL_PROCESS(store_context(to_context, scaled, context, n_blocks, d));
    ECORL_PROCESS(store_results(to_results, row_results, results, n_blocks));
    ECORL_RUN(mha_int8);
}

}  // namespace mha
}  // namespace ecorl

extern "C" void mha_int8_krnl(const ecorl::mha::query_block_t* blocks,
                              const ecorl::head_row_t* rows, const ecorl::beat_t* queries,
                              const std::int32_t* table, const ecorl::beat_t* pages,
                              ecorl::word_t* context, ecorl::mha::head_result_t* results,
                              std::int32_t n_blocks, std::int32_t d, std::int32_t score_m,
                              std::int32_t score_e) {
#pragma HLS INTERFACE m_axi port = blocks bundle = gmem_b max_read_burst_length = \
    256 num_read_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = rows bundle = gmem_r max_read_burst_length = \
    256 num_read_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = queries bundle = gmem_q max_read_burst_length = \
    64 num_read_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = table bundle = gmem_t max_read_burst_length = \
    256 num_read_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = pages bundle = gmem_p max_read_burst_length = \
    64 num_read_outstanding = 16 offset = slave
#pragma HLS INTERFACE m_axi port = context bundle = gmem_c max_write_burst_length = \
    64 num_write_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = results bundle = gmem_o max_write_burst_length = \
    256 num_write_outstanding = 2 offset = slave
#pragma HLS INTERFACE s_axilite port = n_blocks
#pragma HLS INTERFACE s_axilite port = d
#pragma HLS INTERFACE s_axilite port = score_m
#pragma HLS INTERFACE s_axilite port = score_e
#pragma HLS INTERFACE s_axilite port = return
#pragma HLS AGGREGATE variable = blocks
#pragma HLS AGGREGATE variable = rows
#pragma HLS AGGREGATE variable = queries
#pragma HLS AGGREGATE variable = pages
#pragma HLS AGGREGATE variable = context
#pragma HLS AGGREGATE variable = results
    using namespace ecorl::mha;
    const ecorl::scale_t score = {score_m, score_e};
    MHA_COUNT(CALLS, 1);
    mha_dataflow(blocks, rows, queries, table, pages, context, results, n_blocks, d, score);
#ifdef ECORL_CSIM
    counts::add_to_totals();
#endif
}

// vector_ops: its processes, and the FIFOs between them.
#include "vector_ops.hpp"

#include "chain.hpp"
#include "ecorl_dataflow.hpp"
#include "factors.hpp"
#include "load.hpp"
#include "scalars.hpp"
#include "store.hpp"

namespace ecorl {
namespace vector {

/// What is read, in the order in which the chain takes it: rows, and what belongs to them.
void load(const word_t* acc, const word_t* x, const word_t* side, const table_word_t* table,
          const row_t* rows, rows_t& records, words_t& products, words_t& x_words,
          words_t& embedding_words, values_t& embedding_exponents, words_t& channels,
          words_t& weights, words_t& header, words_t& attention, tables_t& angles,
          const call_t call) {
#pragma HLS DATAFLOW
    hls::stream<dim_t, 32> entries("entries");
    hls::stream<word_t, 32> tiles("tiles");
    hls::stream<word_t, 32> sums("sums");
    hls::stream<table_word_t, 32> embeddings("embeddings");
#pragma HLS BIND_STORAGE variable = tiles type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = sums type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = embeddings type = fifo impl = srl
    const products_t source = products_of(call);
    ECORL_REGION(vector_ops_load);
    ECORL_PROCESS(load_rows(rows, records, entries, call));
    ECORL_PROCESS(load_products<counted>(acc, tiles, source));
    ECORL_PROCESS(sum_parts(tiles, sums, source));
    ECORL_PROCESS(arrange_rows<TILE_WORDS, counted>(sums, products, source));
    ECORL_PROCESS(load_x(x, x_words, call));
    ECORL_PROCESS(load_side(side, channels, weights, header, attention, call));
    ECORL_PROCESS(load_table(table, entries, embeddings, angles, call));
    ECORL_PROCESS(widen(embeddings, embedding_exponents, embedding_words, call));
    ECORL_RUN(vector_ops_load);
}

/// The chain. Words of rows wait for scalars in `values`, `seconds` and `results`, which hold two
/// of the longest rows.
void compute(rows_t& records, words_t& products, words_t& x_words, words_t& embedding_words,
             values_t& embedding_exponents, words_t& channels, words_t& weights, words_t& header,
             words_t& attention, tables_t& angles, words_t& y_words, lines_t& lines,
             head_rows_t& head_rows, rows_t& records_out, const call_t call) {
#pragma HLS DATAFLOW
    hls::stream<head_result_t, 32> tops("tops");
    hls::stream<value_t, 32> head_exponents("head_exponents");
    hls::stream<opening_t, 32> openings("openings");
    hls::stream<first_look_t, 32> first_looks("first_looks");
    hls::stream<word_t, 32> looked("looked");
    hls::stream<word_t, ROW_DEPTH> values("values");
    hls::stream<word_t, ROW_DEPTH> seconds("seconds");
    hls::stream<word_t, 32> factors("factors");
    hls::stream<part_t, 32> begun("begun");
    hls::stream<part_t, 32> seen("seen");
    hls::stream<transform_t, 32> transforms("transforms");
    hls::stream<second_look_t, 32> second_looks("second_looks");
    hls::stream<word_t, ROW_DEPTH> results("results");
    hls::stream<quantiser_t, 32> quantisers("quantisers");
#pragma HLS BIND_STORAGE variable = looked type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = values type = fifo impl = uram
#pragma HLS BIND_STORAGE variable = seconds type = fifo impl = uram
#pragma HLS BIND_STORAGE variable = factors type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = begun type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = seen type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = results type = fifo impl = uram
    ECORL_REGION(vector_ops_compute);
    ECORL_PROCESS(rank_heads(attention, tops, head_exponents, call));
    ECORL_PROCESS(open_parts(records, header, embedding_exponents, tops, head_exponents, openings,
                             begun, call));
    ECORL_PROCESS(dequantise(products, x_words, embedding_words, channels, openings, first_looks,
                             looked, y_words, call));
    ECORL_PROCESS(pair(looked, values, seconds, call));
    ECORL_PROCESS(first_scalars(begun, first_looks, transforms, seen, call));
    ECORL_PROCESS(give_factors(weights, angles, factors, call));
    ECORL_PROCESS(transform(values, seconds, factors, transforms, second_looks, results, call));
    ECORL_PROCESS(second_scalars(seen, second_looks, quantisers, head_rows, records_out, call));
    ECORL_PROCESS(quantise(results, quantisers, lines, call));
    ECORL_RUN(vector_ops_compute);
}

void store(words_t& y_words, lines_t& lines, head_rows_t& head_rows, rows_t& records,
           code_word_t* codes, word_t* y, row_t* rows, word_t* scales, const call_t call) {
#pragma HLS DATAFLOW
    hls::stream<code_word_t, 32> code_words("code_words");
    hls::stream<word_t, 32> scale_words("scale_words");
#pragma HLS BIND_STORAGE variable = code_words type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = scale_words type = fifo impl = srl
    ECORL_REGION(vector_ops_store);
    ECORL_PROCESS(order_codes(lines, code_words, call));
    ECORL_PROCESS(pack_scales(head_rows, scale_words, call));
    ECORL_PROCESS(store_codes(code_words, codes, call));
    ECORL_PROCESS(store_values(y_words, y, call));
    ECORL_PROCESS(store_rows(records, rows, call));
    ECORL_PROCESS(store_scales(scale_words, scales, call));
    ECORL_RUN(vector_ops_store);
}

void vector_dataflow(const word_t* acc, const word_t* x, const word_t* side,
                     const table_word_t* table, const row_t* rows, code_word_t* codes, word_t* y,
                     row_t* rows_out, word_t* scales, const call_t call) {
#pragma HLS DATAFLOW
    hls::stream<row_t, 32> records("records");
    hls::stream<word_t, 32> products("products");
    hls::stream<word_t, 32> x_words("x_words");
    hls::stream<word_t, 32> embedding_words("embedding_words");
    hls::stream<value_t, 32> embedding_exponents("embedding_exponents");
    hls::stream<word_t, 32> channels("channels");
    hls::stream<word_t, 32> weights("weights");
    hls::stream<word_t, 32> header("header");
    hls::stream<word_t, 32> attention("attention");
    hls::stream<table_word_t, 32> angles("angles");
    hls::stream<word_t, 32> y_words("y_words");
    hls::stream<code_line_t, 32> lines("lines");
    hls::stream<head_row_t, 32> head_rows("head_rows");
    hls::stream<row_t, 32> records_out("records_out");
#pragma HLS BIND_STORAGE variable = records type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = products type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = x_words type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = embedding_words type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = channels type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = weights type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = header type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = attention type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = angles type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = y_words type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = records_out type = fifo impl = srl
    ECORL_REGION(vector_ops);
    ECORL_PROCESS(load(acc, x, side, table, rows, records, products, x_words, embedding_words,
                       embedding_exponents, channels, weights, header, attention, angles, call));
    ECORL_PROCESS(compute(records, products, x_words, embedding_words, embedding_exponents,
                          channels, weights, header, attention, angles, y_words, lines, head_rows,
                          records_out, call));
    ECORL_PROCESS(store(y_words, lines, head_rows, records_out, codes, y, rows_out, scales, call));
    ECORL_RUN(vector_ops);
}

}  // namespace vector
}  // namespace ecorl

extern "C" void vector_ops_krnl(const ecorl::vector::task_t* task, const ecorl::word_t* acc,
                                const ecorl::word_t* x, const ecorl::word_t* side,
                                const ecorl::table_word_t* table, const ecorl::row_t* rows,
                                ecorl::code_word_t* codes, ecorl::word_t* y, ecorl::row_t* rows_out,
                                ecorl::word_t* scales) {
#pragma HLS INTERFACE m_axi port = task bundle = gmem_rows offset = slave
#pragma HLS INTERFACE m_axi port = acc bundle = gmem_acc max_read_burst_length = \
    64 num_read_outstanding = 16 offset = slave
#pragma HLS INTERFACE m_axi port = x bundle = gmem_x max_read_burst_length = \
    64 num_read_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = side bundle = gmem_side max_read_burst_length = \
    64 num_read_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = table bundle = gmem_table max_read_burst_length = \
    64 num_read_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = rows bundle = gmem_rows max_read_burst_length = \
    64 num_read_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = codes bundle = gmem_codes max_write_burst_length = \
    64 num_write_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = y bundle = gmem_y max_write_burst_length = \
    64 num_write_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = rows_out bundle = gmem_rows max_write_burst_length = \
    64 num_write_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = scales bundle = gmem_scales max_write_burst_length = \
    64 num_write_outstanding = 2 offset = slave
#pragma HLS INTERFACE s_axilite port = return
    const ecorl::vector::task_t task_now = task[0];
    const ecorl::vector::call_t call = ecorl::vector::call_of(task_now);
    VECTOR_COUNT(CALLS, 1);
    VECTOR_COUNT(ROWS, task_now.m);
    VECTOR_COUNT(BYTES_READ, sizeof(task_now));
    ecorl::vector::vector_dataflow(acc, x, side, table, rows, codes, y, rows_out, scales, call);
#ifdef ECORL_CSIM
    ecorl::vector::add_to_totals();
#endif
}

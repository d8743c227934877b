#include "vector_ops.hpp"

#include "ecorl_dataflow.hpp"
#include "memory.hpp"
#include "work.hpp"

namespace ecorl {
namespace vector {

// ---- a row: in, worked on, out --------------------------------------------------------------

void take_products(words_t& in, value_t out[MAX_COLUMNS], const layout_t layout) {
    cursor_t at = {0, 0};
TAKE:
    for (dim_t i = 0; i < layout.words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 512 avg = 256
        const word_t word = in.read();
        const dim_t to = next_place(at, layout);
        for (int lane = 0; lane < LANES; ++lane) {
#pragma HLS UNROLL
            out[to + lane] = word.lane[lane];
        }
    }
}

/// `has_exponent`: the first word holds an exponent.
void take_table(hls::stream<table_word_t>& in, sint<16> out[MAX_COLUMNS], std::int32_t& exponent,
                dim_t words, bool has_exponent) {
    dim_t to = 0;
TAKE_TABLE:
    for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 4 max = 257 avg = 129
        const table_word_t word = in.read();
        if (i == 0 && has_exponent) {
            exponent = static_cast<std::int32_t>(word.lane[0]);
            continue;
        }
        for (int lane = 0; lane < TABLE_LANES; ++lane) {
#pragma HLS UNROLL
            out[to + lane] = word.lane[lane];
        }
        to += TABLE_LANES;
    }
}

/// Codes of n columns, 16 at a time; zeros beyond n.
void give_codes(const code_t codes[MAX_COLUMNS], hls::stream<code_line_t>& out,
                const layout_t layout, dim_t n) {
    cursor_t at = {0, 0};
GIVE_CODES:
    for (dim_t i = 0; i < layout.words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 512 avg = 256
        const dim_t from = next_place(at, layout);
        code_line_t line;
        for (int lane = 0; lane < LANES; ++lane) {
#pragma HLS UNROLL
            line.lane[lane] = i * LANES + lane < n ? codes[from + lane] : code_t(0);
        }
        out.write(line);
        VECTOR_COUNT(GIVE_CYCLES, 1);
    }
}

void give_values(const value_t values[MAX_COLUMNS], words_t& out, dim_t words, dim_t n) {
GIVE_VALUES:
    for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 512 avg = 256
        word_t word;
        for (int lane = 0; lane < LANES; ++lane) {
#pragma HLS UNROLL
            const dim_t j = i * LANES + lane;
            word.lane[lane] = j < n ? values[j] : value_t(0);
        }
        out.write(word);
        VECTOR_COUNT(GIVE_CYCLES, 1);
    }
}

/// One row after the other; a row comes in and another leaves beside the one that is worked on.
void work_panel(words_t& products, words_t& x, hls::stream<table_word_t>& table, words_t& results,
                hls::stream<code_line_t>& codes, const task_t& task, const side_t& side,
                block_t& block, const walk_t& at) {
    const plan_t plan = plan_of(task);
    const plan_t codes_plan = codes_plan_of(task);
    const dim_t columns = columns_at(at, plan);
    const bool has_codes = at.stage >= codes_plan.first_stage && at.stage <= codes_plan.last_stage;
    const layout_t in_layout = layout_of(task, reads_products(task) ? columns : 0, plan.halves);
    const layout_t out_layout = layout_of(task, has_codes ? columns : 0, 1);
    const dim_t x_words = reads_x(task) ? words_of(columns) : 0;
    const dim_t result_words = gives_values(task) ? words_of(columns) : 0;
    const dim_t table_words = table_words_of(task);
    const dim_t rows = rows_at(at, plan);
WORK_ROW:
    for (dim_t r = 0; r < rows; ++r) {
#pragma HLS DATAFLOW
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 16 avg = 16
        // Not static: channels between the processes, doubled by DATAFLOW.
        line_t line;
#pragma HLS ARRAY_PARTITION variable = line.product cyclic factor = 16
#pragma HLS ARRAY_PARTITION variable = line.x cyclic factor = 16
#pragma HLS ARRAY_PARTITION variable = line.table cyclic factor = 32
        value_t result[MAX_COLUMNS];
#pragma HLS ARRAY_PARTITION variable = result cyclic factor = 16
        code_t line_codes[MAX_COLUMNS];
#pragma HLS ARRAY_PARTITION variable = line_codes cyclic factor = 16
        const place_t place = {r, at.stage, at.column, columns};
        VECTOR_COUNT(TAKE_CYCLES, most(most(in_layout.words, x_words), table_words));
        take_products(products, line.product, in_layout);
        take_values<MAX_COLUMNS>(x, line.x, x_words);
        take_table(table, line.table, line.exponent, table_words, task.op == EMBED);
        work_row(task, side, block, place, line, result, line_codes);
        give_codes(line_codes, codes, out_layout, columns);
        give_values(result, results, result_words, columns);
    }
}

// ---- a block of rows ------------------------------------------------------------------------

/// Constants of a panel's channels, as `load_channels` reads them.
void take_channels(words_t& in, side_t& side, const task_t& task, dim_t columns, dim_t halves) {
    const layout_t layout = layout_of(task, columns, halves);
    const dim_t per_group = channel_words_of(task);
    const dim_t header = task.op == HEAD ? EXPONENT_WORDS : 0;
TAKE_EXPONENTS:
    for (dim_t i = 0; i < header; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 4 avg = 0
        const word_t word = in.read();
        for (int lane = 0; lane < LANES; ++lane) {
#pragma HLS UNROLL
            side.head_exponent[i * LANES + lane] = static_cast<std::int32_t>(word.lane[lane]);
        }
    }
    cursor_t at = {0, 0};
    dim_t to = 0;
    dim_t kind = 0;
TAKE_CHANNELS:
    for (dim_t i = 0; i < layout.words * per_group; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1536 avg = 768
        const word_t word = in.read();
        if (kind == 0) to = next_place(at, layout);
        for (int lane = 0; lane < LANES; ++lane) {
#pragma HLS UNROLL
            if (kind == 0) side.mantissa[to + lane] = word.lane[lane];
            if (kind == 1) side.shift[to + lane] = static_cast<std::int32_t>(word.lane[lane]);
            if (kind == 2) side.bias[to + lane] = word.lane[lane];
        }
        if (++kind == per_group) kind = 0;
    }
}

void begin_block(rows_t& records, words_t& side, const task_t& task, block_t& block, dim_t rows) {
    constexpr int RESULTS = LANES / 2;
    const dim_t heads = task.op == CONTEXT ? task.n / task.head : 0;
    for (int r = 0; r < BLOCK_ROWS; ++r) {
#pragma HLS UNROLL
        block.mark[r] = 0;
    }
TAKE_HEADS:
    for (dim_t i = 0; i < heads * RESULT_WORDS; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 2 max = 512 avg = 64
        const word_t word = side.read();
        const dim_t first = i % RESULT_WORDS * RESULTS;
        for (int r = 0; r < RESULTS; ++r) {
#pragma HLS UNROLL
            block.exponent[i / RESULT_WORDS][first + r] =
                static_cast<std::int32_t>(word.lane[2 * r]);
            block.mark[first + r] |= static_cast<std::int32_t>(word.lane[2 * r + 1]);
        }
    }
BEGIN_ROWS:
    for (dim_t r = 0; r < rows; ++r) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 16 avg = 16
        block.row[r] = records.read();
        begin_row(task, block, r);
    }
}

void end_block(rows_t& records, const task_t& task, block_t& block, dim_t rows) {
END_ROWS:
    for (dim_t r = 0; r < rows; ++r) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 16 avg = 16
        end_row(task, block.row[r]);
        records.write(block.row[r]);
    }
}

/// Scales and positions of a panel's heads, four rows a word; zeros beyond the last row.
void give_scales(words_t& out, const block_t& block, dim_t heads, dim_t rows) {
    constexpr int RECORDS = BLOCK_ROWS / SCALE_WORDS;
    constexpr int FIELDS = LANES / RECORDS;
GIVE_SCALES:
    for (dim_t i = 0; i < heads * SCALE_WORDS; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 4 max = 256 avg = 192
        word_t word;
        for (int k = 0; k < RECORDS; ++k) {
#pragma HLS UNROLL
            const dim_t r = i % SCALE_WORDS * RECORDS + k;
            const scale_t scale = block.scale[i / SCALE_WORDS][r];
            const bool is_row = r < rows;
            word.lane[FIELDS * k] = is_row ? scale.m : 0;
            word.lane[FIELDS * k + 1] = is_row ? scale.e : 0;
            word.lane[FIELDS * k + 2] = is_row ? block.row[r].position : 0;
            word.lane[FIELDS * k + 3] = 0;
        }
        out.write(word);
    }
}

/// All operations: blocks of rows, stages, panels.
void work(rows_t& records, words_t& products, words_t& x, words_t& side_words,
          hls::stream<table_word_t>& table, rows_t& records_out, words_t& results,
          hls::stream<code_line_t>& codes, words_t& scales, const task_t task) {
    ECORL_BUFFER side_t side;
#pragma HLS BIND_STORAGE variable = side.mantissa type = ram_2p impl = bram
#pragma HLS BIND_STORAGE variable = side.shift type = ram_2p impl = bram
#pragma HLS BIND_STORAGE variable = side.bias type = ram_2p impl = bram
#pragma HLS ARRAY_PARTITION variable = side.mantissa cyclic factor = 16
#pragma HLS ARRAY_PARTITION variable = side.shift cyclic factor = 16
#pragma HLS ARRAY_PARTITION variable = side.bias cyclic factor = 16
#pragma HLS ARRAY_PARTITION variable = side.head_exponent cyclic factor = 16
    ECORL_BUFFER block_t block;
#pragma HLS ARRAY_PARTITION variable = block.row complete
#pragma HLS ARRAY_PARTITION variable = block.mark complete
#pragma HLS BIND_STORAGE variable = block.scale type = ram_2p impl = lutram
#pragma HLS BIND_STORAGE variable = block.exponent type = ram_2p impl = bram
#pragma HLS ARRAY_PARTITION variable = block.scale complete dim = 2
#pragma HLS ARRAY_PARTITION variable = block.exponent complete dim = 2
    const plan_t plan = plan_of(task);
    const dim_t block_panels = panels_of(plan) / ceil_div(task.m, BLOCK_ROWS);
    walk_t at = first_of(plan);
BLOCK:
    for (dim_t first = 0; first < task.m; first += BLOCK_ROWS) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 256 avg = 4
        const dim_t rows = least(task.m - first, BLOCK_ROWS);
        begin_block(records, side_words, task, block, rows);
    WORK_PANEL:
        for (dim_t i = 0; i < block_panels; ++i) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 24 avg = 3
            const dim_t columns = columns_at(at, plan);
            const dim_t heads = task.op == HEAD ? columns / task.head : 0;
            if (channel_words_of(task) > 0 && is_fresh(plan, at)) {
                take_channels(side_words, side, task, columns, plan.halves);
            }
            work_panel(products, x, table, results, codes, task, side, block, at);
            give_scales(scales, block, heads, rows);
            go_on(at, plan);
        }
        end_block(records_out, task, block, rows);
    }
}

// ---- the whole --------------------------------------------------------------------------------

/// Load, work and store as processes of one dataflow region.
void vector_dataflow(const word_t* acc, const word_t* x, const word_t* side,
                     const table_word_t* table, const row_t* rows, code_word_t* codes, word_t* y,
                     row_t* rows_out, word_t* scales, const task_t task) {
#pragma HLS DATAFLOW
    hls::stream<row_t, 16> records("records");
    hls::stream<row_t, 16> records_out("records_out");
    hls::stream<dim_t, 32> entries("entries");
    hls::stream<word_t, 64> tiles("tiles");
    hls::stream<word_t, 64> products("products");
    hls::stream<word_t, 64> x_words("x");
    hls::stream<word_t, 64> side_words("side");
    hls::stream<word_t, 64> results("results");
    hls::stream<word_t, 128> scale_words("scales");
    hls::stream<table_word_t, 64> table_words("table");
    hls::stream<code_line_t, 64> code_lines("code_lines");
    hls::stream<code_word_t, 64> code_words("code_words");
    ECORL_REGION(vector_ops);
    ECORL_PROCESS(load_rows(rows, records, entries, task));
    ECORL_PROCESS(load_products<counted>(acc, tiles, plan_of(task)));
    ECORL_PROCESS(turn_products<PANEL_WORDS, counted>(tiles, products, plan_of(task)));
    ECORL_PROCESS(load_x(x, x_words, task));
    ECORL_PROCESS(load_side(side, side_words, task));
    ECORL_PROCESS(load_table(table, entries, table_words, task));
    ECORL_PROCESS(work(records, products, x_words, side_words, table_words, records_out, results,
                       code_lines, scale_words, task));
    ECORL_PROCESS(turn_codes(code_lines, code_words, task));
    ECORL_PROCESS(store_codes(code_words, codes, task));
    ECORL_PROCESS(store_values(results, y, task));
    ECORL_PROCESS(store_rows(records_out, rows_out, task));
    ECORL_PROCESS(store_scales(scale_words, scales, task));
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
    256 num_read_outstanding = 16 offset = slave
#pragma HLS INTERFACE m_axi port = x bundle = gmem_x max_read_burst_length = \
    256 num_read_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = side bundle = gmem_side max_read_burst_length = \
    256 num_read_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = table bundle = gmem_table max_read_burst_length = \
    256 num_read_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = rows bundle = gmem_rows max_read_burst_length = \
    256 num_read_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = codes bundle = gmem_codes max_write_burst_length = \
    256 num_write_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = y bundle = gmem_y max_write_burst_length = \
    256 num_write_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = rows_out bundle = gmem_rows max_write_burst_length = \
    256 num_write_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = scales bundle = gmem_scales max_write_burst_length = \
    256 num_write_outstanding = 2 offset = slave
#pragma HLS INTERFACE s_axilite port = return
#pragma HLS AGGREGATE variable = task compact = bit
#pragma HLS AGGREGATE variable = acc compact = bit
#pragma HLS AGGREGATE variable = x compact = bit
#pragma HLS AGGREGATE variable = side compact = bit
#pragma HLS AGGREGATE variable = table compact = bit
#pragma HLS AGGREGATE variable = rows compact = bit
#pragma HLS AGGREGATE variable = codes compact = bit
#pragma HLS AGGREGATE variable = y compact = bit
#pragma HLS AGGREGATE variable = rows_out compact = bit
#pragma HLS AGGREGATE variable = scales compact = bit
    const ecorl::vector::task_t now = task[0];
    VECTOR_COUNT(CALLS, 1);
    VECTOR_COUNT(ROWS, now.m);
    VECTOR_COUNT(BYTES_READ, sizeof(now));
    ecorl::vector::vector_dataflow(acc, x, side, table, rows, codes, y, rows_out, scales, now);
#ifdef ECORL_CSIM
    ecorl::vector::add_to_totals();
#endif
}

// What vector_ops reads and writes: the processes at both ends of its streams.
#pragma once

#include "task.hpp"

namespace ecorl {
namespace vector {

using rows_t = hls::stream<row_t>;
using words_t = hls::stream<word_t>;

struct counted {
    static void product_word() {
        VECTOR_COUNT(LOAD_CYCLES, 1);
        VECTOR_COUNT(BYTES_READ, sizeof(word_t));
    }
    static void turn_cycle() { VECTOR_COUNT(TURN_CYCLES, 1); }
};

/// The rows' records; tokens or positions also go to where the table is read.
inline void load_rows(const row_t* rows, rows_t& out, hls::stream<dim_t>& entries,
                      const task_t task) {
LOAD_ROWS:
    for (dim_t r = 0; r < task.m; ++r) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 4096 avg = 64
        const row_t row = rows[r];
        out.write(row);
        if (task.op == EMBED) entries.write(row.token);
        if (task.op == HEAD) entries.write(row.position);
        VECTOR_COUNT(BYTES_READ, sizeof(row_t));
    }
}

inline void load_x(const word_t* x, words_t& out, const task_t task) {
    const dim_t words = reads_x(task) ? task.m * words_of(task.n) : 0;
LOAD_X:
    for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 2097152 avg = 16384
        out.write(x[i]);
        VECTOR_COUNT(BYTES_READ, sizeof(word_t));
    }
}

/// Exponents of the heads of a block of rows.
inline void load_exponents(const word_t* side, words_t& out, dim_t heads, dim_t block,
                           dim_t blocks) {
#pragma HLS INLINE
LOAD_EXPONENTS:
    for (dim_t h = 0; h < heads; ++h) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 256 avg = 32
        out.write(side[static_cast<std::int64_t>(h) * blocks + block]);
        VECTOR_COUNT(SIDE_CYCLES, 1);
        VECTOR_COUNT(BYTES_READ, sizeof(word_t));
    }
}

/// Constants of the channels of one panel.
inline void load_channels(const word_t* side, words_t& out, const task_t& task, const plan_t& plan,
                          const walk_t& at) {
#pragma HLS INLINE
    const dim_t per_group = channel_words_of(task);
    const dim_t header = task.op == HEAD ? EXPONENT_WORDS : 0;
    const dim_t words = header + words_of(columns_at(at, plan)) * per_group;
    const dim_t panel = at.column / plan.width;
    const dim_t before = at.column / LANES * per_group + panel * header;
LOAD_SIDE_HALF:
    for (dim_t half = 0; half < plan.halves; ++half) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 2 avg = 1
        const dim_t first = before + half * (plan.n / LANES) * per_group;
    LOAD_SIDE:
        for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1540 avg = 768
            out.write(side[first + i]);
            VECTOR_COUNT(SIDE_CYCLES, 1);
            VECTOR_COUNT(BYTES_READ, sizeof(word_t));
        }
    }
}

inline void load_side(const word_t* side, words_t& out, const task_t task) {
    const plan_t plan = plan_of(task);
    const dim_t blocks = ceil_div(task.m, BLOCK_ROWS);
    const dim_t n_panels = task.op == CONTEXT ? blocks : panels_of(plan);
    walk_t at = first_of(plan);
LOAD_SIDE_PANEL:
    for (dim_t i = 0; i < n_panels; ++i) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 512 avg = 4
        if (task.op == CONTEXT) {
            load_exponents(side, out, task.n / task.head, i, blocks);
        } else if (channel_words_of(task) > 0 && is_fresh(plan, at)) {
            load_channels(side, out, task, plan, at);
        }
        go_on(at, plan);
    }
}

/// The rows' entries of the embedding or of the angles.
inline void load_table(const table_word_t* table, hls::stream<dim_t>& entries,
                       hls::stream<table_word_t>& out, const task_t task) {
    const plan_t plan = plan_of(task);
    const dim_t words = table_words_of(task);
    const dim_t n_panels = words > 0 ? panels_of(plan) : 0;
    dim_t entry[BLOCK_ROWS];
    walk_t at = first_of(plan);
TABLE_PANEL:
    for (dim_t i = 0; i < n_panels; ++i) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 512 avg = 4
        const dim_t rows = rows_at(at, plan);
    TABLE_ROW:
        for (dim_t r = 0; r < rows; ++r) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 16 avg = 16
            if (at.column == 0) entry[r] = entries.read();
            const std::int64_t first = static_cast<std::int64_t>(entry[r]) * words;
        LOAD_TABLE:
            for (dim_t w = 0; w < words; ++w) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 4 max = 257 avg = 129
                out.write(table[first + w]);
                VECTOR_COUNT(BYTES_READ, sizeof(table_word_t));
            }
        }
        go_on(at, plan);
    }
}

// ---- store ------------------------------------------------------------------------------------

/// From rows to the order of gemm_int8's A. One panel comes in beside the one before going out.
inline void turn_codes(hls::stream<code_line_t>& in, hls::stream<code_word_t>& out,
                       const task_t task) {
    ECORL_BUFFER code_line_t block[2][BLOCK_ROWS][PANEL_WORDS];
#pragma HLS BIND_STORAGE variable = block type = ram_2p impl = uram
#pragma HLS ARRAY_PARTITION variable = block complete dim = 2
#pragma HLS AGGREGATE variable = block
    constexpr int STEPS = LANES / STEP_CODES;
    const plan_t plan = codes_plan_of(task);
    const dim_t n_panels = panels_of(plan);
    walk_t at = first_of(plan);
    dim_t old_rows = 0;
    dim_t old_columns = 0;
CODES_PANEL:
    for (dim_t i = 0; i < n_panels + 1; ++i) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 512 avg = 4
        const int now = i & 1;
        const dim_t rows = i < n_panels ? rows_at(at, plan) : 0;
        const dim_t columns = columns_at(at, plan);
        const dim_t words = words_of(columns);
        const dim_t n_in = rows * words;
        const dim_t n_out = old_rows > 0 ? ceil_div(old_columns, STEP_CODES) : 0;
        dim_t row = 0;
        dim_t word = 0;
    TURN_CODES:
        for (dim_t j = 0; j < most(n_in, n_out); ++j) {
#pragma HLS PIPELINE II = 1
#pragma HLS DEPENDENCE variable = block type = inter false
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 8192 avg = 4096
            if (j < n_in) {
                block[now][row][word] = in.read();
                if (++word == words) {
                    word = 0;
                    ++row;
                }
            }
            if (j < n_out) {
                code_word_t codes;
                for (int r = 0; r < BLOCK_ROWS; ++r) {
#pragma HLS UNROLL
                    const code_line_t line = block[1 - now][r][j / STEPS];
                    for (int t = 0; t < STEP_CODES; ++t) {
#pragma HLS UNROLL
                        const code_t code = line.lane[j % STEPS * STEP_CODES + t];
                        codes.code[r][t] = r < old_rows ? code : code_t(0);
                    }
                }
                out.write(codes);
                VECTOR_COUNT(CODE_CYCLES, 1);
            }
        }
        old_rows = rows;
        old_columns = columns;
        if (i < n_panels) go_on(at, plan);
    }
}

/// Codes of a panel, unit by unit: each is a matrix of its own for gemm_int8.
inline void store_panel(hls::stream<code_word_t>& in, code_word_t* codes, dim_t block, dim_t blocks,
                        dim_t column, dim_t columns, dim_t unit, dim_t n) {
#pragma HLS INLINE
    const dim_t unit_steps = ceil_div(unit, STEP_CODES);
    dim_t index = column / unit;
    dim_t offset = column % unit;
    dim_t left = columns;
STORE_UNIT:
    while (left > 0) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 64 avg = 1
        const dim_t steps_of_row = ceil_div(least(unit, n - index * unit), STEP_CODES);
        const dim_t now = least(unit - offset, left);
        const dim_t steps = ceil_div(now, STEP_CODES);
        const std::int64_t first = static_cast<std::int64_t>(index) * blocks * unit_steps +
                                   static_cast<std::int64_t>(block) * steps_of_row +
                                   offset / STEP_CODES;
    STORE_CODES:
        for (dim_t s = 0; s < steps; ++s) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 2048 avg = 1024
            codes[first + s] = in.read();
            VECTOR_COUNT(BYTES_WRITTEN, sizeof(code_word_t));
        }
        left -= now;
        offset = 0;
        ++index;
    }
}

inline void store_codes(hls::stream<code_word_t>& in, code_word_t* codes, const task_t task) {
    const plan_t plan = codes_plan_of(task);
    const dim_t n_panels = panels_of(plan);
    const dim_t blocks = ceil_div(task.m, BLOCK_ROWS);
    const dim_t unit = task.op == HEAD ? task.head : (task.op == GATE ? MAX_SLICE : task.n);
    walk_t at = first_of(plan);
STORE_PANEL:
    for (dim_t i = 0; i < n_panels; ++i) {
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 512 avg = 4
        store_panel(in, codes, at.row / BLOCK_ROWS, blocks, at.column, columns_at(at, plan), unit,
                    task.n);
        go_on(at, plan);
    }
}

inline void store_values(words_t& in, word_t* y, const task_t task) {
    const dim_t words = gives_values(task) ? task.m * words_of(task.n) : 0;
STORE_Y:
    for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 2097152 avg = 16384
        y[i] = in.read();
        VECTOR_COUNT(BYTES_WRITTEN, sizeof(word_t));
    }
}

inline void store_rows(rows_t& in, row_t* rows, const task_t task) {
STORE_ROWS:
    for (dim_t r = 0; r < task.m; ++r) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 4096 avg = 64
        rows[r] = in.read();
        VECTOR_COUNT(BYTES_WRITTEN, sizeof(row_t));
    }
}

inline void store_scales(words_t& in, word_t* scales, const task_t task) {
    const dim_t heads = task.op == HEAD ? task.n / task.head : 0;
    const dim_t blocks = ceil_div(task.m, BLOCK_ROWS);
    dim_t head = 0;
    dim_t block = 0;
STORE_SCALES:
    for (dim_t i = 0; i < heads * blocks; ++i) {
#pragma HLS PIPELINE II = 2
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 24576 avg = 256
        const std::int64_t first = (static_cast<std::int64_t>(head) * blocks + block) * 2;
        scales[first] = in.read();
        scales[first + 1] = in.read();
        VECTOR_COUNT(BYTES_WRITTEN, 2 * sizeof(word_t));
        if (++head == heads) {
            head = 0;
            ++block;
        }
    }
}

}  // namespace vector
}  // namespace ecorl

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

/// Attention's exponents and marks of a block of rows, head by head.
inline void load_results(const word_t* side, words_t& out, const task_t& task, dim_t block) {
#pragma HLS INLINE
    const dim_t stride = task.stride / BLOCK_ROWS;
LOAD_RESULTS:
    for (dim_t i = 0; i < task.n / task.head * RESULT_WORDS; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 2 max = 512 avg = 64
        const std::int64_t head = static_cast<std::int64_t>(i / RESULT_WORDS) * stride;
        out.write(side[(head + block) * RESULT_WORDS + i % RESULT_WORDS]);
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
    const dim_t n_panels = task.op == CONTEXT ? ceil_div(task.m, BLOCK_ROWS) : panels_of(plan);
    walk_t at = first_of(plan);
LOAD_SIDE_PANEL:
    for (dim_t i = 0; i < n_panels; ++i) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 512 avg = 4
        if (task.op == CONTEXT) {
            load_results(side, out, task, i);
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

/// Four codes of each row, as gemm_int8 takes them; zeros beyond the last row.
inline code_word_t step_of(const code_line_t lines[BLOCK_ROWS], dim_t part, dim_t rows) {
#pragma HLS INLINE
    code_word_t codes;
    for (int r = 0; r < BLOCK_ROWS; ++r) {
#pragma HLS UNROLL
        for (int t = 0; t < STEP_CODES; ++t) {
#pragma HLS UNROLL
            const code_t code = lines[r].lane[part * STEP_CODES + t];
            codes.code[r][t] = r < rows ? code : code_t(0);
        }
    }
    return codes;
}

/// The part-th 16 codes of a beat of one row; the first of them clears what follows.
inline void put_line(code_word_t& beat, const code_line_t& line, dim_t part) {
#pragma HLS INLINE
    for (int s = 0; s < BLOCK_ROWS; ++s) {
#pragma HLS UNROLL
        for (int t = 0; t < STEP_CODES; ++t) {
#pragma HLS UNROLL
            const code_t old = part == 0 ? code_t(0) : beat.code[s][t];
            const code_t code = line.lane[s % LINE_STEPS * STEP_CODES + t];
            beat.code[s][t] = s / LINE_STEPS == part ? code : old;
        }
    }
}

/// Where the next 16 codes leave the block buffer on their way to heads: line of a row's head, then
/// row, then head.
struct exit_t {
    dim_t line, row, base;
};

inline void step(exit_t& at, dim_t rows, dim_t unit) {
#pragma HLS INLINE
    if (++at.line < unit) return;
    at.line = 0;
    if (++at.row < rows) return;
    at.row = 0;
    at.base += unit;
}

/// From rows to the order of gemm_int8's A, or of a head's rows. One panel comes in beside the one
/// before going out: at 16 codes a cycle on the way to heads, as they come in.
inline void turn_codes(hls::stream<code_line_t>& in, hls::stream<code_word_t>& out,
                       const task_t task) {
    ECORL_BUFFER code_line_t block[2][BLOCK_ROWS][PANEL_WORDS];
#pragma HLS BIND_STORAGE variable = block type = ram_2p impl = uram
#pragma HLS ARRAY_PARTITION variable = block complete dim = 2
#pragma HLS AGGREGATE variable = block
    const bool is_head = task.op == HEAD;
    const dim_t unit = task.head / LANES;
    const plan_t plan = codes_plan_of(task);
    const dim_t n_panels = panels_of(plan);
    walk_t at = first_of(plan);
    dim_t old_rows = 0;
    dim_t n_out = 0;
CODES_PANEL:
    for (dim_t i = 0; i < n_panels + 1; ++i) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 512 avg = 4
        const int now = i & 1;
        const dim_t rows = i < n_panels ? rows_at(at, plan) : 0;
        const dim_t columns = columns_at(at, plan);
        const dim_t words = words_of(columns);
        const dim_t n_in = rows * words;
        dim_t row = 0;
        dim_t word = 0;
        exit_t from = {0, 0, 0};
        code_word_t codes;
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
                code_line_t lines[BLOCK_ROWS];
#pragma HLS ARRAY_PARTITION variable = lines complete
                for (int r = 0; r < BLOCK_ROWS; ++r) {
#pragma HLS UNROLL
                    lines[r] = block[1 - now][r][is_head ? from.base + from.line : j / LINE_STEPS];
                }
                const dim_t part = is_head ? from.line % BEAT_LINES : j % LINE_STEPS;
                if (is_head) {
                    put_line(codes, lines[from.row], part);
                } else {
                    codes = step_of(lines, part, old_rows);
                }
                if (!is_head || part == BEAT_LINES - 1 || from.line == unit - 1) {
                    out.write(codes);
                    VECTOR_COUNT(CODE_CYCLES, 1);
                }
                step(from, old_rows, unit);
            }
        }
        old_rows = rows;
        n_out = is_head ? n_in : ceil_div(columns, STEP_CODES);
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
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 2 avg = 1
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

/// Codes of a panel's heads: a block of rows of each stands side by side.
inline void store_heads(hls::stream<code_word_t>& in, code_word_t* codes, const task_t& task,
                        const walk_t& at, dim_t rows, dim_t columns) {
#pragma HLS INLINE
    const dim_t beats = token_beats(task.head);
    std::int64_t first =
        (static_cast<std::int64_t>(at.column / task.head) * task.stride + at.row) * beats;
STORE_HEAD:
    for (dim_t h = 0; h < columns / task.head; ++h) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 64 avg = 48
    STORE_BEATS:
        for (dim_t i = 0; i < rows * beats; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 32 avg = 32
            codes[first + i] = in.read();
            VECTOR_COUNT(BYTES_WRITTEN, sizeof(code_word_t));
        }
        first += static_cast<std::int64_t>(task.stride) * beats;
    }
}

inline void store_codes(hls::stream<code_word_t>& in, code_word_t* codes, const task_t task) {
    const plan_t plan = codes_plan_of(task);
    const dim_t n_panels = panels_of(plan);
    const dim_t blocks = ceil_div(task.m, BLOCK_ROWS);
    const dim_t unit = task.op == GATE ? MAX_SLICE : task.n;
    walk_t at = first_of(plan);
STORE_PANEL:
    for (dim_t i = 0; i < n_panels; ++i) {
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 512 avg = 4
        const dim_t columns = columns_at(at, plan);
        if (task.op == HEAD) {
            store_heads(in, codes, task, at, rows_at(at, plan), columns);
        } else {
            store_panel(in, codes, at.row / BLOCK_ROWS, blocks, at.column, columns, unit, task.n);
        }
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

/// Scales and positions of 16 rows of one head after the other, then of the next rows.
inline void store_scales(words_t& in, word_t* scales, const task_t task) {
    const dim_t heads = task.op == HEAD ? task.n / task.head : 0;
    const dim_t stride = task.stride / BLOCK_ROWS;
    dim_t word = 0;
    dim_t head = 0;
    dim_t block = 0;
STORE_SCALES:
    for (dim_t i = 0; i < heads * ceil_div(task.m, BLOCK_ROWS) * SCALE_WORDS; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 98304 avg = 1024
        const std::int64_t first = static_cast<std::int64_t>(head) * stride + block;
        scales[first * SCALE_WORDS + word] = in.read();
        VECTOR_COUNT(BYTES_WRITTEN, sizeof(word_t));
        if (++word < SCALE_WORDS) continue;
        word = 0;
        if (++head < heads) continue;
        head = 0;
        ++block;
    }
}

}  // namespace vector
}  // namespace ecorl

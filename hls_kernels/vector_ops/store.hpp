// What vector_ops writes: codes in the order of gemm_int8 or of heads, values, records, scales.
#pragma once

#include "task.hpp"

namespace ecorl {
namespace vector {

using lines_t = hls::stream<code_line_t>;
using codes_t = hls::stream<code_word_t>;

/// The next four codes of each row, as gemm_int8 takes them; those behind them move up. Zeros
/// beyond the last row.
inline code_word_t next_step(code_line_t lines[BLOCK_ROWS], dim_t rows) {
#pragma HLS INLINE
    code_word_t codes;
    for (int r = 0; r < BLOCK_ROWS; ++r) {
#pragma HLS UNROLL
        for (int t = 0; t < STEP_CODES; ++t) {
#pragma HLS UNROLL
            codes.code[r][t] = r < rows ? lines[r].lane[t] : code_t(0);
        }
        for (int t = 0; t < LANES - STEP_CODES; ++t) {
#pragma HLS UNROLL
            lines[r].lane[t] = lines[r].lane[t + STEP_CODES];
        }
    }
    return codes;
}

/// From rows to the order of gemm_int8's A: a block of rows comes in beside the one before going
/// out, four columns of all rows a cycle.
inline void arrange_codes(lines_t& in, codes_t& out, const call_t& call) {
#pragma HLS INLINE
    ECORL_BUFFER watched<code_line_t> block[2][BLOCK_ROWS][CODE_WORDS];
#pragma HLS AGGREGATE variable = block
#pragma HLS ARRAY_PARTITION variable = block complete dim = 2
#pragma HLS BIND_STORAGE variable = block type = ram_2p impl = uram
    const dim_t m = call.gives_codes ? call.task.m : 0;
    const dim_t n_blocks = ceil_div(m, BLOCK_ROWS);
    const dim_t steps = ceil_div(call.task.n, STEP_CODES);
    dim_t old_rows = 0;
CODE_BLOCK:
    for (dim_t b = 0; b < (n_blocks == 0 ? 0 : n_blocks + 1); ++b) {
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 257 avg = 5
        const int now = b & 1;
        const dim_t rows = b < n_blocks ? rows_from(b * BLOCK_ROWS, m) : 0;
        const dim_t n_in = rows * call.words;
        const dim_t n_out = old_rows > 0 ? steps : 0;
        dim_t row = 0;
        dim_t word = 0;
        code_line_t lines[BLOCK_ROWS];
#pragma HLS AGGREGATE variable = lines
#pragma HLS ARRAY_PARTITION variable = lines complete
    ARRANGE_CODES:
        for (dim_t j = 0; j < most(n_in, n_out); ++j) {
#pragma HLS PIPELINE II = 1
#pragma HLS DEPENDENCE variable = block type = inter false
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 32768 avg = 4096
            ECORL_WATCH(block, ARRANGE_CODES, ALL, NEVER, j, n_in, n_out);
            if (j < n_in) {
                block[now][row][word] = in.read();
                if (++word == call.words) {
                    word = 0;
                    ++row;
                }
            }
            if (j < n_out) {
                if (j % LINE_STEPS == 0) {
                    for (int r = 0; r < BLOCK_ROWS; ++r) {
#pragma HLS UNROLL
                        lines[r] = block[1 - now][r][j / LINE_STEPS];
                    }
                }
                out.write(next_step(lines, old_rows));
            }
            VECTOR_COUNT(CODE_CYCLES, 1);
        }
        old_rows = rows;
    }
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

/// A row's codes of a head as it is stored: one or two beats, zeros behind the codes.
inline void pack_heads(lines_t& in, codes_t& out, const call_t& call) {
#pragma HLS INLINE
    code_word_t beat;
    dim_t line = 0;
PACK_HEADS:
    for (dim_t i = 0; i < call.task.m * call.heads * call.unit; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 16777216 avg = 65536
        const dim_t part = line % BEAT_LINES;
        put_line(beat, in.read(), part);
        const bool is_last = line == call.unit - 1;
        if (part == BEAT_LINES - 1 || is_last) out.write(beat);
        line = is_last ? 0 : line + 1;
        VECTOR_COUNT(CODE_CYCLES, 1);
    }
}

/// Codes in the order of memory.
inline void order_codes(lines_t& in, codes_t& out, const call_t call) {
    if (call.task.op == HEAD) {
        pack_heads(in, out, call);
    } else {
        arrange_codes(in, out, call);
    }
}

/// Codes that are written one after the other.
struct code_run_t {
    std::int64_t first;
    dim_t words;
};

/// gemm_int8 takes rows of GATE that are longer than this in slices.
inline bool is_sliced(const task_t& task) {
#pragma HLS INLINE
    return task.op == GATE && task.n > MAX_SLICE;
}

/// HEAD: of each block of rows its heads. Sliced rows: of each block its slices. Else all codes at
/// once.
inline code_run_t code_run_at(const call_t& call, dim_t block, dim_t inner) {
#pragma HLS INLINE
    const task_t& task = call.task;
    const dim_t blocks = ceil_div(task.m, BLOCK_ROWS);
    const dim_t row = block * BLOCK_ROWS;
    const dim_t beats = token_beats(task.head);
    const dim_t steps = ceil_div(task.n, STEP_CODES);
    constexpr dim_t SLICE_STEPS = MAX_SLICE / STEP_CODES;
    if (task.op == HEAD) {
        const std::int64_t first = static_cast<std::int64_t>(inner) * task.stride + row;
        return {first * beats, rows_from(row, task.m) * beats};
    }
    if (!is_sliced(task)) return {0, blocks * steps};
    const dim_t own = least(steps - inner * SLICE_STEPS, SLICE_STEPS);
    const std::int64_t slice = static_cast<std::int64_t>(inner) * SLICE_STEPS;
    return {slice * blocks + static_cast<std::int64_t>(block) * own, own};
}

inline void store_codes(codes_t& in, code_word_t* codes, const call_t call) {
    const task_t& task = call.task;
    const bool is_one = task.op != HEAD && !is_sliced(task);
    const dim_t n_outer = is_one ? 1 : ceil_div(task.m, BLOCK_ROWS);
    const dim_t slices = is_one ? 1 : ceil_div(task.n, MAX_SLICE);
    const dim_t n_inner = task.op == HEAD ? call.heads : slices;
STORE_BLOCK:
    for (dim_t b = 0; b < (call.gives_codes ? n_outer : 0); ++b) {
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 256 avg = 1
    STORE_INNER:
        for (dim_t inner = 0; inner < n_inner; ++inner) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 768 avg = 1
            const code_run_t run = code_run_at(call, b, inner);
        STORE_CODES:
            for (dim_t i = 0; i < run.words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 4194304 avg = 1024
                codes[run.first + i] = in.read();
                VECTOR_COUNT(STORE_CYCLES, 1);
                VECTOR_COUNT(BYTES_WRITTEN, sizeof(code_word_t));
            }
        }
    }
}

inline void store_values(words_t& in, word_t* y, const call_t call) {
    const dim_t words = call.gives_values ? call.task.m * call.words : 0;
STORE_Y:
    for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 2097152 avg = 16384
        y[i] = in.read();
        VECTOR_COUNT(BYTES_WRITTEN, sizeof(word_t));
    }
}

inline void store_rows(rows_t& in, row_t* rows, const call_t call) {
STORE_ROWS:
    for (dim_t r = 0; r < call.task.m; ++r) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 4096 avg = 64
        rows[r] = in.read();
        VECTOR_COUNT(BYTES_WRITTEN, sizeof(row_t));
    }
}

/// Scales and positions of 16 rows of one head after the other, then of the next rows.
inline void store_scales(words_t& in, word_t* scales, const call_t call) {
    const dim_t blocks = call.task.op == HEAD ? ceil_div(call.task.m, BLOCK_ROWS) : 0;
    const dim_t stride = call.task.stride / BLOCK_ROWS;
SCALE_BLOCK:
    for (dim_t b = 0; b < blocks; ++b) {
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 256 avg = 4
    SCALE_HEAD:
        for (dim_t h = 0; h < call.heads; ++h) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 768 avg = 48
            const std::int64_t line = static_cast<std::int64_t>(h) * stride + b;
            const std::int64_t first = line * SCALE_WORDS;
        STORE_SCALES:
            for (dim_t i = 0; i < SCALE_WORDS; ++i) {
#pragma HLS PIPELINE II = 1
                scales[first + i] = in.read();
                VECTOR_COUNT(BYTES_WRITTEN, sizeof(word_t));
            }
        }
    }
}

}  // namespace vector
}  // namespace ecorl

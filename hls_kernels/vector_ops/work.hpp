// The operations of vector_ops on one row that is on the chip.
#pragma once

#include "task.hpp"

#ifdef ECORL_NATIVE
#include <cstring>
#endif

#define ECORL_ROW static inline
#define ECORL_ROWS kernel
#include "ecorl_row_lanes.hpp"
#include "rows.hpp"
#undef ECORL_ROWS
#undef ECORL_ROW_LANE
#undef ECORL_ROW

namespace ecorl {
namespace vector {

/// What the rows of a panel share.
struct side_t {
    value_t mantissa[MAX_COLUMNS];  ///< of channels; weights of a norm
    std::int32_t shift[MAX_COLUMNS];
    value_t bias[MAX_COLUMNS];
    std::int32_t head_exponent[MAX_HEADS];
};

/// What a block of rows keeps.
struct block_t {
    row_t row[BLOCK_ROWS];
    scale_t scale[MAX_HEADS][BLOCK_ROWS];
    std::int32_t exponent[MAX_ALL_HEADS][BLOCK_ROWS];
    std::int32_t mark[BLOCK_ROWS];  ///< of attention
};

/// A row's place: in its block, and the panel that is worked on.
struct place_t {
    dim_t row, stage, column, columns;
};

/// A row as it comes in.
struct line_t {
    value_t product[MAX_COLUMNS];
    value_t x[MAX_COLUMNS];
    sint<16> table[MAX_COLUMNS];
    std::int32_t exponent;  ///< of an embedding
};

inline scale_t scale_of(const row_t& row) {
#pragma HLS INLINE
    return {row.scale_m, row.scale_e};
}

inline void set_scale(row_t& row, scale_t scale) {
#pragma HLS INLINE
    row.scale_m = scale.m;
    row.scale_e = scale.e;
}

inline channels_t channels_at(const task_t& task, const side_t& side, dim_t at) {
#pragma HLS INLINE
    return {side.mantissa + at, side.shift + at, task.input_shift};
}

inline bool is_empty(const row_t& row) {
#pragma HLS INLINE
    return row.peak_gate == 0 || row.peak_up == 0;
}

inline gate_t gate_of(const task_t& task, const row_t& row) {
#pragma HLS INLINE
    return make_gate(row.peak_gate, row.peak_up, task.exponent, scale_of(row));
}

inline std::int32_t larger_peak(std::int32_t old, value_t peak) {
#pragma HLS INLINE
    return static_cast<std::int32_t>(larger(value_t(old), peak));
}

inline quantiser_t gate_quantiser(const task_t& task, const row_t& row) {
#pragma HLS INLINE
    if (is_empty(row)) return make_quantiser(0, 0);
    const int exponent = gated_exponent(gate_of(task, row), task.exponent, task.exponent_up);
    return make_quantiser(row.peak_h, exponent);
}

inline void norm_row(const task_t& task, const side_t& side, row_t& row, const line_t& line,
                     code_t codes[MAX_COLUMNS]) {
    ECORL_BUFFER value_t scratch[MAX_COLUMNS];
#pragma HLS BIND_STORAGE variable = scratch type = ram_2p impl = bram
#pragma HLS ARRAY_PARTITION variable = scratch cyclic factor = 16
    set_scale(row,
              kernel::rmsnorm_row(line.x, side.mantissa, task.exponent, {task.eps_m, task.eps_e},
                                  task.fraction_bits, scratch, codes, task.n));
    VECTOR_COUNT(WORK_CYCLES, 3 * words_of(task.n));
}

inline void head_rows(const task_t& task, const side_t& side, block_t& block, const place_t& at,
                      const line_t& line, code_t codes[MAX_COLUMNS], value_t& mark) {
    ECORL_BUFFER value_t values[MAX_HEAD];
    ECORL_BUFFER value_t turned[MAX_HEAD];
#pragma HLS ARRAY_PARTITION variable = values complete
#pragma HLS ARRAY_PARTITION variable = turned complete
    const dim_t first = at.column / task.head;
    const dim_t heads = at.columns / task.head;
HEADS:
    for (dim_t h = 0; h < heads; ++h) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 64 avg = 48
        const dim_t from = h * MAX_HEAD;
        const kernel::head_t head = {channels_at(task, side, from),
                                     side.bias + from,
                                     line.table,
                                     line.table + MAX_HEAD / 2,
                                     side.head_exponent[h],
                                     task.fraction_bits,
                                     task.has_bias != 0,
                                     first + h < task.turned};
        block.scale[h][at.row] =
            kernel::head_codes(line.product + from, head, scale_of(block.row[at.row]), values,
                               turned, codes + from, task.head, mark);
        const dim_t passes = head.has_bias ? 3 : 2;
        VECTOR_COUNT(WORK_CYCLES,
                     passes * words_of(task.head) + (head.is_turned ? words_of(task.head / 2) : 0));
        (void)passes;
    }
}

inline void clear_codes(code_t codes[MAX_COLUMNS], dim_t n) {
CLEAR:
    for (dim_t j = 0; j < n; ++j) {
#pragma HLS PIPELINE II = 1
#pragma HLS UNROLL factor = 16
#pragma HLS LOOP_TRIPCOUNT min = 16 max = 4096 avg = 4096
        codes[j] = 0;
    }
}

/// One stage of a row's gate on one panel.
inline void gate_row(const task_t& task, const side_t& side, row_t& row, const place_t& at,
                     const line_t& line, code_t codes[MAX_COLUMNS], value_t& mark) {
    ECORL_BUFFER value_t values[2][GATE_COLUMNS];
#pragma HLS BIND_STORAGE variable = values type = ram_2p impl = bram
#pragma HLS ARRAY_PARTITION variable = values complete dim = 1
#pragma HLS ARRAY_PARTITION variable = values cyclic factor = 16 dim = 2
    if (at.stage != PEAKS && is_empty(row)) {
        clear_codes(codes, at.columns);
        VECTOR_COUNT(WORK_CYCLES, words_of(at.columns));
        return;
    }
    value_t peaks[2];
HALVES:
    for (dim_t half = 0; half < 2; ++half) {
        const dim_t from = half * GATE_COLUMNS;
        peaks[half] = kernel::dequantise_row(line.product + from, channels_at(task, side, from),
                                             values[half], at.columns);
    }
    VECTOR_COUNT(WORK_CYCLES, 2 * words_of(at.columns));
    if (at.stage == PEAKS) {
        row.peak_gate = larger_peak(row.peak_gate, peaks[0]);
        row.peak_up = larger_peak(row.peak_up, peaks[1]);
        return;
    }
    const value_t peak =
        kernel::gated_row(values[0], values[1], gate_of(task, row), at.columns, mark);
    VECTOR_COUNT(WORK_CYCLES, words_of(at.columns));
    if (at.stage == H_PEAK) {
        row.peak_h = larger_peak(row.peak_h, peak);
        return;
    }
    kernel::codes_row(values[0], gate_quantiser(task, row), codes, at.columns);
    VECTOR_COUNT(WORK_CYCLES, words_of(at.columns));
}

/// One stage of a row of attention outputs on one panel.
inline void context_row(const task_t& task, block_t& block, const place_t& at, const line_t& line,
                        code_t codes[MAX_COLUMNS]) {
    ECORL_BUFFER value_t aligned[MAX_HEAD];
#pragma HLS ARRAY_PARTITION variable = aligned cyclic factor = 16
    row_t& row = block.row[at.row];
    const quantiser_t by = make_quantiser(row.peak, row.exponent);
    const dim_t first = at.column / task.head;
    const dim_t heads = at.columns / task.head;
CONTEXT_HEADS:
    for (dim_t h = 0; h < heads; ++h) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 64 avg = 32
        const dim_t from = h * MAX_HEAD;
        const dim_t right = least(row.exponent - block.exponent[first + h][at.row], 31);
        const value_t peak = kernel::aligned_row(line.product + from, right, aligned, task.head);
        VECTOR_COUNT(WORK_CYCLES, words_of(task.head));
        if (at.stage == PEAK) {
            row.peak = larger_peak(row.peak, peak);
        } else {
            kernel::codes_row(aligned, by, codes + from, task.head);
            VECTOR_COUNT(WORK_CYCLES, words_of(task.head));
        }
    }
}

/// The operation of a task on one row and panel: `line` in, `result` or `codes` out.
inline void work_row(const task_t& task, const side_t& side, block_t& block, const place_t& at,
                     const line_t& line, value_t result[MAX_COLUMNS], code_t codes[MAX_COLUMNS]) {
    row_t& row = block.row[at.row];
    value_t mark = 0;
    const scale_t s = scale_of(row);
    const channels_t channels = channels_at(task, side, 0);
    switch (task.op) {
        case EMBED:
            kernel::embed_row(line.table, line.exponent, task.fraction_bits, result, task.n, mark);
            VECTOR_COUNT(WORK_CYCLES, words_of(task.n));
            break;
        case NORM:
            norm_row(task, side, row, line, codes);
            break;
        case RESIDUAL:
            kernel::added_row(line.product, channels, task.exponent, s, task.fraction_bits,
                              side.bias, line.x, result, task.n, mark);
            VECTOR_COUNT(WORK_CYCLES, words_of(task.n));
            break;
        case HEAD:
            head_rows(task, side, block, at, line, codes, mark);
            break;
        case GATE:
            gate_row(task, side, row, at, line, codes, mark);
            break;
        case CONTEXT:
            context_row(task, block, at, line, codes);
            break;
        default:
            kernel::fixed_row(line.product, channels, task.exponent, s, task.fraction_bits,
                              side.bias, result, task.n, mark);
            VECTOR_COUNT(WORK_CYCLES, words_of(task.n));
            break;
    }
    row.mark |= mark != 0 ? 1 : 0;
}

/// Before the first stage of a block: maxima that this task finds start from nothing.
inline void begin_row(const task_t& task, block_t& block, dim_t r) {
    row_t& row = block.row[r];
    const bool is_gate = task.op == GATE;
    const bool is_context = task.op == CONTEXT;
    if (is_gate && task.first_stage == PEAKS) row.peak_gate = row.peak_up = 0;
    if (is_gate && task.first_stage <= H_PEAK && task.last_stage >= H_PEAK) row.peak_h = 0;
    if (is_context && task.first_stage <= PEAK && task.last_stage >= PEAK) row.peak = 0;
    if (is_context && block.mark[r] != 0) row.mark |= 1;
    if (!is_context || task.first_stage != EXPONENT) return;
    row.exponent = NO_EXPONENT;
EXPONENTS:
    for (dim_t h = 0; h < task.n / task.head; ++h) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 256 avg = 32
        row.exponent = most(row.exponent, block.exponent[h][r]);
    }
}

/// After the last stage of a block: scales of the codes that were made.
inline void end_row(const task_t& task, row_t& row) {
    if (task.op == GATE && task.last_stage == GATE_CODES) {
        const scale_t s = scale_of(row);
        const scale_t q = gate_quantiser(task, row).scale;
        set_scale(row, times(times(q, s), s));
    }
    if (task.op == CONTEXT && task.last_stage == CONTEXT_CODES) {
        set_scale(row, make_quantiser(row.peak, row.exponent).scale);
    }
}

}  // namespace vector
}  // namespace ecorl

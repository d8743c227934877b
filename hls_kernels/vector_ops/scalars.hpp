// What vector_ops computes once a row or a head: the processes beside the words. Each takes a part
// a cycle, however long its divisions and roots take; meanwhile the words wait in their FIFOs.
#pragma once

#include "task.hpp"

namespace ecorl {
namespace vector {

/// An exponent that attention gives for a head and a row, and whether the row was marked there.
struct head_result_t {
    value_t exponent;
    value_t mark;
};

using results_t = hls::stream<head_result_t>;
using values_t = hls::stream<value_t>;
using openings_t = hls::stream<opening_t>;
using parts_t = hls::stream<part_t>;
using head_rows_t = hls::stream<head_row_t>;

// ---- CONTEXT: exponents of all heads of a row ---------------------------------------------------

/// Attention's exponents and marks of a block of rows, one after the other: head by head, 8 rows a
/// word.
inline void take_results(words_t& in, head_result_t results[MAX_ALL_HEADS * BLOCK_ROWS],
                         dim_t heads) {
    word_t word;
TAKE_RESULTS:
    for (dim_t i = 0; i < heads * BLOCK_ROWS; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 16 max = 4096 avg = 512
        if (i % (LANES / 2) == 0) word = in.read();
        results[i] = {word.lane[0], word.lane[1]};
        for (int lane = 0; lane < LANES - 2; ++lane) {
#pragma HLS UNROLL
            word.lane[lane] = word.lane[lane + 2];
        }
    }
}

/// For each row the largest exponent and the marks of its heads, then all exponents of its heads. A
/// row's largest is found beside the exponents of the row before.
inline void rank_heads(words_t& in, results_t& tops, values_t& exponents, const call_t call) {
    ECORL_BUFFER head_result_t results[MAX_ALL_HEADS * BLOCK_ROWS];
#pragma HLS AGGREGATE variable = results
#pragma HLS BIND_STORAGE variable = results type = ram_t2p impl = bram
    const dim_t m = call.task.op == CONTEXT ? call.task.m : 0;
RANK_BLOCK:
    for (dim_t first = 0; first < m; first += BLOCK_ROWS) {
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 256 avg = 4
        const dim_t rows = rows_from(first, m);
        take_results(in, results, call.heads);
        head_result_t top = {NO_EXPONENT, 0};
        head_result_t above = top;  // of the row before
        dim_t head = 0;
        dim_t row = 0;
    RANK:
        for (dim_t i = 0; i < (rows + 1) * call.heads; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 2 max = 4352 avg = 544
            const head_result_t none = {NO_EXPONENT, 0};
            const head_result_t before = head == 0 ? none : top;
            if (head == 0) above = top;
            if (row > 0) {
                if (head == 0) tops.write(above);
                const head_result_t leaving = results[head * BLOCK_ROWS + row - 1];
                if (call.looks_first) exponents.write(leaving.exponent);
            }
            const head_result_t own = row < rows ? results[head * BLOCK_ROWS + row] : none;
            top = {larger(before.exponent, own.exponent), value_t(before.mark | own.mark)};
            if (++head == call.heads) {
                head = 0;
                ++row;
            }
        }
    }
}

// ---- before the first look ----------------------------------------------------------------------

/// Exponents of the values of all heads, 16 a word.
inline void take_exponents(words_t& in, value_t exponents[CHANNEL_GROUPS], const call_t& call) {
#pragma HLS INLINE
    const dim_t heads = call.task.op == HEAD ? ceil_div(call.heads, HEADER_HEADS) : 0;
    word_t word;
TAKE_EXPONENTS:
    for (dim_t h = 0; h < heads * HEADER_HEADS; ++h) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 4096 avg = 64
        if (h % LANES == 0) word = in.read();
        exponents[h] = word.lane[0];
        for (int lane = 0; lane < LANES - 1; ++lane) {
#pragma HLS UNROLL
            word.lane[lane] = word.lane[lane + 1];
        }
        VECTOR_COUNT(OPEN_CYCLES, 1);
    }
}

/// Records of a block of rows.
inline void take_rows(rows_t& in, row_t kept[BLOCK_ROWS], dim_t rows) {
#pragma HLS INLINE
TAKE_ROWS:
    for (dim_t r = 0; r < rows; ++r) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 16 avg = 16
        kept[r] = in.read();
        VECTOR_COUNT(OPEN_CYCLES, 1);
    }
}

/// A row's record with the marks of attention, and its exponent where this call finds it.
inline row_t with_result(row_t row, const head_result_t& top, const task_t& task) {
#pragma HLS INLINE
    if (top.mark != 0) row.mark |= 1;
    if (task.first_stage == EXPONENT) row.exponent = static_cast<std::int32_t>(top.exponent);
    return row;
}

/// What stands before the words of a head or a row, whose values have `exponent`.
inline opening_t opening_of(const task_t& task, const row_t& row, std::int32_t exponent) {
#pragma HLS INLINE
    // An embedding has no scale: its values are those of the table.
    const scale_t unscaled = {0, -32};
    const scale_t s = task.op == EMBED ? unscaled : scale_of(row);
    return {make_fixed(exponent, s, task.fraction_bits, VALUE_LIMIT),
            least(row.exponent - exponent, 31)};
}

/// Records and exponents to what the chain needs ahead of the words.
inline void open_parts(rows_t& records, words_t& header, values_t& of_embeddings, results_t& tops,
                       values_t& of_contexts, openings_t& openings, parts_t& parts,
                       const call_t call) {
    ECORL_BUFFER value_t exponents[CHANNEL_GROUPS];
#pragma HLS BIND_STORAGE variable = exponents type = ram_2p impl = bram
    ECORL_BUFFER row_t kept[BLOCK_ROWS];
#pragma HLS AGGREGATE variable = kept
#pragma HLS BIND_STORAGE variable = kept type = ram_2p impl = lutram
    const task_t& task = call.task;
    const bool is_context = task.op == CONTEXT;
    const dim_t heads = task.op == HEAD || (is_context && call.looks_first) ? call.heads : 1;
    take_exponents(header, exponents, call);
OPEN_BLOCK:
    for (dim_t first = 0; first < task.m; first += BLOCK_ROWS) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 256 avg = 4
        const dim_t rows = rows_from(first, task.m);
        take_rows(records, kept, rows);
        head_result_t top = {NO_EXPONENT, 0};
        dim_t row = 0;
        dim_t head = 0;
    OPEN:
        for (dim_t i = 0; i < rows * heads; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 65536 avg = 16
            if (is_context && head == 0) top = tops.read();
            const row_t record = is_context ? with_result(kept[row], top, task) : kept[row];
            value_t exponent = task.exponent;
            if (task.op == EMBED) exponent = of_embeddings.read();
            if (task.op == HEAD) exponent = exponents[head];
            if (is_context && call.looks_first) exponent = of_contexts.read();
            const auto x = static_cast<std::int32_t>(exponent);
            if (call.looks_first) openings.write(opening_of(task, record, x));
            if (!is_context || head == 0) {
                const bool is_head = task.op == HEAD;
                const std::int32_t of_part = is_head && task.has_bias ? -task.fraction_bits : x;
                parts.write({record, of_part, 0, is_head && head < task.rotated, false});
            }
            VECTOR_COUNT(OPEN_CYCLES, 1);
            // The heads of a row, or the rows of a head.
            const bool ends_heads = is_context && head == heads - 1;
            const bool ends_rows = !is_context && row == rows - 1;
            if (is_context || ends_rows) head = ends_heads ? 0 : head + 1;
            if (!is_context || ends_heads) row = ends_rows ? 0 : row + 1;
        }
    }
}

// ---- between the looks --------------------------------------------------------------------------

/// Peaks of gate and up into the row's record, and what they make of a gate.
inline void begin_gate(const task_t& task, value_t gate, value_t up, part_t& part,
                       transform_t& by) {
#pragma HLS INLINE
    row_t& row = part.row;
    if (task.first_stage == PEAKS) {
        row.peak_gate = static_cast<std::int32_t>(gate);
        row.peak_up = static_cast<std::int32_t>(up);
    }
    part.is_zero = by.is_zero = row.peak_gate == 0 || row.peak_up == 0;
    if (part.is_zero) return;
    by.gate = make_gate(row.peak_gate, row.peak_up, task.exponent, scale_of(row));
    part.exponent = gated_exponent(by.gate, task.exponent, task.exponent_up);
}

/// What the first look found, as scalars of the second.
inline transform_t transform_of(const task_t& task, value_t gate, const first_look_t& look,
                                part_t& part) {
#pragma HLS INLINE
    transform_t by = {{0, 0, {0, {0, 0, 0, 0, 0}}, false}, 0, part.is_rotated, false};
    const int room = look.peak == 0 ? 0 : room_of(look.peak);
    const bool finds_peak = task.first_stage <= PEAK && task.last_stage >= PEAK;
    if (task.op == GATE) begin_gate(task, gate, look.peak, part, by);
    if (task.op == CONTEXT && finds_peak) part.row.peak = static_cast<std::int32_t>(look.peak);
    if (task.op == NORM || part.is_rotated) part.room = by.room = room;
    if (task.op == NORM) {
        part.is_zero = look.peak == 0;
        part.exponent = task.exponent + 32 - room - task.fraction_bits;
    }
    if (part.is_rotated) part.exponent += 2 - room;
    if (look.changed != 0) part.row.mark |= 1;
    return by;
}

inline void first_scalars(parts_t& in, hls::stream<first_look_t>& looks,
                          hls::stream<transform_t>& transforms, parts_t& out, const call_t call) {
    const dim_t n = call.task.m * call.panels * call.looks;
    first_look_t gate = {0, 0};
    bool is_first = true;
FIRST_SCALARS:
    for (dim_t i = 0; i < n; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1048576 avg = 64
        first_look_t look = {0, 0};
        if (call.looks_first) look = looks.read();
        if (call.looks == 2 && is_first) {
            gate = look;
        } else {
            part_t part = in.read();
            const transform_t by = transform_of(call.task, gate.peak, look, part);
            if (call.looks_twice) transforms.write(by);
            out.write(part);
        }
        is_first = !is_first;
        VECTOR_COUNT(SCALAR_CYCLES, 1);
    }
}

// ---- after the second look ----------------------------------------------------------------------

/// The scale of a part's codes: RMSNorm divides by the root of the mean square, all else that has
/// no complete scale yet is multiplied by the row's.
inline scale_t final_scale(const task_t& task, const part_t& part, const second_look_t& look,
                           scale_t codes) {
#pragma HLS INLINE
    const bool is_complete = task.op == CONTEXT || (task.op == HEAD && task.has_bias != 0);
    if (part.is_zero) return {0, 0};
    if (is_complete) return codes;
    scale_t by = scale_of(part.row);
    if (task.op == NORM) {
        const int exponent = 2 * (16 - part.room - task.fraction_bits);
        const scale_t eps = {task.eps_m, task.eps_e};
        by = inverse_root(plus(mean_of(look.squares, task.n, exponent), eps));
    }
    const scale_t once = times(codes, by);
    return task.op == GATE ? times(once, by) : once;
}

/// Scales, records and what codes are made with.
inline void second_scalars(parts_t& in, hls::stream<second_look_t>& looks,
                           hls::stream<quantiser_t>& quantisers, head_rows_t& heads,
                           rows_t& records, const call_t call) {
    const task_t& task = call.task;
    const bool finds_peak = call.looks_twice && task.first_stage <= H_PEAK;
    std::int32_t marks = 0;  // of the block's rows, a bit each
    part_walk_t at = first_part(call);
SECOND_SCALARS:
    for (dim_t i = 0; i < task.m * call.panels; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1048576 avg = 64
        part_t part = in.read();
        second_look_t look = {0, 0, 0};
        if (call.looks_twice) look = looks.read();
        row_t& row = part.row;
        if (look.changed != 0) row.mark |= 1;
        value_t peak = look.peak;
        if (task.op == GATE) {
            if (finds_peak) row.peak_h = static_cast<std::int32_t>(peak);
            peak = part.is_zero ? value_t(0) : value_t(row.peak_h);
        }
        if (task.op == CONTEXT) peak = row.peak;
        if (call.gives_codes) {
            const int exponent = task.op == CONTEXT ? row.exponent : part.exponent;
            const quantiser_t by = make_quantiser(peak, exponent);
            const scale_t scale = final_scale(task, part, look, by.scale);
            quantisers.write(by);
            if (task.op == HEAD) {
                heads.write({scale.m, scale.e, row.position, 0});
            } else {
                set_scale(row, scale);
            }
        }
        const std::int32_t before = at.panel == 0 && at.row == 0 ? 0 : marks;
        marks = before | (row.mark != 0 ? 1 << at.row : 0);
        if (at.panel == call.panels - 1) {
            if (((marks >> at.row) & 1) != 0) row.mark |= 1;
            records.write(row);
        }
        go_on(at, 1, call.panels);
    }
}

/// Scales and positions of a head's 16 rows, four a word; zeros beyond the last row.
inline void pack_scales(head_rows_t& in, words_t& out, const call_t call) {
    constexpr int FIELDS = LANES / (BLOCK_ROWS / SCALE_WORDS);
    const dim_t blocks = call.task.op == HEAD ? ceil_div(call.task.m, BLOCK_ROWS) : 0;
    dim_t row = 0;
    dim_t head = 0;
    dim_t left = call.task.m;
    word_t word;
PACK_SCALES:
    for (dim_t i = 0; i < blocks * call.heads * BLOCK_ROWS; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 1048576 avg = 768
        head_row_t own = {0, 0, 0, 0};
        if (row < left) own = in.read();
        for (int lane = 0; lane < LANES - FIELDS; ++lane) {
#pragma HLS UNROLL
            word.lane[lane] = word.lane[lane + FIELDS];
        }
        word.lane[LANES - FIELDS] = own.m;
        word.lane[LANES - FIELDS + 1] = own.e;
        word.lane[LANES - FIELDS + 2] = own.position;
        word.lane[LANES - FIELDS + 3] = own.spare;
        if (row % SCALE_WORDS == SCALE_WORDS - 1) out.write(word);
        if (++row == BLOCK_ROWS) {
            row = 0;
            if (++head == call.heads) {
                head = 0;
                left -= BLOCK_ROWS;
            }
        }
    }
}

}  // namespace vector
}  // namespace ecorl

// What vector_ops reads: the processes that begin its chain. Each loop over a port is one burst.
#pragma once

#include "task.hpp"

namespace ecorl {
namespace vector {

struct counted {
    static void product_word() {
        VECTOR_COUNT(LOAD_CYCLES, 1);
        VECTOR_COUNT(BYTES_READ, sizeof(word_t));
    }
    static void arrange_cycle() { VECTOR_COUNT(ARRANGE_CYCLES, 1); }
};

/// The rows' records; tokens or positions also go to where the table is read.
inline void load_rows(const row_t* rows, rows_t& out, hls::stream<dim_t>& entries,
                      const call_t call) {
LOAD_ROWS:
    for (dim_t r = 0; r < call.task.m; ++r) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 4096 avg = 64
        const row_t row = rows[r];
        out.write(row);
        if (call.task.op == EMBED) entries.write(row.token);
        if (call.task.op == HEAD) entries.write(row.position);
        VECTOR_COUNT(BYTES_READ, sizeof(row_t));
    }
}

/// Rows of the residual stream.
inline void load_x(const word_t* x, words_t& out, const call_t call) {
    const bool reads_x = call.reads_rows && call.task.op != EMBED;
    const dim_t words = reads_x ? call.task.m * call.words : 0;
LOAD_X:
    for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 2097152 avg = 16384
        out.write(x[i]);
        VECTOR_COUNT(BYTES_READ, sizeof(word_t));
    }
}

/// A run of words of `side`: attention's exponents and marks of a block of rows of a head; else all
/// constants, or the exponents of HEADER_HEADS heads and the constants behind them in turn.
struct side_run_t {
    std::int64_t first;
    dim_t words;
    bool is_exponents;
};

inline dim_t channel_words_of(const call_t& call) {
#pragma HLS INLINE
    if (call.task.op == NORM) return call.words;
    const bool has_channels = call.task.op != EMBED && call.task.op != CONTEXT;
    return has_channels ? CHANNEL_WORDS * call.looks * call.words : 0;
}

inline dim_t side_runs(const call_t& call) {
#pragma HLS INLINE
    if (call.task.op == CONTEXT) return ceil_div(call.task.m, BLOCK_ROWS) * call.heads;
    return call.task.op == HEAD ? 2 * ceil_div(call.heads, HEADER_HEADS) : 1;
}

/// Where the runs are: the head, and CONTEXT's block of rows.
struct side_walk_t {
    dim_t head, block;
    bool is_constants;
};

inline side_run_t side_run_at(const side_walk_t& at, const call_t& call) {
#pragma HLS INLINE
    const dim_t head_words = CHANNEL_WORDS * call.unit;
    const dim_t first = at.head / HEADER_HEADS * HEADER_WORDS + at.head * head_words;
    if (call.task.op == CONTEXT) {
        const std::int64_t line =
            static_cast<std::int64_t>(at.head) * (call.task.stride / BLOCK_ROWS);
        return {(line + at.block) * RESULT_WORDS, RESULT_WORDS, false};
    }
    if (call.task.op != HEAD) return {0, channel_words_of(call), false};
    if (!at.is_constants) return {first, HEADER_WORDS, true};
    return {first + HEADER_WORDS, least(call.heads - at.head, HEADER_HEADS) * head_words, false};
}

inline void go_on(side_walk_t& at, const call_t& call) {
#pragma HLS INLINE
    if (call.task.op == CONTEXT) {
        if (++at.head < call.heads) return;
        at.head = 0;
        ++at.block;
    } else {
        if (at.is_constants) at.head += HEADER_HEADS;
        at.is_constants = !at.is_constants;
    }
}

/// Constants of channels, weights of a norm, exponents of heads, or attention's results: each to
/// where it is needed.
inline void load_side(const word_t* side, words_t& channels, words_t& weights, words_t& exponents,
                      words_t& results, const call_t call) {
    const dim_t n_runs = side_runs(call);
    side_walk_t at = {0, 0, false};
LOAD_SIDE_RUN:
    for (dim_t i = 0; i < n_runs; ++i) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 65536 avg = 1
        const side_run_t run = side_run_at(at, call);
    LOAD_SIDE:
        for (dim_t j = 0; j < run.words; ++j) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 12288 avg = 768
            const word_t word = side[run.first + j];
            if (call.task.op == NORM) {
                weights.write(word);
            } else if (call.task.op == CONTEXT) {
                results.write(word);
            } else if (run.is_exponents) {
                exponents.write(word);
            } else {
                channels.write(word);
            }
            VECTOR_COUNT(SIDE_CYCLES, 1);
            VECTOR_COUNT(BYTES_READ, sizeof(word_t));
        }
        go_on(at, call);
    }
}

inline dim_t table_words_of(const call_t& call) {
#pragma HLS INLINE
    if (call.task.op == EMBED) return 1 + ceil_div(call.task.n, TABLE_LANES);
    return call.task.op == HEAD ? ROPE_WORDS : 0;
}

/// The rows' entries of the embedding, or of the angles.
inline void load_table(const table_word_t* table, hls::stream<dim_t>& entries, tables_t& embeddings,
                       tables_t& angles, const call_t call) {
    const dim_t words = table_words_of(call);
    const dim_t rows = words > 0 ? call.task.m : 0;
TABLE_ROW:
    for (dim_t r = 0; r < rows; ++r) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 4096 avg = 64
        const std::int64_t first = static_cast<std::int64_t>(entries.read()) * words;
    LOAD_TABLE:
        for (dim_t w = 0; w < words; ++w) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 4 max = 257 avg = 129
            const table_word_t word = table[first + w];
            if (call.task.op == EMBED) {
                embeddings.write(word);
            } else {
                angles.write(word);
            }
            VECTOR_COUNT(BYTES_READ, sizeof(table_word_t));
        }
    }
}

/// Codes of an embedding as words of values; the exponent of each row goes ahead of them.
inline void widen(tables_t& in, hls::stream<value_t>& exponents, words_t& out, const call_t call) {
    const dim_t steps = call.task.op == EMBED ? call.words + 1 : 0;
    dim_t step = 0;
    table_word_t codes;
WIDEN:
    for (dim_t i = 0; i < call.task.m * steps; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 2101248 avg = 0
        const bool is_upper = step % 2 == 0;
        if (step == 0 || !is_upper) codes = in.read();
        if (step == 0) {
            exponents.write(value_t(codes.lane[0]));
        } else {
            word_t word;
            for (int lane = 0; lane < LANES; ++lane) {
#pragma HLS UNROLL
                word.lane[lane] = value_t(is_upper ? codes.lane[LANES + lane] : codes.lane[lane]);
            }
            out.write(word);
        }
        step = step == call.words ? 0 : step + 1;
    }
}

}  // namespace vector
}  // namespace ecorl

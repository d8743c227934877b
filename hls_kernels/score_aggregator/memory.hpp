// What score_aggregator reads and writes: the processes at both ends of its streams.
#pragma once

#include "work.hpp"

namespace ecorl {
namespace score {

using rows_t = hls::stream<row_t>;
using words_t = hls::stream<word_t>;
using partials_t = hls::stream<partial_word_t>;

struct counted {
    static void product_word() {
        SCORE_COUNT(LOAD_CYCLES, 1);
        SCORE_COUNT(BYTES_READ, sizeof(word_t));
    }
    static void turn_cycle() { SCORE_COUNT(TURN_CYCLES, 1); }
};

inline bool reads_products(const task_t& task) {
#pragma HLS INLINE
    return task.op != FINISH;
}

inline plan_t plan_of(const task_t& task) {
#pragma HLS INLINE
    return {task.m, task.n, reads_products(task) ? task.parts : 0, 1, MAX_COLUMNS, 0, 0, 1, 0};
}

inline void load_rows(const row_t* rows, rows_t& out, const task_t task) {
LOAD_ROWS:
    for (dim_t r = 0; r < task.m; ++r) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 4096 avg = 64
        out.write(rows[r]);
        SCORE_COUNT(BYTES_READ, sizeof(row_t));
    }
}

inline void load_side(const word_t* side, words_t& out, const task_t task) {
    const dim_t words = reads_products(task) ? words_of(task.n) * CHANNEL_WORDS : 0;
LOAD_SIDE:
    for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 384 avg = 384
        out.write(side[i]);
        SCORE_COUNT(SIDE_CYCLES, 1);
        SCORE_COUNT(BYTES_READ, sizeof(word_t));
    }
}

inline void load_rewards(const word_t* rewards, words_t& out, const task_t task) {
    const dim_t words = task.op == REWARDS ? task.m * words_of(task.n) : 0;
LOAD_REWARDS:
    for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 16384 avg = 64
        out.write(rewards[i]);
        SCORE_COUNT(BYTES_READ, sizeof(word_t));
    }
}

/// Results, taken out of their words.
inline void load_outputs(const output_word_t* outputs, outputs_t& out, const task_t task) {
    output_word_t word = {};
    dim_t at = 0;
LOAD_OUTPUTS:
    for (dim_t i = 0; i < task.n_outputs; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 4096 avg = 64
        if (at == 0) {
            word = outputs[i / WORD_OUTPUTS];
            SCORE_COUNT(BYTES_READ, sizeof(output_word_t));
        }
        out.write(word.output[at]);
        at = at + 1 == WORD_OUTPUTS ? 0 : at + 1;
    }
}

/// Parts of all blocks of the vocabulary, for one block of rows after the other.
inline void load_partials(const partial_word_t* partials, partials_t& out, const task_t task) {
    const dim_t blocks = task.op == FINISH ? ceil_div(task.m, BLOCK_ROWS) : 0;
LOAD_ROW_BLOCK:
    for (dim_t block = 0; block < blocks; ++block) {
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 256 avg = 4
    LOAD_VOCABULARY_BLOCK:
        for (dim_t b = 0; b < task.n_blocks; ++b) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 128 avg = 63
            const dim_t first = (b * blocks + block) * BLOCK_PARTIALS;
        LOAD_PARTIALS:
            for (dim_t i = 0; i < BLOCK_PARTIALS; ++i) {
#pragma HLS PIPELINE II = 1
                out.write(partials[first + i]);
                SCORE_COUNT(PARTIAL_CYCLES, 1);
                SCORE_COUNT(BYTES_READ, sizeof(partial_word_t));
            }
        }
    }
}

inline void store_rows(rows_t& in, row_t* rows, const task_t task) {
STORE_ROWS:
    for (dim_t r = 0; r < task.m; ++r) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 4096 avg = 64
        rows[r] = in.read();
        SCORE_COUNT(BYTES_WRITTEN, sizeof(row_t));
    }
}

/// Results, four a word.
inline void store_outputs(outputs_t& in, output_word_t* outputs, const task_t task) {
    output_word_t word = {};
    dim_t at = 0;
STORE_OUTPUTS:
    for (dim_t i = 0; i < task.n_outputs; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 4096 avg = 64
        word.output[at] = in.read();
        at = at + 1 == WORD_OUTPUTS ? 0 : at + 1;
        if (at == 0 || i + 1 == task.n_outputs) {
            outputs[i / WORD_OUTPUTS] = word;
            SCORE_COUNT(BYTES_WRITTEN, sizeof(output_word_t));
        }
    }
}

inline void store_partials(partials_t& in, partial_word_t* partials, const task_t task) {
    const dim_t blocks = ceil_div(task.m, BLOCK_ROWS);
    const dim_t words = task.op == LOGITS ? blocks * BLOCK_PARTIALS : 0;
    const dim_t first = task.block * blocks * BLOCK_PARTIALS;
STORE_PARTIALS:
    for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 1024 avg = 16
        partials[first + i] = in.read();
        SCORE_COUNT(PARTIAL_CYCLES, 1);
        SCORE_COUNT(BYTES_WRITTEN, sizeof(partial_word_t));
    }
}

}  // namespace score
}  // namespace ecorl

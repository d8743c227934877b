// What score_aggregator reads and writes: the processes at both ends of its streams. Each loop over
// a port is one burst.
#pragma once

#include "task.hpp"

namespace ecorl {
namespace score {

struct counted {
    static void product_word() {
        SCORE_COUNT(LOAD_CYCLES, 1);
        SCORE_COUNT(BYTES_READ, sizeof(word_t));
    }
    static void arrange_cycle() { SCORE_COUNT(ARRANGE_CYCLES, 1); }
};

inline void load_rows(const row_t* rows, records_t& out, const call_t call) {
LOAD_ROWS:
    for (dim_t r = 0; r < call.task.m; ++r) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 4096 avg = 512
        out.write(rows[r]);
        SCORE_COUNT(BYTES_READ, sizeof(row_t));
    }
}

inline void load_side(const word_t* side, words_t& out, const call_t call) {
    const dim_t words = CHANNEL_WORDS * call.words;
LOAD_SIDE:
    for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 384 avg = 384
        out.write(side[i]);
        SCORE_COUNT(SIDE_CYCLES, 1);
        SCORE_COUNT(BYTES_READ, sizeof(word_t));
    }
}

inline void load_rewards(const word_t* rewards, words_t& out, const call_t call) {
    const dim_t words = call.task.op == REWARDS ? call.task.m * call.words : 0;
LOAD_REWARDS:
    for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 16384 avg = 512
        out.write(rewards[i]);
        SCORE_COUNT(BYTES_READ, sizeof(word_t));
    }
}

/// Results, four a word.
inline void load_outputs(const output_word_t* outputs, hls::stream<output_word_t>& out,
                         const call_t call) {
    const dim_t words = ceil_div(call.task.n_outputs, WORD_OUTPUTS);
LOAD_OUTPUTS:
    for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 1024 avg = 256
        out.write(outputs[i]);
        SCORE_COUNT(BYTES_READ, sizeof(output_word_t));
    }
}

/// Results one after the other.
inline void part_outputs(hls::stream<output_word_t>& in, outputs_t& out, const call_t call) {
    output_word_t word = {};
#pragma HLS ARRAY_PARTITION variable = word.output complete
PART_OUTPUTS:
    for (dim_t i = 0; i < call.task.n_outputs; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 4096 avg = 512
        if (i % WORD_OUTPUTS == 0) word = in.read();
        out.write(word.output[i % WORD_OUTPUTS]);
    }
}

/// Parts of all blocks of the vocabulary, for one block of rows after the other.
inline void load_partials(const partial_word_t* partials, partials_t& out, const call_t call) {
    const dim_t n_row_blocks = call.task.op == FINISH ? call.n_row_blocks : 0;
LOAD_ROW_BLOCK:
    for (dim_t block = 0; block < n_row_blocks; ++block) {
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 256 avg = 32
    LOAD_VOCABULARY_BLOCK:
        for (dim_t b = 0; b < call.task.n_blocks; ++b) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 128 avg = 63
            const dim_t first = (b * n_row_blocks + block) * BLOCK_PARTIALS;
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

inline void store_rows(records_t& in, row_t* rows, const call_t call) {
STORE_ROWS:
    for (dim_t r = 0; r < call.task.m; ++r) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 4096 avg = 512
        rows[r] = in.read();
        SCORE_COUNT(BYTES_WRITTEN, sizeof(row_t));
    }
}

/// Results, four a word.
inline void join_outputs(outputs_t& in, hls::stream<output_word_t>& out, const call_t call) {
    output_word_t word = {};
#pragma HLS ARRAY_PARTITION variable = word.output complete
JOIN_OUTPUTS:
    for (dim_t i = 0; i < call.task.n_outputs; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 4096 avg = 512
        const dim_t at = i % WORD_OUTPUTS;
        word.output[at] = in.read();
        if (at + 1 == WORD_OUTPUTS || i + 1 == call.task.n_outputs) out.write(word);
    }
}

inline void store_outputs(hls::stream<output_word_t>& in, output_word_t* outputs,
                          const call_t call) {
    const dim_t words = ceil_div(call.task.n_outputs, WORD_OUTPUTS);
STORE_OUTPUTS:
    for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 1024 avg = 256
        outputs[i] = in.read();
        SCORE_COUNT(BYTES_WRITTEN, sizeof(output_word_t));
    }
}

/// The parts of rows, four a word; rows beyond the last of a block have none.
inline void join_partials(hls::stream<partial_t>& in, partials_t& out, const call_t call) {
    const dim_t words = call.task.op == LOGITS ? call.n_row_blocks * BLOCK_PARTIALS : 0;
    dim_t row = 0;
    partial_word_t word;
#pragma HLS ARRAY_PARTITION variable = word.part complete
JOIN_PARTIALS:
    for (dim_t i = 0; i < words * WORD_PARTIALS; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 4096 avg = 512
        const partial_t none = {0, 0, 0};
        word.part[i % WORD_PARTIALS] = row < call.task.m ? in.read() : none;
        ++row;
        if (i % WORD_PARTIALS == WORD_PARTIALS - 1) out.write(word);
    }
}

inline void store_partials(partials_t& in, partial_word_t* partials, const call_t call) {
    const dim_t words = call.task.op == LOGITS ? call.n_row_blocks * BLOCK_PARTIALS : 0;
    const dim_t first = call.task.block * words;
STORE_PARTIALS:
    for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 1024 avg = 128
        partials[first + i] = in.read();
        SCORE_COUNT(PARTIAL_CYCLES, 1);
        SCORE_COUNT(BYTES_WRITTEN, sizeof(partial_word_t));
    }
}

}  // namespace score
}  // namespace ecorl

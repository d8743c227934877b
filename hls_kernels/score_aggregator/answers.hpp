// What becomes of the rows' sums: log-probs, gated rewards, and the logits of targets.
#pragma once

#include "task.hpp"

namespace ecorl {
namespace score {

/// Gated rewards: the means of objectives by their weights.
inline void divide(hls::stream<weighted_mean_t>& means, hls::stream<value_t>& rewards,
                   const call_t call) {
    const dim_t rows = call.task.op == REWARDS ? call.task.m : 0;
DIVIDE:
    for (dim_t r = 0; r < rows; ++r) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 4096 avg = 512
        rewards.write(mean_of(means.read()));
    }
}

/// The log-sum-exp of each row from its parts, a block of 16 rows after the other.
inline void merge_partials(partials_t& partials, hls::stream<std::int64_t>& sums,
                           const call_t call) {
    ECORL_BUFFER partial_word_t parts[BLOCK_PARTIALS][MAX_BLOCKS];
#pragma HLS AGGREGATE variable = parts
#pragma HLS BIND_STORAGE variable = parts type = ram_2p impl = bram
    const dim_t rows = call.task.op == FINISH ? call.task.m : 0;
MERGE_BLOCK:
    for (dim_t first = 0; first < rows; first += BLOCK_ROWS) {
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 256 avg = 32
    TAKE_PARTIALS:
        for (dim_t i = 0; i < call.task.n_blocks * BLOCK_PARTIALS; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 4 max = 512 avg = 256
            parts[i % BLOCK_PARTIALS][i / BLOCK_PARTIALS] = partials.read();
        }
        const dim_t n_rows = least(rows - first, BLOCK_ROWS);
    MERGE_ROW:
        for (dim_t r = 0; r < n_rows; ++r) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 16 avg = 16
            std::int32_t top = INT32_MIN;
        TOP:
            for (dim_t b = 0; b < call.task.n_blocks; ++b) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 128 avg = 63
                const partial_t part = parts[r / WORD_PARTIALS][b].part[r % WORD_PARTIALS];
                top = part.top > top ? part.top : top;
            }
            sint<64> sum = 0;
        MERGE:
            for (dim_t b = 0; b < call.task.n_blocks; ++b) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 128 avg = 63
                const partial_t part = parts[r / WORD_PARTIALS][b].part[r % WORD_PARTIALS];
                sum = sum + merged_part(part, top);
            }
            sums.write(log_of_sum(sum, top));
            SCORE_COUNT(MERGE_CYCLES, 2 * call.task.n_blocks);
        }
    }
}

/// The logits of a row, where its targets find theirs.
inline void keep_logits(words_t& logits, word_t kept[PANEL_WORDS], dim_t words) {
KEEP_LOGITS:
    for (dim_t w = 0; w < words; ++w) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 128 avg = 128
        kept[w] = logits.read();
    }
}

/// What the results of a row rest on.
struct answer_t {
    value_t reward;
    std::int64_t log_sum;
    std::int32_t mark;
};

/// A result by its row's answer, or the logit of its target where that lies in this block.
inline output_t answered(const output_t& asked, const answer_t& row, bool is_here, value_t logit,
                         std::int32_t op) {
#pragma HLS INLINE
    output_t output = asked;
    if (op == LOGITS) {
        if (is_here) output.value = static_cast<std::int32_t>(logit);
        return output;
    }
    value_t mark = row.mark;
    output.value = static_cast<std::int32_t>(row.reward);
    if (op == FINISH) output.value = log_prob(asked.value, row.log_sum, mark);
    output.mark = mark != 0 ? 1 : 0;
    return output;
}

/// Results of all rows, one row after the other, and the rows with their marks.
inline void answer(records_t& records, words_t& logits, hls::stream<value_t>& marks,
                   hls::stream<value_t>& rewards, hls::stream<std::int64_t>& log_sums,
                   outputs_t& outputs, records_t& records_out, outputs_t& outputs_out,
                   const call_t call) {
    ECORL_BUFFER word_t kept[PANEL_WORDS];
#pragma HLS AGGREGATE variable = kept
#pragma HLS BIND_STORAGE variable = kept type = ram_2p impl = bram
    const task_t task = call.task;
ANSWER_ROW:
    for (dim_t r = 0; r < task.m; ++r) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 4096 avg = 512
        row_t row = records.read();
        keep_logits(logits, kept, task.op == LOGITS ? call.words : 0);
        if (task.op != FINISH && marks.read() != 0) row.mark = 1;
        answer_t own = {0, 0, row.mark};
        if (task.op == REWARDS) own.reward = rewards.read();
        if (task.op == FINISH) own.log_sum = log_sums.read();
    ANSWER:
        for (dim_t i = 0; i < row.n_outputs; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 64 avg = 1
            const output_t asked = outputs.read();
            const dim_t from = asked.target - task.first_token;
            const bool is_here = from >= 0 && from < task.n;
            const dim_t at = is_here ? from : 0;
            const word_t word = kept[at / LANES];
#pragma HLS ARRAY_PARTITION variable = word.lane complete
            outputs_out.write(answered(asked, own, is_here, word.lane[at % LANES], task.op));
        }
        records_out.write(row);
    }
}

}  // namespace score
}  // namespace ecorl

// The operations of score_aggregator on one row that is on the chip.
#pragma once

#include "ecorl_blocks.hpp"
#include "score_aggregator.hpp"

#ifdef ECORL_NATIVE
#include <cstring>
#endif

#define ECORL_ROW static inline
#define ECORL_ROWS kernel
#include "ecorl_row_lanes.hpp"

#include "../vector_ops/rows.hpp"
#include "rows.hpp"
#undef ECORL_ROWS
#undef ECORL_ROW_LANE
#undef ECORL_ROW

#ifdef ECORL_CSIM
#include "score_aggregator_sim.hpp"
#define SCORE_COUNT(slot, amount) ::ecorl::score::count(::ecorl::score::slot, amount)
#else
#define SCORE_COUNT(slot, amount)
#endif

namespace ecorl {
namespace score {

/// Constants of the channels; only gates have a bias, zeros where it is missing.
struct side_t {
    value_t mantissa[MAX_COLUMNS];
    std::int32_t shift[MAX_COLUMNS];
    value_t bias[MAX_OBJECTIVES];
};

/// What a block of rows keeps.
struct block_t {
    row_t row[BLOCK_ROWS];
    partial_t part[BLOCK_ROWS][MAX_BLOCKS];
};

using outputs_t = hls::stream<output_t>;

inline channels_t channels_of(const task_t& task, const side_t& side) {
#pragma HLS INLINE
    return {side.mantissa, side.shift, task.input_shift};
}

/// The scaled outputs of a row, and its part of the log-sum-exp.
inline partial_t scaled_row(const task_t& task, const side_t& side, scale_t s, row_t& row,
                            const value_t acc[MAX_COLUMNS], value_t z[MAX_COLUMNS]) {
    value_t mark = 0;
    const partial_t part =
        kernel::block_row(acc, channels_of(task, side), task.exponent, s, z, task.n, mark);
    row.mark |= mark != 0 ? 1 : 0;
    SCORE_COUNT(WORK_CYCLES, 2 * words_of(task.n));
    return part;
}

/// The gates of a row.
inline void scaled_gates(const task_t& task, const side_t& side, scale_t s, row_t& row,
                         const value_t acc[MAX_COLUMNS], value_t z[MAX_COLUMNS]) {
    value_t mark = 0;
    kernel::gates_row(acc, channels_of(task, side), task.exponent, s, side.bias, z, task.n, mark);
    row.mark |= mark != 0 ? 1 : 0;
    SCORE_COUNT(WORK_CYCLES, task.n);
}

/// A row's targets: the logits of those that lie in this block of the vocabulary.
inline void pick_targets(const task_t& task, const row_t& row, const value_t z[MAX_COLUMNS],
                         outputs_t& in, outputs_t& out) {
PICK:
    for (dim_t i = 0; i < row.n_outputs; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 64 avg = 1
        output_t output = in.read();
        const dim_t at = output.target - task.first_token;
        if (at >= 0 && at < task.n) output.value = static_cast<std::int32_t>(z[at]);
        out.write(output);
    }
}

/// A row's log-probs.
inline void finish_outputs(const task_t& task, const row_t& row, const partial_t part[MAX_BLOCKS],
                           outputs_t& in, outputs_t& out) {
    const std::int64_t sum = log_sum(part, task.n_blocks);
    SCORE_COUNT(WORK_CYCLES, 2 * task.n_blocks);
FINISH_OUTPUTS:
    for (dim_t i = 0; i < row.n_outputs; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 64 avg = 1
        output_t output = in.read();
        value_t mark = row.mark;
        output.value = log_prob(output.value, sum, mark);
        output.mark = mark != 0 ? 1 : 0;
        out.write(output);
    }
}

/// A row's gated reward, for each of its results.
inline void reward_outputs(const task_t& task, const row_t& row, const value_t z[MAX_COLUMNS],
                           const value_t rewards[MAX_OBJECTIVES], outputs_t& in, outputs_t& out) {
    const value_t reward = kernel::gated_reward_row(rewards, z, task.n);
    SCORE_COUNT(WORK_CYCLES, 3 * task.n);
REWARD_OUTPUTS:
    for (dim_t i = 0; i < row.n_outputs; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 64 avg = 1
        output_t output = in.read();
        output.value = static_cast<std::int32_t>(reward);
        output.mark = row.mark;
        out.write(output);
    }
}

/// The operation of a task on one row.
inline void work_row(const task_t& task, const side_t& side, block_t& block, dim_t r,
                     const value_t acc[MAX_COLUMNS], const value_t rewards[MAX_OBJECTIVES],
                     outputs_t& in, outputs_t& out) {
    ECORL_BUFFER value_t z[MAX_COLUMNS];
#pragma HLS BIND_STORAGE variable = z type = ram_2p impl = bram
#pragma HLS ARRAY_PARTITION variable = z cyclic factor = 16
    row_t& row = block.row[r];
    if (task.op == FINISH) {
        finish_outputs(task, row, block.part[r], in, out);
        return;
    }
    const scale_t s = times({row.scale_m, row.scale_e}, {task.factor_m, task.factor_e});
    if (task.op == LOGITS) {
        block.part[r][0] = scaled_row(task, side, s, row, acc, z);
        pick_targets(task, row, z, in, out);
    } else {
        scaled_gates(task, side, s, row, acc, z);
        reward_outputs(task, row, z, rewards, in, out);
    }
}

}  // namespace score
}  // namespace ecorl

// How a task of vector_ops goes over its data.
#pragma once

#include "ecorl_blocks.hpp"
#include "vector_ops.hpp"

#ifdef ECORL_CSIM
#include "vector_ops_sim.hpp"
#define VECTOR_COUNT(slot, amount) ::ecorl::vector::count(::ecorl::vector::slot, amount)
#else
#define VECTOR_COUNT(slot, amount)
#endif

namespace ecorl {
namespace vector {

using rows_t = hls::stream<row_t>;
using words_t = hls::stream<word_t>;

// ---- how a task goes over its data ------------------------------------------------------------

inline bool reads_products(const task_t& task) {
#pragma HLS INLINE
    return task.op != EMBED && task.op != NORM;
}

/// Stages of a task as a plan: those of CONTEXT that read nothing are left out.
inline plan_t plan_of(const task_t& task) {
#pragma HLS INLINE
    plan_t plan = {task.m, task.n, reads_products(task) ? task.parts : 0, 1, MAX_COLUMNS, 0, 0,
                   1,      0};
    if (task.op == HEAD || task.op == CONTEXT) plan.width = MAX_HEADS * task.head;
    if (task.op == GATE) {
        plan.halves = 2;
        plan.width = GATE_COLUMNS;
        plan.first_stage = task.first_stage;
        plan.last_stage = task.last_stage;
    }
    if (task.op == CONTEXT) {
        plan.first_stage = most(task.first_stage, PEAK);
        plan.last_stage = task.last_stage;
        plan.parts = 1;
        plan.unit = task.head / LANES;
        plan.stride = task.stride;
    }
    return plan;
}

/// Whether a row's result is values, not codes.
inline bool gives_values(const task_t& task) {
#pragma HLS INLINE
    return task.op == EMBED || task.op == RESIDUAL || task.op == FIXED;
}

/// The part of a plan that gives codes.
inline plan_t codes_plan_of(const task_t& task) {
#pragma HLS INLINE
    plan_t plan = plan_of(task);
    const bool is_staged = task.op == GATE || task.op == CONTEXT;
    if (is_staged) plan.first_stage = most(plan.first_stage, GATE_CODES);
    if (gives_values(task)) plan.last_stage = -1;
    return plan;
}

inline bool reads_x(const task_t& task) {
#pragma HLS INLINE
    return task.op == NORM || task.op == RESIDUAL;
}

/// Words of the table that a row takes.
inline dim_t table_words_of(const task_t& task) {
#pragma HLS INLINE
    if (task.op == EMBED) return 1 + ceil_div(task.n, TABLE_LANES);
    return task.op == HEAD ? ROPE_WORDS : 0;
}

/// Words that `side` holds for 16 channels.
inline dim_t channel_words_of(const task_t& task) {
#pragma HLS INLINE
    if (task.op == NORM) return 1;
    return task.op == EMBED || task.op == CONTEXT ? 0 : CHANNEL_WORDS;
}

/// Whether a panel's constants must be read: a task with one panel keeps them.
inline bool is_fresh(const plan_t& plan, const walk_t& at) {
#pragma HLS INLINE
    return plan.n > plan.width || (at.row == 0 && at.stage == plan.first_stage);
}

/// Where the words of a panel go in a line.
inline layout_t layout_of(const task_t& task, dim_t columns, dim_t halves) {
#pragma HLS INLINE
    const dim_t words = words_of(columns);
    if (task.op == HEAD || task.op == CONTEXT) {
        return {words, task.head / LANES, HEAD_WORDS};
    }
    return {halves * words, words, GATE_COLUMNS / LANES};
}

}  // namespace vector
}  // namespace ecorl

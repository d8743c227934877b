// How a task of score_aggregator goes over its data.
#pragma once

#include <hls_stream.h>

#include "ecorl_dataflow.hpp"
#include "ecorl_products.hpp"
#include "lane_functions.hpp"
#include "score_aggregator.hpp"

#ifdef ECORL_CSIM
#include "score_aggregator_sim.hpp"
#define SCORE_COUNT(slot, amount) ::ecorl::score::count(::ecorl::score::slot, amount)
#else
#define SCORE_COUNT(slot, amount)
#endif

namespace ecorl {
namespace score {

using records_t = hls::stream<row_t>;
using words_t = hls::stream<word_t>;
using outputs_t = hls::stream<output_t>;
using partials_t = hls::stream<partial_word_t>;

/// A task with what its processes derive from it.
struct call_t {
    task_t task;
    products_t products;
    dim_t words;         ///< of a row of products; 0 where the task reads none
    dim_t n_row_blocks;  ///< blocks of 16 rows
};

inline call_t call_of(const task_t& task) {
#pragma HLS INLINE
    const bool reads_products = task.op != FINISH;
    const dim_t words = reads_products ? words_of(task.n) : 0;
    const products_t products = {reads_products ? task.m : 0, words, task.parts, 0, 1, 0, words, 1};
    return {task, products, words, ceil_div(task.m, BLOCK_ROWS)};
}

}  // namespace score
}  // namespace ecorl

#include "score_aggregator.hpp"

#include "answers.hpp"
#include "looks.hpp"
#include "memory.hpp"

namespace ecorl {
namespace score {

/// Load, the two looks, answers and store as processes of one dataflow region.
void score_dataflow(const word_t* acc, const word_t* side, const word_t* rewards, const row_t* rows,
                    const output_word_t* outputs, const partial_word_t* partials, row_t* rows_out,
                    output_word_t* outputs_out, partial_word_t* partials_out, const call_t call) {
#pragma HLS DATAFLOW
    hls::stream<row_t, 16> records("records");
    hls::stream<row_t, 64> records_kept("records_kept");
    hls::stream<row_t, 16> records_out("records_out");
    hls::stream<fixed_t, 16> scalings("scalings");
    hls::stream<word_t, 64> parts_of_sums("parts_of_sums");
    hls::stream<word_t, 64> sums("sums");
    hls::stream<word_t, 64> products("products");
    hls::stream<word_t, 64> channels("channels");
    hls::stream<word_t, 64> reward_words("reward_words");
    hls::stream<word_t, ROW_WORDS> scaled("scaled");
    hls::stream<word_t, ROW_WORDS> targets("targets");
    hls::stream<value_t, 16> tops("tops");
    hls::stream<value_t, 64> marks("marks");
    hls::stream<partial_t, 16> row_parts("row_parts");
    hls::stream<weighted_mean_t, 16> means("means");
    hls::stream<value_t, 16> row_rewards("row_rewards");
    hls::stream<std::int64_t, 16> log_sums("log_sums");
    hls::stream<partial_word_t, 64> parts_in("parts_in");
    hls::stream<partial_word_t, 16> parts_out("parts_out");
    hls::stream<output_word_t, 16> output_words("output_words");
    hls::stream<output_t, 64> asked("asked");
    hls::stream<output_t, 64> answers("answers");
    hls::stream<output_word_t, 16> answer_words("answer_words");
    const products_t from = call.products;
    ECORL_REGION(score_aggregator);
    ECORL_PROCESS(load_rows(rows, records, call));
    ECORL_PROCESS(load_products<counted>(acc, parts_of_sums, from));
    ECORL_PROCESS(sum_parts(parts_of_sums, sums, from));
    ECORL_PROCESS(arrange_rows<BLOCK_WORDS, counted>(sums, products, from));
    ECORL_PROCESS(load_side(side, channels, call));
    ECORL_PROCESS(load_rewards(rewards, reward_words, call));
    ECORL_PROCESS(load_outputs(outputs, output_words, call));
    ECORL_PROCESS(part_outputs(output_words, asked, call));
    ECORL_PROCESS(load_partials(partials, parts_in, call));
    ECORL_PROCESS(prepare(records, scalings, records_kept, call));
    ECORL_PROCESS(first_look(products, channels, scalings, scaled, targets, tops, marks, call));
    ECORL_PROCESS(second_look(scaled, reward_words, tops, row_parts, means, call));
    ECORL_PROCESS(divide(means, row_rewards, call));
    ECORL_PROCESS(merge_partials(parts_in, log_sums, call));
    ECORL_PROCESS(answer(records_kept, targets, marks, row_rewards, log_sums, asked, records_out,
                         answers, call));
    ECORL_PROCESS(store_rows(records_out, rows_out, call));
    ECORL_PROCESS(join_outputs(answers, answer_words, call));
    ECORL_PROCESS(store_outputs(answer_words, outputs_out, call));
    ECORL_PROCESS(join_partials(row_parts, parts_out, call));
    ECORL_PROCESS(store_partials(parts_out, partials_out, call));
    ECORL_RUN(score_aggregator);
}

}  // namespace score
}  // namespace ecorl

extern "C" void score_aggregator_krnl(const ecorl::score::task_t* task, const ecorl::word_t* acc,
                                      const ecorl::word_t* side, const ecorl::word_t* rewards,
                                      const ecorl::row_t* rows,
                                      const ecorl::score::output_word_t* outputs,
                                      const ecorl::score::partial_word_t* partials,
                                      ecorl::row_t* rows_out,
                                      ecorl::score::output_word_t* outputs_out,
                                      ecorl::score::partial_word_t* partials_out) {
#pragma HLS INTERFACE m_axi port = task bundle = gmem_rows offset = slave
#pragma HLS INTERFACE m_axi port = acc bundle = gmem_acc max_read_burst_length = \
    64 num_read_outstanding = 16 offset = slave
#pragma HLS INTERFACE m_axi port = side bundle = gmem_side max_read_burst_length = \
    64 num_read_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = rewards bundle = gmem_rewards max_read_burst_length = \
    64 num_read_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = rows bundle = gmem_rows max_read_burst_length = \
    64 num_read_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = outputs bundle = gmem_outputs max_read_burst_length = \
    64 num_read_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = partials bundle = gmem_partials max_read_burst_length = \
    64 num_read_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = rows_out bundle = gmem_rows max_write_burst_length = \
    64 num_write_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = outputs_out bundle = gmem_outputs max_write_burst_length = \
    64 num_write_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = partials_out bundle = gmem_partials max_write_burst_length = \
    64 num_write_outstanding = 2 offset = slave
#pragma HLS INTERFACE s_axilite port = return
#pragma HLS AGGREGATE variable = task
#pragma HLS AGGREGATE variable = acc
#pragma HLS AGGREGATE variable = side
#pragma HLS AGGREGATE variable = rewards
#pragma HLS AGGREGATE variable = rows
#pragma HLS AGGREGATE variable = outputs
#pragma HLS AGGREGATE variable = partials
#pragma HLS AGGREGATE variable = rows_out
#pragma HLS AGGREGATE variable = outputs_out
#pragma HLS AGGREGATE variable = partials_out
    const ecorl::score::task_t now = task[0];
    SCORE_COUNT(CALLS, 1);
    SCORE_COUNT(ROWS, now.m);
    SCORE_COUNT(OUTPUTS, now.n_outputs);
    SCORE_COUNT(BYTES_READ, sizeof(now));
    ecorl::score::score_dataflow(acc, side, rewards, rows, outputs, partials, rows_out, outputs_out,
                                 partials_out, ecorl::score::call_of(now));
#ifdef ECORL_CSIM
    ecorl::score::add_to_totals();
#endif
}

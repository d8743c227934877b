#include "score_aggregator.hpp"

#include "ecorl_dataflow.hpp"
#include "memory.hpp"

namespace ecorl {
namespace score {

// ---- a block of rows ------------------------------------------------------------------------

void take_channels(words_t& in, side_t& side, dim_t words) {
    dim_t kind = 0;
    dim_t to = 0;
TAKE_CHANNELS:
    for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 384 avg = 384
        const word_t word = in.read();
        for (int lane = 0; lane < LANES; ++lane) {
#pragma HLS UNROLL
            if (kind == 0) side.mantissa[to + lane] = word.lane[lane];
            if (kind == 1) side.shift[to + lane] = static_cast<std::int32_t>(word.lane[lane]);
            if (kind == 2 && to < MAX_OBJECTIVES) side.bias[to + lane] = word.lane[lane];
        }
        if (++kind == CHANNEL_WORDS) {
            kind = 0;
            to += LANES;
        }
    }
}

void begin_block(rows_t& records, partials_t& partials, const task_t& task, block_t& block,
                 dim_t rows) {
    const dim_t n_blocks = task.op == FINISH ? task.n_blocks : 0;
TAKE_BLOCKS:
    for (dim_t b = 0; b < n_blocks; ++b) {
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 128 avg = 63
    TAKE_PARTIALS:
        for (dim_t i = 0; i < BLOCK_PARTIALS; ++i) {
#pragma HLS PIPELINE II = 1
            const partial_word_t word = partials.read();
            for (int j = 0; j < WORD_PARTIALS; ++j) {
#pragma HLS UNROLL
                block.part[i * WORD_PARTIALS + j][b] = word.part[j];
            }
        }
    }
BEGIN_ROWS:
    for (dim_t r = 0; r < rows; ++r) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 16 avg = 16
        block.row[r] = records.read();
    }
}

/// Records, and the parts of this block of the vocabulary; rows beyond the last one have none.
void end_block(rows_t& records, partials_t& partials, const task_t& task, const block_t& block,
               dim_t rows) {
END_ROWS:
    for (dim_t r = 0; r < rows; ++r) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 16 avg = 16
        records.write(block.row[r]);
    }
    const dim_t words = task.op == LOGITS ? BLOCK_PARTIALS : 0;
GIVE_PARTIALS:
    for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 4 avg = 4
        partial_word_t word;
        for (int j = 0; j < WORD_PARTIALS; ++j) {
#pragma HLS UNROLL
            const dim_t r = i * WORD_PARTIALS + j;
            const partial_t none = {0, 0, 0};
            word.part[j] = r < rows ? block.part[r][0] : none;
        }
        partials.write(word);
    }
}

/// One row after the other; the next one comes in beside the one that is worked on.
void work_rows(words_t& products, words_t& rewards, outputs_t& in, outputs_t& out,
               const task_t& task, const side_t& side, block_t& block, dim_t rows) {
    const dim_t words = reads_products(task) ? words_of(task.n) : 0;
    const dim_t reward_words = task.op == REWARDS ? words : 0;
WORK_ROW:
    for (dim_t r = 0; r < rows; ++r) {
#pragma HLS DATAFLOW
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 16 avg = 16
        // Not static: channels between the processes, doubled by DATAFLOW.
        value_t line[MAX_COLUMNS];
#pragma HLS ARRAY_PARTITION variable = line cyclic factor = 16
        value_t line_rewards[MAX_OBJECTIVES];
#pragma HLS ARRAY_PARTITION variable = line_rewards cyclic factor = 16
        SCORE_COUNT(TAKE_CYCLES, words);
        take_values<MAX_COLUMNS>(products, line, words);
        take_values<MAX_OBJECTIVES>(rewards, line_rewards, reward_words);
        work_row(task, side, block, r, line, line_rewards, in, out);
    }
}

void work(rows_t& records, words_t& products, words_t& side_words, words_t& rewards,
          outputs_t& outputs, partials_t& partials, rows_t& records_out, outputs_t& outputs_out,
          partials_t& partials_out, const task_t task) {
    ECORL_BUFFER side_t side;
#pragma HLS BIND_STORAGE variable = side.mantissa type = ram_2p impl = bram
#pragma HLS BIND_STORAGE variable = side.shift type = ram_2p impl = lutram
#pragma HLS BIND_STORAGE variable = side.bias type = ram_2p impl = lutram
#pragma HLS ARRAY_PARTITION variable = side.mantissa cyclic factor = 16
#pragma HLS ARRAY_PARTITION variable = side.shift cyclic factor = 16
#pragma HLS ARRAY_PARTITION variable = side.bias cyclic factor = 16
    ECORL_BUFFER block_t block;
#pragma HLS BIND_STORAGE variable = block.part type = ram_2p impl = bram
#pragma HLS ARRAY_PARTITION variable = block.part cyclic factor = 4 dim = 1
#pragma HLS ARRAY_PARTITION variable = block.row complete
    take_channels(side_words, side, reads_products(task) ? words_of(task.n) * CHANNEL_WORDS : 0);
BLOCK:
    for (dim_t first = 0; first < task.m; first += BLOCK_ROWS) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 256 avg = 4
        const dim_t rows = least(task.m - first, BLOCK_ROWS);
        begin_block(records, partials, task, block, rows);
        work_rows(products, rewards, outputs, outputs_out, task, side, block, rows);
        end_block(records_out, partials_out, task, block, rows);
    }
}

/// Load, work and store as processes of one dataflow region.
void score_dataflow(const word_t* acc, const word_t* side, const word_t* rewards, const row_t* rows,
                    const output_word_t* outputs, const partial_word_t* partials, row_t* rows_out,
                    output_word_t* outputs_out, partial_word_t* partials_out, const task_t task) {
#pragma HLS DATAFLOW
    hls::stream<row_t, 16> records("records");
    hls::stream<row_t, 16> records_out("records_out");
    hls::stream<word_t, 64> tiles("tiles");
    hls::stream<word_t, 64> products("products");
    hls::stream<word_t, 64> side_words("side");
    hls::stream<word_t, 64> reward_words("rewards");
    hls::stream<output_t, 64> results("outputs");
    hls::stream<output_t, 64> results_out("outputs_out");
    hls::stream<partial_word_t, 64> parts("partials");
    hls::stream<partial_word_t, 16> parts_out("partials_out");
    ECORL_REGION(score_aggregator);
    ECORL_PROCESS(load_rows(rows, records, task));
    ECORL_PROCESS(load_products<counted>(acc, tiles, plan_of(task)));
    ECORL_PROCESS(turn_products<PANEL_WORDS, counted>(tiles, products, plan_of(task)));
    ECORL_PROCESS(load_side(side, side_words, task));
    ECORL_PROCESS(load_rewards(rewards, reward_words, task));
    ECORL_PROCESS(load_outputs(outputs, results, task));
    ECORL_PROCESS(load_partials(partials, parts, task));
    ECORL_PROCESS(work(records, products, side_words, reward_words, results, parts, records_out,
                       results_out, parts_out, task));
    ECORL_PROCESS(store_rows(records_out, rows_out, task));
    ECORL_PROCESS(store_outputs(results_out, outputs_out, task));
    ECORL_PROCESS(store_partials(parts_out, partials_out, task));
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
    256 num_read_outstanding = 16 offset = slave
#pragma HLS INTERFACE m_axi port = side bundle = gmem_side max_read_burst_length = \
    256 num_read_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = rewards bundle = gmem_rewards max_read_burst_length = \
    256 num_read_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = rows bundle = gmem_rows max_read_burst_length = \
    256 num_read_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = outputs bundle = gmem_outputs max_read_burst_length = \
    256 num_read_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = partials bundle = gmem_partials max_read_burst_length = \
    256 num_read_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = rows_out bundle = gmem_rows max_write_burst_length = \
    256 num_write_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = outputs_out bundle = gmem_outputs max_write_burst_length = \
    256 num_write_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = partials_out bundle = gmem_partials max_write_burst_length = \
    256 num_write_outstanding = 2 offset = slave
#pragma HLS INTERFACE s_axilite port = return
#pragma HLS AGGREGATE variable = task compact = bit
#pragma HLS AGGREGATE variable = acc compact = bit
#pragma HLS AGGREGATE variable = side compact = bit
#pragma HLS AGGREGATE variable = rewards compact = bit
#pragma HLS AGGREGATE variable = rows compact = bit
#pragma HLS AGGREGATE variable = outputs compact = bit
#pragma HLS AGGREGATE variable = partials compact = bit
#pragma HLS AGGREGATE variable = rows_out compact = bit
#pragma HLS AGGREGATE variable = outputs_out compact = bit
#pragma HLS AGGREGATE variable = partials_out compact = bit
    const ecorl::score::task_t now = task[0];
    SCORE_COUNT(CALLS, 1);
    SCORE_COUNT(ROWS, now.m);
    SCORE_COUNT(OUTPUTS, now.n_outputs);
    SCORE_COUNT(BYTES_READ, sizeof(now));
    ecorl::score::score_dataflow(acc, side, rewards, rows, outputs, partials, rows_out, outputs_out,
                                 partials_out, now);
#ifdef ECORL_CSIM
    ecorl::score::add_to_totals();
#endif
}

// The two looks at a row's outputs: the first scales them and finds the largest, the second sums
// powers of 2 below it. Between them a row waits in a FIFO, so that the next row's first look runs
// beside the second of the one before. NUMERICS.md defines both.
#pragma once

#include "task.hpp"

namespace ecorl {
namespace score {

/// The scales of rows as factors of their outputs, and the rows themselves.
inline void prepare(records_t& records, hls::stream<fixed_t>& scalings, records_t& out,
                    const call_t call) {
    const bool is_logits = call.task.op == LOGITS;
PREPARE:
    for (dim_t r = 0; r < call.task.m; ++r) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 4096 avg = 512
        const row_t row = records.read();
        const scale_t s =
            times({row.scale_m, row.scale_e}, {call.task.factor_m, call.task.factor_e});
        const int limit = is_logits ? SCORE_LIMIT : VALUE_LIMIT;
        const fixed_t fixed = make_fixed(call.task.exponent, s, SCORE_BITS, limit);
        if (call.words > 0) scalings.write(fixed);
        out.write(row);
    }
}

/// Constants of the channels of a block of the vocabulary, or of gates.
struct channel_buffers_t {
    word_t mantissa[PANEL_WORDS];
    word_t shift[PANEL_WORDS];
    word_t bias[PANEL_WORDS];
};

inline void take_channels(words_t& in, channel_buffers_t& channels, dim_t words) {
    dim_t kind = 0;
    dim_t to = 0;
TAKE_CHANNELS:
    for (dim_t i = 0; i < CHANNEL_WORDS * words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 384 avg = 384
        const word_t word = in.read();
        if (kind == 0) channels.mantissa[to] = word;
        if (kind == 1) channels.shift[to] = word;
        if (kind == 2) channels.bias[to] = word;
        if (++kind == CHANNEL_WORDS) {
            kind = 0;
            ++to;
        }
    }
}

/// Outputs of each row in units of log2: to the second look, where logits are targets to `targets`
/// too, the largest of each row and its mark. Gates have a bias; their sum with it is clipped.
inline void first_look(words_t& products, words_t& side, hls::stream<fixed_t>& scalings,
                       words_t& scaled, words_t& targets, hls::stream<value_t>& tops,
                       hls::stream<value_t>& marks, const call_t call) {
    ECORL_BUFFER channel_buffers_t channels;
#pragma HLS AGGREGATE variable = channels.mantissa
#pragma HLS AGGREGATE variable = channels.shift
#pragma HLS AGGREGATE variable = channels.bias
#pragma HLS BIND_STORAGE variable = channels.mantissa type = ram_2p impl = bram
#pragma HLS BIND_STORAGE variable = channels.shift type = ram_2p impl = bram
#pragma HLS BIND_STORAGE variable = channels.bias type = ram_2p impl = bram
    take_channels(side, channels, call.words);
    const bool is_logits = call.task.op == LOGITS;
    const value_t outside = -(1 << SCORE_LIMIT);
    word_t top = all_lanes(outside);
    word_t changed = all_lanes(0);
    fixed_t by;
    dim_t word = 0;
FIRST_LOOK:
    for (dim_t i = 0; i < call.products.m * call.words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 524288 avg = 65536
        if (word == 0) {
            by = scalings.read();
            top = all_lanes(outside);
            changed = all_lanes(0);
        }
        const word_t acc = products.read();
        const word_t mantissa = channels.mantissa[word];
        const word_t shift = channels.shift[word];
        const word_t bias = channels.bias[word];
        word_t logits;
        for (int j = 0; j < LANES; ++j) {
#pragma HLS UNROLL
            const value_t v = dequantised<exact>(acc.lane[j], mantissa.lane[j], shift.lane[j],
                                                 call.task.input_shift);
            value_t z = absolute<exact>(v, by, changed.lane[j]);
            // The sum is clipped once: within SCORE_LIMIT it is within VALUE_LIMIT too.
            if (!is_logits) {
                z = clipped<exact>(value_t(z + bias.lane[j]), SCORE_LIMIT, changed.lane[j]);
            }
            logits.lane[j] = z;
            const bool is_output = word * LANES + j < call.task.n;
            top.lane[j] = larger(top.lane[j], is_output ? z : outside);
        }
        scaled.write(logits);
        if (is_logits) targets.write(logits);
        SCORE_COUNT(FIRST_CYCLES, 1);
        if (++word == call.words) {
            word = 0;
            tops.write(largest(top));
            marks.write(any_bit(changed));
        }
    }
}

/// A word of powers of 2 below the ceiling: terms of a log-sum-exp, or weights of objectives. Lanes
/// from `live` on are 0.
inline word_t powers_of(const word_t& z, value_t ceiling, bool is_logits, dim_t live) {
#pragma HLS INLINE
    word_t powers;
    for (int j = 0; j < LANES; ++j) {
#pragma HLS UNROLL
        const int finer = is_logits ? EXP_SUM_BITS - EXP_BITS : 0;
        const value_t power = power_below<exact>(ceiling, z.lane[j], finer);
        powers.lane[j] = j < live ? power : value_t(0);
    }
    return powers;
}

/// The sum of sixteen rewards by their weights of at most 2^15, by a balanced tree.
inline sint<56> rewarded(const word_t& weights, const word_t& rewards) {
#pragma HLS INLINE
    sint<56> part[LANES];
#pragma HLS ARRAY_PARTITION variable = part complete
    for (int j = 0; j < LANES; ++j) {
#pragma HLS UNROLL
        part[j] = sint<56>(product<17, 32>(sint<17>(weights.lane[j]), rewards.lane[j]));
    }
    return folded<sum_of_both>(part);
}

/// Sums of each row's powers: its part of a log-sum-exp, or its rewards by their weights.
inline void second_look(words_t& scaled, words_t& rewards, hls::stream<value_t>& tops,
                        hls::stream<partial_t>& parts, hls::stream<weighted_mean_t>& means,
                        const call_t call) {
    const bool is_logits = call.task.op == LOGITS;
    partial_t part = {0, 0, 0};
    value_t ceiling = 0;
    sint<48> sum = 0;
    weighted_mean_t mean = {0, 0};
    dim_t word = 0;
SECOND_LOOK:
    for (dim_t i = 0; i < call.products.m * call.words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 524288 avg = 65536
        if (word == 0) {
            part = begin_partial(tops.read());
            ceiling = value_t(part.top) << SCORE_BITS;
            sum = 0;
            mean = {0, 0};
        }
        word_t reward = all_lanes(0);
        if (!is_logits) reward = rewards.read();
        const word_t powers =
            powers_of(scaled.read(), ceiling, is_logits, call.task.n - word * LANES);
        sum = sum + sint<48>(total(powers));
        mean.rewarded = mean.rewarded + rewarded(powers, reward);
        SCORE_COUNT(SECOND_CYCLES, 1);
        if (++word == call.words) {
            word = 0;
            part.sum = static_cast<std::int64_t>(sum);
            mean.weights = sint<24>(sum);
            if (is_logits) {
                parts.write(part);
            } else {
                means.write(mean);
            }
        }
    }
}

}  // namespace score
}  // namespace ecorl

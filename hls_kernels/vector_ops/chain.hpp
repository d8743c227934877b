// The chain that all words of vector_ops pass, one a cycle: what each operation does with a value
// is chosen lane by lane, so that one pipe of 16 lanes serves them all.
#pragma once

#include "lane_functions.hpp"
#include "task.hpp"

namespace ecorl {
namespace vector {

/// Shifts of 16 channels, 0..31.
struct shifts_t {
    sint<6> lane[LANES];
};

/// Peaks and changes of 16 lanes, from the first word of a part on.
struct running_look_t {
    word_t peaks, changes;
};

/// One comparison a lane and cycle; the lanes come together when the part has passed.
inline void look_at(running_look_t& seen, const word_t& value, const word_t& changed,
                    bool is_first) {
#pragma HLS INLINE
    for (int lane = 0; lane < LANES; ++lane) {
#pragma HLS UNROLL
        const value_t peak = is_first ? value_t(0) : seen.peaks.lane[lane];
        const value_t change = is_first ? value_t(0) : seen.changes.lane[lane];
        seen.peaks.lane[lane] = larger(peak, magnitude(value.lane[lane]));
        seen.changes.lane[lane] = value_t(change | changed.lane[lane]);
    }
}

// ---- the first look -----------------------------------------------------------------------------

/// What the first look does with one lane.
struct first_lane_t {
    value_t product, other;  ///< a sum of products; residual stream or embedding
    value_t mantissa, bias, shift;
};

/// A value as the second look takes it, or as it leaves.
inline value_t first_value(const task_t& task, const opening_t& by, const first_lane_t& in,
                           value_t& changed) {
#pragma HLS INLINE
    const bool is_embed = task.op == EMBED;
    value_t outside = 0;
    const value_t v = task.op == CONTEXT
                          ? exact::right(in.product, value_t(by.right))
                          : dequantised<exact>(in.product, in.mantissa, in.shift, task.input_shift);
    const value_t scaled = is_embed ? in.other : high(v, by.fixed.mantissa);
    const value_t fixed = shifted<exact>(scaled, by.fixed.by, outside);
    const value_t no_bias_changed = outside;
    const value_t biased = clipped<exact>(value_t(fixed + in.bias), VALUE_LIMIT, outside);
    const value_t biased_changed = outside;
    const value_t sum = clipped<exact>(value_t(in.other + biased), VALUE_LIMIT, outside);
    switch (task.op) {
        case EMBED:
            changed = no_bias_changed;
            return fixed;
        case NORM:
            return in.other;
        case RESIDUAL:
            changed = outside;
            return sum;
        case GATE:
        case CONTEXT:
            return v;
        case HEAD:
            if (!task.has_bias) return v;
            changed = biased_changed;
            return biased;
        default:
            changed = biased_changed;
            return biased;
    }
}

/// Constants of all channels of a row; they stay for all rows of a call.
struct channel_store_t {
    word_t mantissa[CHANNEL_GROUPS];
    word_t bias[CHANNEL_GROUPS];
    shifts_t shift[CHANNEL_GROUPS];
};

inline void take_channels(words_t& in, channel_store_t& channels, const call_t& call) {
#pragma HLS INLINE
    const bool has_channels =
        call.task.op != NORM && call.reads_products && call.task.op != CONTEXT;
    const dim_t words = has_channels ? call.looks * call.words * CHANNEL_WORDS : 0;
    dim_t group = 0;
    dim_t kind = 0;
TAKE_CHANNELS:
    for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 12288 avg = 768
        const word_t word = in.read();
        shifts_t shifts;
        for (int lane = 0; lane < LANES; ++lane) {
#pragma HLS UNROLL
            shifts.lane[lane] = sint<6>(word.lane[lane]);
        }
        if (kind == 0) channels.mantissa[group] = word;
        if (kind == 1) channels.shift[group] = shifts;
        if (kind == 2) channels.bias[group] = word;
        if (++kind == CHANNEL_WORDS) {
            kind = 0;
            ++group;
        }
    }
}

/// 16 values of a row, of which the first `live` count, from a word of products and one of the
/// residual stream or an embedding.
inline word_t first_word(const task_t& task, const opening_t& by, const word_t& product,
                         const word_t& other, const channel_store_t& channels, dim_t group,
                         dim_t live, word_t& changed) {
#pragma HLS INLINE
    const word_t mantissa = channels.mantissa[group];
    const word_t bias = channels.bias[group];
    const shifts_t shift = channels.shift[group];
    word_t values;
    for (int lane = 0; lane < LANES; ++lane) {
#pragma HLS UNROLL
        const first_lane_t in = {product.lane[lane], other.lane[lane], mantissa.lane[lane],
                                 bias.lane[lane], value_t(shift.lane[lane])};
        value_t change = 0;
        const value_t v = first_value(task, by, in, change);
        values.lane[lane] = lane < live ? v : value_t(0);
        changed.lane[lane] = lane < live ? change : value_t(0);
    }
    return values;
}

/// Sums of products to values; embeddings and the residual stream come by here too. Each word goes
/// on to the second look or, as a result, to memory; peaks and marks go to the scalars.
inline void dequantise(words_t& products, words_t& x, words_t& embeddings, words_t& channel_words,
                       hls::stream<opening_t>& openings, hls::stream<first_look_t>& looks,
                       words_t& out, words_t& results, const call_t call) {
    ECORL_BUFFER channel_store_t channels;
#pragma HLS AGGREGATE variable = channels.mantissa
#pragma HLS AGGREGATE variable = channels.bias
#pragma HLS AGGREGATE variable = channels.shift
#pragma HLS BIND_STORAGE variable = channels.mantissa type = ram_2p impl = uram
#pragma HLS BIND_STORAGE variable = channels.bias type = ram_2p impl = uram
#pragma HLS BIND_STORAGE variable = channels.shift type = ram_2p impl = uram
    const task_t& task = call.task;
    const dim_t row_words = call.looks * call.look_words;
    const dim_t words = call.looks_first ? task.m * call.panels * row_words : 0;
    const dim_t opening_words = task.op == CONTEXT ? call.unit : row_words;
    const dim_t tail = task.n % LANES == 0 ? dim_t(LANES) : task.n % LANES;
    take_channels(channel_words, channels, call);
    opening_t opening = {{0, {0, 0, 0, 0, 0}}, 0};
    running_look_t seen = {all_lanes(0), all_lanes(0)};
    part_walk_t at = first_part(call);
    dim_t of_look = 0;
    dim_t of_opening = 0;
    dim_t first_group = 0;
FIRST_LOOK:
    for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 16777216 avg = 65536
        if (of_opening == 0) opening = openings.read();
        const word_t none = all_lanes(0);
        const word_t product = call.reads_products ? products.read() : none;
        word_t other = none;
        if (call.reads_rows) other = task.op == EMBED ? embeddings.read() : x.read();
        const bool is_last = of_look == call.look_words - 1;
        word_t changed;
        const word_t value = first_word(task, opening, product, other, channels,
                                        first_group + at.word, is_last ? tail : LANES, changed);
        look_at(seen, value, changed, of_look == 0);
        if (is_last) looks.write({largest(seen.peaks), any_bit(seen.changes)});
        if (call.gives_values) results.write(value);
        if (call.looks_twice) out.write(value);
        of_look = is_last ? 0 : of_look + 1;
        of_opening = of_opening == opening_words - 1 ? 0 : of_opening + 1;
        const dim_t panel = at.panel;
        go_on(at, row_words, call.panels);
        if (at.panel != panel) first_group = at.panel == 0 ? 0 : first_group + call.unit;
        VECTOR_COUNT(FIRST_CYCLES, 1);
    }
}

// ---- side by side -------------------------------------------------------------------------------

constexpr int HALF_LANES = LANES / 2;

/// Half a word. A head's values [j, j + 8) and [j + d/2, j + d/2 + 8) meet in RoPE: both begin at a
/// multiple of 8, so they are whole halves of words, whatever the head's size.
struct half_word_t {
    value_t lane[HALF_LANES];
};

/// Where the partners of a word's halves stand: of the lower half at `lower`, of the upper at
/// `upper`; `is_crossed` where d/2 is an odd number of halves, so that a lower half's partner is an
/// upper one.
struct partners_t {
    dim_t lower, upper;
    bool is_crossed;
};

/// The k-th half of a head of `halves` pairs of halves meets the one half a head away.
inline dim_t partner_of(dim_t k, dim_t halves) {
#pragma HLS INLINE
    return k < halves ? k + halves : k - halves;
}

inline partners_t partners_at(dim_t word, dim_t halves) {
#pragma HLS INLINE
    const dim_t lower = partner_of(2 * word, halves) / 2;
    const dim_t upper = partner_of(2 * word + 1, halves) / 2;
    return {lower, upper, halves % 2 != 0};
}

constexpr int PAIR_RING = 16;  ///< words that are held
constexpr int PAIR_LAG = 8;    ///< words from a word to the steps in which its partners leave

inline dim_t place_in_ring(dim_t word) {
#pragma HLS INLINE
    return word & (PAIR_RING - 1);
}

/// Heads to the second look, and PAIR_LAG steps behind each word the word of its RoPE partners.
/// Partners stand at most half a head, 4 words, before the word or behind it, so they are read 4 to
/// 12 steps after they came in, whatever the head's size.
inline void pair_heads(words_t& in, words_t& values, words_t& seconds, const call_t& call) {
#pragma HLS INLINE
    watched<half_word_t> lower[PAIR_RING];
    watched<half_word_t> upper[PAIR_RING];
#pragma HLS AGGREGATE variable = lower
#pragma HLS AGGREGATE variable = upper
#pragma HLS BIND_STORAGE variable = lower type = ram_2p impl = lutram
#pragma HLS BIND_STORAGE variable = upper type = ram_2p impl = lutram
    const dim_t words = call.task.m * call.heads * call.unit;
    dim_t head = 0;  // place of the first word of the head whose partners leave
    dim_t word = 0;
PAIR_HEADS:
    for (dim_t i = 0; i < words + PAIR_LAG; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS DEPENDENCE variable = lower type = inter direction = RAW distance = 4 true
#pragma HLS DEPENDENCE variable = upper type = inter direction = RAW distance = 4 true
#pragma HLS LOOP_TRIPCOUNT min = 9 max = 16777216 avg = 65536
        ECORL_WATCH(lower, PAIR_HEADS, RAW, 4, i, call.task.m, call.heads, call.unit);
        ECORL_WATCH(upper, PAIR_HEADS, RAW, 4, i, call.task.m, call.heads, call.unit);
        if (i >= PAIR_LAG) {
            const partners_t at = partners_at(word, call.unit);
            const dim_t of_lower = at.is_crossed ? at.upper : at.lower;
            const dim_t of_upper = at.is_crossed ? at.lower : at.upper;
            const half_word_t a = lower[place_in_ring(head + of_lower)];
            const half_word_t b = upper[place_in_ring(head + of_upper)];
            word_t partner;
            for (int lane = 0; lane < HALF_LANES; ++lane) {
#pragma HLS UNROLL
                partner.lane[lane] = at.is_crossed ? b.lane[lane] : a.lane[lane];
                partner.lane[HALF_LANES + lane] = at.is_crossed ? a.lane[lane] : b.lane[lane];
            }
            seconds.write(partner);
            if (++word == call.unit) {
                word = 0;
                head = place_in_ring(head + call.unit);
            }
        }
        if (i < words) {
            const word_t own = in.read();
            half_word_t a, b;
            for (int lane = 0; lane < HALF_LANES; ++lane) {
#pragma HLS UNROLL
                a.lane[lane] = own.lane[lane];
                b.lane[lane] = own.lane[HALF_LANES + lane];
            }
            lower[place_in_ring(i)] = a;
            upper[place_in_ring(i)] = b;
            values.write(own);
        }
        VECTOR_COUNT(PAIR_CYCLES, 1);
    }
}

/// What belongs together side by side: gates and ups, or the halves of a head.
inline void pair(words_t& in, words_t& values, words_t& seconds, const call_t call) {
    if (call.task.op == HEAD) {
        pair_heads(in, values, seconds, call);
        return;
    }
    const dim_t words = call.looks_twice ? call.task.m * call.looks * call.look_words : 0;
    dim_t word = 0;
    bool is_up = false;
PAIR:
    for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 16777216 avg = 65536
        const word_t own = in.read();
        if (is_up) {
            seconds.write(own);
        } else {
            values.write(own);
        }
        if (++word == call.look_words) {
            word = 0;
            is_up = call.looks == 2 && !is_up;
        }
        VECTOR_COUNT(PAIR_CYCLES, 1);
    }
}

// ---- the second look ----------------------------------------------------------------------------

/// RMSNorm's weights, or RoPE's cosines and sines, of 16 values.
struct factor_lane_t {
    value_t weight, cosine, sine;
};

/// What the second look does with one lane: norm, rotate, gate, or nothing.
inline value_t second_value(const task_t& task, const transform_t& by, value_t own, value_t second,
                            const factor_lane_t& factor, value_t& square, value_t& changed) {
#pragma HLS INLINE
    const value_t full = exact::left(own, value_t(by.room));
    if (task.op == NORM) {
        square = norm_square<exact>(full);
        return normed<exact>(full, factor.weight);
    }
    if (task.op == GATE) {
        value_t outside = 0;
        const value_t h = gated<exact>(own, second, by.gate, outside);
        if (by.is_zero) return 0;
        if (by.gate.lost) changed = outside;
        return h;
    }
    if (!by.is_rotated) return own;
    return rotated_one<exact>(upper_16<exact>(own, by.room), upper_16<exact>(second, by.room),
                              factor.cosine, factor.sine);
}

/// 16 values of a row, and what their squares add up to.
inline word_t second_word(const task_t& task, const transform_t& by, const word_t& own,
                          const word_t& second, const word_t& factor, word_t& changed,
                          sint<36>& squares) {
#pragma HLS INLINE
    word_t values, square;
    for (int lane = 0; lane < LANES; ++lane) {
#pragma HLS UNROLL
        const value_t f = factor.lane[lane];
        const factor_lane_t of_lane = {f, value_t(sint<16>(f)), value_t(f >> 16)};
        square.lane[lane] = changed.lane[lane] = 0;
        values.lane[lane] = second_value(task, by, own.lane[lane], second.lane[lane], of_lane,
                                         square.lane[lane], changed.lane[lane]);
    }
    squares = total(square);
    return values;
}

/// The second look: what each operation makes of its values, and the peak of that.
inline void transform(words_t& values, words_t& seconds, words_t& factors,
                      hls::stream<transform_t>& transforms, hls::stream<second_look_t>& looks,
                      words_t& out, const call_t call) {
    const task_t& task = call.task;
    const bool has_seconds = task.op == GATE || task.op == HEAD;
    const bool has_factors = task.op == NORM || task.op == HEAD;
    const dim_t words = call.looks_twice ? task.m * call.panels * call.part_words : 0;
    transform_t by = {{0, 0, {0, {0, 0, 0, 0, 0}}, false}, 0, false, false};
    running_look_t seen = {all_lanes(0), all_lanes(0)};
    sint<46> squares = 0;
    dim_t word = 0;
SECOND_LOOK:
    for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 8388608 avg = 65536
        const bool is_first = word == 0;
        if (is_first) by = transforms.read();
        const word_t none = all_lanes(0);
        const word_t own = values.read();
        const word_t second = has_seconds ? seconds.read() : none;
        const word_t factor = has_factors ? factors.read() : none;
        word_t changed;
        sint<36> more = 0;
        const word_t value = second_word(task, by, own, second, factor, changed, more);
        look_at(seen, value, changed, is_first);
        const sint<46> before = is_first ? sint<46>(0) : squares;
        squares = sint<46>(before + more);
        const bool is_last = word == call.part_words - 1;
        if (is_last) looks.write({largest(seen.peaks), any_bit(seen.changes), squares});
        if (call.gives_codes) out.write(value);
        word = is_last ? 0 : word + 1;
        VECTOR_COUNT(SECOND_CYCLES, 1);
    }
}

/// Values to codes, 16 of a row at a time.
inline void quantise(words_t& values, hls::stream<quantiser_t>& quantisers,
                     hls::stream<code_line_t>& out, const call_t call) {
    const dim_t words = call.gives_codes ? call.task.m * call.panels * call.part_words : 0;
    quantiser_t by = {0, 0, {0, 0}};
    dim_t word = 0;
QUANTISE:
    for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 8388608 avg = 65536
        if (word == 0) by = quantisers.read();
        const word_t value = values.read();
        code_line_t line;
        for (int lane = 0; lane < LANES; ++lane) {
#pragma HLS UNROLL
            line.lane[lane] = code_t(coded<exact>(value.lane[lane], by));
        }
        out.write(line);
        word = word == call.part_words - 1 ? 0 : word + 1;
    }
}

}  // namespace vector
}  // namespace ecorl

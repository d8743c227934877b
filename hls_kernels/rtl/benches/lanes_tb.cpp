// Bench of the lane functions.
#include "Vaccumulate.h"
#include "Vdequantise.h"
#include "Vexponential.h"
#include "Vfixed.h"
#include "Vgate.h"
#include "Vlog_term.h"
#include "Vnorm.h"
#include "Vquantise.h"
#include "Vreciprocal.h"
#include "Vresidual.h"
#include "Vrotate.h"
#include "Vscore.h"
#include "Vweight.h"
#include "harness.hpp"
#include "operands.hpp"

namespace {

using bench::dice;
using bench::signed_32;
using one_t = std::array<std::int64_t, 1>;
using two_t = std::array<std::int64_t, 2>;
using three_t = std::array<std::int64_t, 3>;

struct dequantise_case {
    using model = Vdequantise;
    static one_t play(model& top, dice& draw) {
        const std::int32_t acc = draw.value(), mantissa = draw.one_in(9) ? 0 : draw.mantissa();
        const int down = draw.count(0, 31), input_shift = draw.count(0, 16);
        top.acc = acc;
        top.mantissa = mantissa;
        top.down = down;
        top.input_shift = input_shift;
        return {reference::dequantise(acc, mantissa, down, input_shift)};
    }
    static one_t seen(const model& top) { return {signed_32(top.out)}; }
};

struct fixed_case {
    using model = Vfixed;
    static two_t play(model& top, dice& draw) {
        const ecorl::fixed_t by = bench::any_fixed(draw);
        const std::int32_t value = draw.value();
        top.value = value;
        top.mantissa = by.mantissa;
        bench::drive_shifter(top, by.by);
        const auto result = reference::fixed(value, by);
        return {result.value, result.changed};
    }
    static two_t seen(const model& top) { return {signed_32(top.out), top.changed}; }
};

struct quantise_case {
    using model = Vquantise;
    static one_t play(model& top, dice& draw) {
        const std::int32_t peak = bench::any_peak(draw), value = draw.within(peak);
        const ecorl::quantiser_t by = reference::quantiser(peak, 0);
        top.value = value;
        top.room = by.room;
        top.factor = by.factor;
        return {reference::quantise(value, by)};
    }
    static one_t seen(const model& top) { return {bench::signed_of(top.code, 8)}; }
};

struct exponential_case {
    using model = Vexponential;
    static one_t play(model& top, dice& draw) {
        top.f = static_cast<std::uint16_t>(draw.natural(65535));
        return {reference::exponential(top.f)};
    }
    static one_t seen(const model& top) { return {bench::signed_of(top.out, 17)}; }
};

struct reciprocal_case {
    using model = Vreciprocal;
    static one_t play(model& top, dice& draw) {
        top.e = static_cast<std::uint32_t>(draw.natural(32768));
        return {reference::reciprocal(static_cast<std::int32_t>(top.e))};
    }
    static one_t seen(const model& top) { return {bench::signed_of(top.out, 17)}; }
};

struct gate_case {
    using model = Vgate;
    static two_t play(model& top, dice& draw) {
        const std::int32_t peak_gate = bench::any_peak(draw), peak_up = bench::any_peak(draw);
        const std::int32_t gate = draw.within(peak_gate), up = draw.within(peak_up);
        ecorl::gate_t by = reference::make_gate(peak_gate, peak_up, 0, bench::any_scale(draw, 0));
        by.fixed = bench::any_fixed(draw);
        top.gate_value = gate;
        top.up_value = up;
        top.room_gate = by.room_gate;
        top.room_up = by.room_up;
        top.mantissa = by.fixed.mantissa;
        bench::drive_shifter(top, by.fixed.by);
        const auto result = reference::gate(gate, up, by);
        return {result.value, result.changed};
    }
    static two_t seen(const model& top) { return {signed_32(top.out), top.changed}; }
};

struct norm_case {
    using model = Vnorm;
    static two_t play(model& top, dice& draw) {
        const std::int32_t peak = bench::any_peak(draw), value = draw.within(peak);
        const std::int32_t weight = draw.within(INT32_MAX);
        const int room = reference::room_of(peak);
        top.value = value;
        top.room = room;
        top.weight = weight;
        const auto result = reference::norm(value, room, weight);
        return {result.value, result.square};
    }
    static two_t seen(const model& top) { return {signed_32(top.out), signed_32(top.square)}; }
};

struct rotate_case {
    using model = Vrotate;
    static one_t play(model& top, dice& draw) {
        const std::int32_t peak = bench::any_peak(draw);
        const std::int32_t own = draw.within(peak), partner = draw.within(peak);
        const std::int32_t cosine = draw.within(1 << ecorl::ROPE_BITS);
        const std::int32_t sine = draw.within(1 << ecorl::ROPE_BITS);
        const int room = reference::room_of(peak);
        top.own = own;
        top.partner = partner;
        top.room = room;
        top.cosine = static_cast<std::uint16_t>(cosine);
        top.sine = static_cast<std::uint16_t>(sine);
        return {reference::rotate(own, partner, room, cosine, sine)};
    }
    static one_t seen(const model& top) { return {signed_32(top.out)}; }
};

struct residual_case {
    using model = Vresidual;
    using outputs = std::array<std::int64_t, 4>;
    static outputs play(model& top, dice& draw) {
        constexpr std::int32_t MOST = (1 << ecorl::VALUE_LIMIT) - 1;
        const std::int32_t value = draw.within(MOST), x = draw.within(MOST);
        const std::int32_t bias = draw.one_in(2) ? 0 : draw.within(MOST);
        top.value = value;
        top.bias = bias;
        top.x = x;
        const auto biased = reference::sum(value, bias);
        const auto sum = reference::sum(x, biased.value);
        return {biased.value, biased.changed, sum.value, biased.changed || sum.changed};
    }
    static outputs seen(const model& top) {
        return {signed_32(top.biased), top.biased_changed, signed_32(top.out), top.changed};
    }
};

struct log_term_case {
    using model = Vlog_term;
    static one_t play(model& top, dice& draw) {
        constexpr std::int32_t MOST = (1 << ecorl::SCORE_LIMIT) - 1;
        const std::int32_t largest = draw.within(MOST);
        const std::int32_t ceiling = ((largest + 65535) >> 16) << 16;
        const std::int32_t logit =
            largest - static_cast<std::int32_t>(draw.natural(largest + MOST));
        top.ceiling = ceiling;
        top.logit = logit;
        return {reference::log_term(ceiling, logit)};
    }
    static one_t seen(const model& top) { return {signed_32(top.out)}; }
};

// ---- attention --------------------------------------------------------------------------------

reference::key_t any_key(dice& draw) {
    const bool is_zero = draw.one_in(9);
    const std::int32_t value = is_zero ? 0 : draw.mantissa() >> 16;
    const int far = draw.one_in(9) ? 30000 : 40;
    return {{draw.one_in(9) ? 0 : draw.mantissa(), draw.count(-60, 60), value,
             is_zero ? 0 : draw.count(-far, far)},
            !draw.one_in(5)};
}

template <class Model>
void drive_key(Model& top, const reference::key_t& key) {
    top.value_mantissa = key.scales.value_m;
    top.value_exponent = key.scales.value_e;
    top.live = key.live;
}

struct score_case {
    using model = Vscore;
    static three_t play(model& top, dice& draw) {
        const std::int32_t acc = draw.within(256 * 127 * 127);
        const reference::key_t key = any_key(draw);
        const int right = draw.count(-24, 40);
        const ecorl::scale_t query = {draw.one_in(20) ? 0 : draw.mantissa(),
                                      -right - 67 - key.scales.key_e};
        top.acc = acc;
        top.key_mantissa = key.scales.key_m;
        top.key_exponent = key.scales.key_e;
        top.query_mantissa = query.m;
        top.base = -(query.e + 67);
        drive_key(top, key);
        const auto result = reference::score(acc, key, query);
        return {result.score, result.weighted, result.changed};
    }
    static three_t seen(const model& top) {
        return {signed_32(top.out), signed_32(top.weighted), top.changed};
    }
};

/// A score of a page whose largest ones, alone and times their values' scales, are at least its
/// own.
struct weight_case {
    using model = Vweight;
    static three_t play(model& top, dice& draw) {
        constexpr std::int32_t MOST = (1 << ecorl::SCORE_LIMIT) - 1;
        const reference::key_t key = any_key(draw);
        const std::int32_t score = key.live ? draw.within(MOST) : -(1 << ecorl::SCORE_LIMIT);
        const std::int32_t own = (score + 4095) >> 12;
        const std::int32_t more = draw.count(0, draw.one_in(9) ? 1000 : 24);
        const std::int32_t largest = own + more < (1 << 17) ? own + more : own;
        const std::int32_t weighted = own + key.scales.value_e + draw.count(0, 24);
        const std::int32_t ceiling = largest * (1 << ecorl::ATTENTION_BITS);
        const std::int32_t offset = 16 + weighted - largest;
        top.ceiling = ceiling;
        top.score = score;
        top.offset = offset;
        drive_key(top, key);
        const auto result = reference::weight(score, key, ceiling, offset);
        return {result.high, result.low, result.part};
    }
    static three_t seen(const model& top) {
        return {bench::signed_of(top.high_code, 8), bench::signed_of(top.low_code, 8),
                signed_32(top.alone)};
    }
};

struct accumulate_case {
    using model = Vaccumulate;
    static one_t play(model& top, dice& draw) {
        const std::int32_t context = draw.within(1 << 30), down = draw.count(0, 31);
        const std::int32_t upper = draw.within(64 * 127 * 127), lower = draw.within(64 * 127 * 127);
        top.context_value = context;
        top.upper = upper;
        top.lower = lower;
        top.down = down;
        return {reference::accumulate(context, upper, lower, down)};
    }
    static one_t seen(const model& top) { return {signed_32(top.out)}; }
};

}  // namespace

int main(int argc, char** argv) {
    const bench::options with = bench::read_options(argc, argv);
    bool right = true;
    right &= bench::run<dequantise_case>("dequantise", with);
    right &= bench::run<fixed_case>("fixed", with);
    right &= bench::run<quantise_case>("quantise", with);
    right &= bench::run<exponential_case>("exponential", with);
    right &= bench::run<reciprocal_case>("reciprocal", with);
    right &= bench::run<gate_case>("gate", with);
    right &= bench::run<norm_case>("norm", with);
    right &= bench::run<rotate_case>("rotate", with);
    right &= bench::run<residual_case>("residual", with);
    right &= bench::run<log_term_case>("log_term", with);
    right &= bench::run<score_case>("score", with);
    right &= bench::run<weight_case>("weight", with);
    right &= bench::run<accumulate_case>("accumulate", with);
    return right ? 0 : 1;
}

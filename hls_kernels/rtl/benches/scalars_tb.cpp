// Bench of the row scalars: scales, quantisers, shifts, roots and logarithms.
#include "Vinverse_root.h"
#include "Vlog2.h"
#include "Vmake_fixed.h"
#include "Vmake_gate.h"
#include "Vmean.h"
#include "Vnormalise.h"
#include "Vplus.h"
#include "Vquantiser.h"
#include "Vroom.h"
#include "Vtimes.h"
#include "harness.hpp"
#include "operands.hpp"

namespace {

using bench::dice;
using bench::signed_32;
using one_t = std::array<std::int64_t, 1>;
using scale_result = std::array<std::int64_t, 2>;

constexpr int FAR = 1 << 20;  // exponents

/// A scale that may be zero.
ecorl::scale_t scale_or_zero(dice& draw, int most_exponent) {
    return draw.one_in(9) ? ecorl::scale_t{0, 0} : bench::any_scale(draw, most_exponent);
}

scale_result result_of(ecorl::scale_t scale) {
    return {scale.m, scale.e};
}

template <class Model>
scale_result seen_scale(const Model& top) {
    return {signed_32(top.out_mantissa), signed_32(top.out_exponent)};
}

struct room_case {
    using model = Vroom;
    static one_t play(model& top, dice& draw) {
        const std::int32_t peak = bench::any_peak(draw);
        top.value = peak;
        return {reference::room_of(peak)};
    }
    static one_t seen(const model& top) { return {top.room}; }
};

struct normalise_case {
    using model = Vnormalise;
    static scale_result play(model& top, dice& draw) {
        const std::int64_t value =
            draw.one_in(20) ? -draw.natural(INT64_MAX) : draw.natural(INT64_MAX);
        const int exponent = draw.count(-FAR, FAR);
        top.value = value;
        top.exponent = exponent;
        return result_of(reference::normalise(value, exponent));
    }
    static scale_result seen(const model& top) { return seen_scale(top); }
};

struct times_case {
    using model = Vtimes;
    static scale_result play(model& top, dice& draw) {
        const ecorl::scale_t a = scale_or_zero(draw, FAR), b = scale_or_zero(draw, FAR);
        top.a_mantissa = a.m;
        top.a_exponent = a.e;
        top.b_mantissa = b.m;
        top.b_exponent = b.e;
        return result_of(reference::times(a, b));
    }
    static scale_result seen(const model& top) { return seen_scale(top); }
};

struct plus_case {
    using model = Vplus;
    static scale_result play(model& top, dice& draw) {
        const int far = draw.one_in(4) ? FAR : 40;
        const ecorl::scale_t a = scale_or_zero(draw, far), b = scale_or_zero(draw, far);
        top.a_mantissa = a.m;
        top.a_exponent = a.e;
        top.b_mantissa = b.m;
        top.b_exponent = b.e;
        return result_of(reference::plus(a, b));
    }
    static scale_result seen(const model& top) { return seen_scale(top); }
};

struct quantiser_case {
    using model = Vquantiser;
    using outputs = std::array<std::int64_t, 4>;
    static outputs play(model& top, dice& draw) {
        const std::int32_t peak = static_cast<std::int32_t>(draw.natural(INT32_MAX));
        const int exponent = draw.count(-FAR, FAR);
        top.peak = peak;
        top.exponent = exponent;
        const ecorl::quantiser_t by = reference::quantiser(peak, exponent);
        return {by.room, by.factor, by.scale.m, by.scale.e};
    }
    static outputs seen(const model& top) {
        return {top.out_room, top.out_factor, signed_32(top.out_mantissa),
                signed_32(top.out_exponent)};
    }
};

struct mean_case {
    using model = Vmean;
    static scale_result play(model& top, dice& draw) {
        const std::int64_t squares = draw.natural((std::int64_t{1} << 45) - 1);
        const std::int32_t count = static_cast<std::int32_t>(1 + draw.natural((1 << 20) - 2));
        const int exponent = draw.count(-FAR, FAR);
        top.squares = squares;
        top.count = count;
        top.exponent = exponent;
        return result_of(reference::mean(squares, count, exponent));
    }
    static scale_result seen(const model& top) { return seen_scale(top); }
};

struct inverse_root_case {
    using model = Vinverse_root;
    static scale_result play(model& top, dice& draw) {
        const ecorl::scale_t scale = bench::any_scale(draw, FAR);
        top.mantissa = scale.m;
        top.exponent = scale.e;
        return result_of(reference::inverse_root(scale));
    }
    static scale_result seen(const model& top) { return seen_scale(top); }
};

struct make_fixed_case {
    using model = Vmake_fixed;
    using outputs = std::array<std::int64_t, 6>;
    static outputs play(model& top, dice& draw) {
        const int far = draw.one_in(4) ? FAR : 24, limit = draw.one_in(2) ? 29 : 30;
        const int exponent = draw.count(-60, 60), fraction_bits = draw.count(0, 24);
        const int by = draw.count(-far, far);
        const ecorl::scale_t scale = {draw.mantissa(), -by - exponent - 32 - fraction_bits};
        top.exponent = exponent;
        top.scale_exponent = scale.e;
        top.fraction_bits = fraction_bits;
        top.limit_bits = limit;
        const ecorl::shifter made = reference::make_fixed(exponent, scale, fraction_bits, limit).by;
        return {made.limit, made.half, made.right, made.left, made.keep & 1, made.limit == 0};
    }
    static outputs seen(const model& top) {
        return {signed_32(top.limit), signed_32(top.half), top.right, top.left, top.keep, top.lost};
    }
};

struct make_gate_case {
    using model = Vmake_gate;
    using outputs = std::array<std::int64_t, 9>;
    static outputs play(model& top, dice& draw) {
        const std::int32_t gate = bench::any_peak(draw), up = bench::any_peak(draw);
        const int exponent = draw.count(-60, 60), by = draw.count(-40, 40);
        const ecorl::scale_t scale = {draw.mantissa(), -by - exponent - 48};
        top.peak_gate = gate;
        top.peak_up = up;
        top.exponent_gate = exponent;
        top.scale_mantissa = scale.m;
        top.scale_exponent = scale.e;
        const ecorl::gate_t made = reference::make_gate(gate, up, exponent, scale);
        const ecorl::shifter& shift = made.fixed.by;
        return {made.room_gate, made.room_up, made.fixed.mantissa, shift.limit, shift.half,
                shift.right,    shift.left,   shift.keep & 1,      made.lost};
    }
    static outputs seen(const model& top) {
        return {top.room_gate,
                top.room_up,
                signed_32(top.mantissa),
                signed_32(top.limit),
                signed_32(top.half),
                top.right,
                top.left,
                top.keep,
                top.lost};
    }
};

struct log2_case {
    using model = Vlog2;
    static one_t play(model& top, dice& draw) {
        const std::int64_t value = 1 + draw.natural(INT64_MAX - 1);
        top.value = value;
        return {reference::log2(value)};
    }
    static one_t seen(const model& top) { return {signed_32(top.out)}; }
};

}  // namespace

int main(int argc, char** argv) {
    const bench::options with = bench::read_options(argc, argv);
    bool right = true;
    right &= bench::run<room_case>("room", with);
    right &= bench::run<normalise_case>("normalise", with);
    right &= bench::run<times_case>("times", with);
    right &= bench::run<plus_case>("plus", with);
    right &= bench::run<quantiser_case>("quantiser", with);
    right &= bench::run<mean_case>("mean", with);
    right &= bench::run<inverse_root_case>("inverse_root", with);
    right &= bench::run<make_fixed_case>("make_fixed", with);
    right &= bench::run<make_gate_case>("make_gate", with);
    right &= bench::run<log2_case>("log2", with);
    return right ? 0 : 1;
}

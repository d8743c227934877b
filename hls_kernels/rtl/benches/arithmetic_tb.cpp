// Bench of the parts of pipelines: products, shifts, quotients and the trees over sixteen lanes.
#include "Vany_bit.h"
#include "Vdivide_127.h"
#include "Vdivide_factor.h"
#include "Vdivide_heads.h"
#include "Vdivide_inverse.h"
#include "Vdivide_mean.h"
#include "Vdivide_reward.h"
#include "Vmaximum.h"
#include "Vnarrow_product.h"
#include "Vpeak.h"
#include "Vproduct.h"
#include "Vshift_left.h"
#include "Vshift_right.h"
#include "Vshifted.h"
#include "Vtotal.h"
#include "harness.hpp"
#include "operands.hpp"

namespace {

using bench::dice;
using bench::signed_32;
using one_t = std::array<std::int64_t, 1>;
using two_t = std::array<std::int64_t, 2>;

struct product_case {
    using model = Vproduct;
    static one_t play(model& top, dice& draw) {
        const std::int32_t a = draw.value(), b = draw.value();
        top.a = a;
        top.b = b;
        return {reference::lane::high(a, b)};
    }
    static one_t seen(const model& top) { return {signed_32(top.out)}; }
};

struct narrow_product_case {
    using model = Vnarrow_product;
    static one_t play(model& top, dice& draw) {
        const std::int32_t a = draw.value(), b = draw.within(65535);
        top.a = a;
        top.b = b & 0x1FFFF;
        return {reference::lane::high_of_17(a, b)};
    }
    static one_t seen(const model& top) { return {signed_32(top.out)}; }
};

struct shift_left_case {
    using model = Vshift_left;
    static one_t play(model& top, dice& draw) {
        const std::int32_t value = draw.value(), by = draw.count(0, 31);
        top.value = value;
        top.by = by;
        return {reference::lane::left(value, by)};
    }
    static one_t seen(const model& top) { return {signed_32(top.out)}; }
};

struct shift_right_case {
    using model = Vshift_right;
    static one_t play(model& top, dice& draw) {
        const std::int32_t value = draw.value(), by = draw.count(0, 31);
        top.value = value;
        top.by = by;
        return {reference::lane::right(value, by)};
    }
    static one_t seen(const model& top) { return {signed_32(top.out)}; }
};

struct shifted_case {
    using model = Vshifted;
    static two_t play(model& top, dice& draw) {
        const ecorl::shifter by = bench::any_fixed(draw).by;
        const std::int32_t value = draw.within(INT32_MAX);
        top.value = value;
        bench::drive_shifter(top, by);
        const auto result = reference::shifted(value, by);
        return {result.value, result.changed};
    }
    static two_t seen(const model& top) { return {signed_32(top.out), top.changed}; }
};

/// A quotient whose operands have N and D bits, all of them.
template <class Model, int N, int D>
struct quotient_case {
    using model = Model;
    static one_t play(model& top, dice& draw) {
        const std::int64_t numerator = draw.natural((std::int64_t{1} << N) - 1);
        const std::int64_t divisor = 1 + draw.natural((std::int64_t{1} << D) - 2);
        top.numerator = numerator;
        top.divisor = divisor;
        return {reference::quotient<N, D>(numerator, divisor)};
    }
    static one_t seen(const model& top) { return {static_cast<std::int64_t>(top.out)}; }
};

struct maximum_case {
    using model = Vmaximum;
    static one_t play(model& top, dice& draw) {
        const ecorl::word_t word = bench::any_word(draw);
        bench::drive_word(top.values, word);
        return {reference::maximum(word)};
    }
    static one_t seen(const model& top) { return {signed_32(top.out)}; }
};

struct any_bit_case {
    using model = Vany_bit;
    static one_t play(model& top, dice& draw) {
        ecorl::word_t word = {};
        for (auto& lane : word.lane) lane = draw.one_in(2) ? 0 : 1 << draw.count(0, 31);
        bench::drive_word(top.values, word);
        return {reference::any_bit(word)};
    }
    static one_t seen(const model& top) { return {signed_32(top.out)}; }
};

struct total_case {
    using model = Vtotal;
    static one_t play(model& top, dice& draw) {
        const ecorl::word_t word = bench::any_word(draw);
        bench::drive_word(top.values, word);
        return {reference::total(word)};
    }
    static one_t seen(const model& top) { return {bench::signed_of(top.out, 36)}; }
};

/// Rows of random length, with words that do not count between those that do.
struct peak_case {
    using model = Vpeak;
    std::int32_t largest = 0;
    bool begun = false;
    one_t play(model& top, dice& draw) {
        const std::int32_t value = draw.within(INT32_MAX);
        const bool valid = !begun || !draw.one_in(3);
        const bool first = !begun || draw.one_in(9);
        top.valid = valid;
        top.first = first;
        top.value = value;
        begun = true;
        if (valid && first) largest = 0;
        if (valid) largest = std::max(largest, reference::magnitude(value));
        return {largest};
    }
    static one_t seen(const model& top) { return {signed_32(top.out)}; }
};

}  // namespace

int main(int argc, char** argv) {
    const bench::options with = bench::read_options(argc, argv);
    bool right = true;
    right &= bench::run<product_case>("product", with);
    right &= bench::run<narrow_product_case>("narrow_product", with);
    right &= bench::run<shift_left_case>("shift_left", with);
    right &= bench::run<shift_right_case>("shift_right", with);
    right &= bench::run<shifted_case>("shifted", with);
    right &= bench::run<quotient_case<Vdivide_factor, 30, 15>>("divide_factor", with);
    right &= bench::run<quotient_case<Vdivide_127, 31, 7>>("divide_127", with);
    right &= bench::run<quotient_case<Vdivide_mean, 62, 20>>("divide_mean", with);
    right &= bench::run<quotient_case<Vdivide_inverse, 61, 31>>("divide_inverse", with);
    right &= bench::run<quotient_case<Vdivide_reward, 55, 23>>("divide_reward", with);
    right &= bench::run<quotient_case<Vdivide_heads, 17, 8>>("divide_heads", with);
    right &= bench::run<maximum_case>("maximum", with);
    right &= bench::run<any_bit_case>("any_bit", with);
    right &= bench::run<total_case>("total", with);
    right &= bench::run<peak_case>("peak", with);
    return right ? 0 : 1;
}

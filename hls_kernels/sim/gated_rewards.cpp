#include "gated_rewards.hpp"

#include <vector>

#include "../score_aggregator/score_aggregator.hpp"
#include "card_memory.hpp"
#include "dataflow.hpp"
#include "row_table.hpp"

namespace ecorl {

namespace {

struct gating_t {
    const std::int32_t* acc;
    decoder_linear linear;
    std::int32_t exponent;
    const std::int32_t* scales;
    scale_t factor;
    const std::int32_t* rewards;
    std::int32_t m, n;
};

const value_t* values(const std::int32_t* p) {
    return reinterpret_cast<const value_t*>(p);
}

/// By the row functions.
void by_rows(const gating_t& g, std::int32_t* out, std::int32_t* marks) {
    const channels_t channels = {values(g.linear.mantissa), g.linear.shift, g.linear.input_shift};
    const value_t* const bias = g.linear.bias != nullptr ? values(g.linear.bias) : nullptr;
    std::vector<value_t> z(g.n);
    for (std::int64_t i = 0; i < g.m; ++i) {
        const scale_t s = times({g.scales[2 * i], g.scales[2 * i + 1]}, g.factor);
        value_t mark = 0;
        rows().gates(values(g.acc) + i * g.n, channels, g.exponent, s, bias, z.data(), g.n, mark);
        out[i] = static_cast<std::int32_t>(
            rows().gated_reward(values(g.rewards) + i * g.n, z.data(), g.n));
        marks[i] = mark != 0;
    }
}

/// By the kernel.
void by_kernel(const gating_t& g, std::int32_t* out, std::int32_t* marks) {
    const std::size_t words = static_cast<std::size_t>(words_of(g.n)) * g.m;
    std::vector<word_t> acc(words), rewards(words), side;
    to_products(values(g.acc), g.n, acc.data(), g.m, g.n);
    to_rows(values(g.rewards), rewards.data(), g.m, g.n);
    add_channels(side, g.linear, 0, g.n);
    std::vector<row_t> rows(g.m);
    std::vector<score::output_word_t> outputs(ceil_div(g.m, score::WORD_OUTPUTS));
    for (std::int32_t i = 0; i < g.m; ++i) {
        rows[i] = {};
        rows[i].scale_m = g.scales[2 * i];
        rows[i].scale_e = g.scales[2 * i + 1];
        rows[i].n_outputs = 1;
    }
    score::task_t task = {};
    task.op = score::REWARDS;
    task.m = g.m;
    task.n = g.n;
    task.parts = 1;
    task.input_shift = g.linear.input_shift;
    task.exponent = g.exponent;
    task.factor_m = g.factor.m;
    task.factor_e = g.factor.e;
    task.n_outputs = g.m;
    score_aggregator_krnl(&task, acc.data(), side.data(), rewards.data(), rows.data(),
                          outputs.data(), nullptr, rows.data(), outputs.data(), nullptr);
    for (std::int32_t i = 0; i < g.m; ++i) {
        const score::output_t& output =
            outputs[i / score::WORD_OUTPUTS].output[i % score::WORD_OUTPUTS];
        out[i] = output.value;
        marks[i] = output.mark;
    }
}

}  // namespace
}  // namespace ecorl

extern "C" std::int32_t score_gated_rewards(const std::int32_t* acc, const std::int32_t* mantissa,
                                            const std::int32_t* shift, const std::int32_t* bias,
                                            std::int32_t input_shift, std::int32_t exponent,
                                            const std::int32_t* scales, std::int32_t factor_m,
                                            std::int32_t factor_e, const std::int32_t* rewards,
                                            std::int32_t m, std::int32_t n, std::int32_t* out,
                                            std::int32_t* marks) {
    if (m < 1 || n < 1 || n > ecorl::MAX_OBJECTIVES) return -1;
    ecorl::gating_t gating = {acc, {}, exponent, scales, {factor_m, factor_e}, rewards, m, n};
    gating.linear.mantissa = mantissa;
    gating.linear.shift = shift;
    gating.linear.bias = bias;
    gating.linear.input_shift = input_shift;
    return ecorl::dataflow::guarded(
        [&] { (ecorl::kernels_chosen() ? ecorl::by_kernel : ecorl::by_rows)(gating, out, marks); });
}

// The gate of a reward with several objectives: a small MLP on the final norm of one token a row.
#include <algorithm>

#include "forward.hpp"
#include "forward_parts.hpp"

namespace ecorl {

void Forward::gate_logits(const value_t* x, const std::vector<std::int32_t>& at, value_t* z,
                          value_t* marks) {
    const auto m_all = static_cast<std::int32_t>(at.size());
    std::vector<code_t> codes;
    for (std::int32_t t0 = 0; t0 < m_all; t0 += ROW_BLOCK) {
        const std::int32_t m = std::min(ROW_BLOCK, m_all - t0);
        for (std::int32_t i = 0; i < m; ++i) {
            norm_row(model_.final_norm, x + std::int64_t{at[t0 + i]} * model_.hidden, i);
            marks[t0 + i] = wanted_marks_[at[t0 + i]];
        }
        const code_t* input = codes_.get();
        for (std::int32_t l = 0; l + 1 < model_.n_gate_layers; ++l) {
            const decoder_linear& map = model_.gate[l];
            multiply(map, input, m, acc_.get(), false);
            codes.resize(static_cast<std::size_t>(ROW_BLOCK) * map.n);
            hidden_gate(map, m, codes.data(), marks + t0);
            input = codes.data();
        }
        const decoder_linear& map = model_.gate[model_.n_gate_layers - 1];
        multiply(map, input, m, acc_.get(), false);
        last_gate(map, m, z + std::int64_t{t0} * map.n, marks + t0);
    }
}

/// A hidden layer's sums to the codes and scales of the next one's input.
void Forward::hidden_gate(const decoder_linear& map, std::int32_t m, code_t* codes,
                          value_t* marks) {
    for (std::int64_t i = 0; i < m; ++i) {
        value_t* const v = acc_.get() + i * map.n;
        rows().fixed(v, channels(map, 0), exponent_of(map, 0), row_scale_[i], SCORE_BITS,
                     map.bias ? values(map.bias) : nullptr, v, map.n, marks[i]);
        const quantiser_t by = make_quantiser(rows().relu(v, map.n), -SCORE_BITS);
        rows().codes(v, by, codes + i * map.n, map.n);
        row_scale_[i] = by.scale;
    }
}

/// The last layer's sums to gates in units of log2.
void Forward::last_gate(const decoder_linear& map, std::int32_t m, value_t* z, value_t* marks) {
    for (std::int64_t i = 0; i < m; ++i) {
        rows().gates(acc_.get() + i * map.n, channels(map, 0), exponent_of(map, 0),
                     times(row_scale_[i], {model_.gate_m, model_.gate_e}),
                     map.bias ? values(map.bias) : nullptr, z + i * map.n, map.n, marks[i]);
    }
}

}  // namespace ecorl

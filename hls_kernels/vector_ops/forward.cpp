#include "forward.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "../gemm_int8/gemm_int8.hpp"

namespace ecorl {

namespace {

// Rows of the group joined into runs: a long row alone, short rows up to kQueryBlock together.
std::vector<Run> runs_of(const Group& group) {
    std::vector<Run> runs;
    for (int32_t begin = 0; begin < group.n_tokens;) {
        int32_t end = begin;
        while (end < group.n_tokens) {
            int32_t next = end + 1;
            while (next < group.n_tokens && group.begins[next] == group.begins[end]) ++next;
            if (end > begin && next - begin > kQueryBlock) break;
            end = next;
        }
        const auto from = std::lower_bound(group.wanted.begin(), group.wanted.end(), begin);
        const auto to = std::lower_bound(from, group.wanted.end(), end);
        runs.push_back({begin, end, (int32_t)(from - group.wanted.begin()), (int32_t)(to - from)});
        begin = end;
    }
    return runs;
}

int32_t n_qkv_heads(const Decoder& model) {
    return model.n_heads + 2 * model.n_kv_heads;
}

}  // namespace

Forward::Forward(const Decoder& model, int32_t max_tokens, int32_t max_run)
    : model_(model), max_tokens_(max_tokens), attention_(max_run, model.head_dim) {
    const int64_t tokens = max_tokens, context = (int64_t)model.n_heads * model.head_dim;
    const int64_t heads = n_qkv_heads(model);
    const int64_t head_block = std::min(model.head_rows, model.head_block);
    const int64_t in = std::max<int64_t>({model.hidden, context, model.intermediate});
    const int64_t out = std::max<int64_t>(
        {heads * model.head_dim, model.hidden, 2LL * model.intermediate, head_block});
    x_.reset(new float[tokens * model.hidden]);
    heads_.reset(new int8_t[heads * tokens * model.head_dim]);
    scales_.reset(new float[heads * tokens + kPadding]);
    context_.reset(new float[tokens * context]);
    q_.reset(new int8_t[kRowBlock * in]);
    acc_.reset(new int32_t[kRowBlock * out]);
    scratch_.reset(new float[std::max<int64_t>(model.intermediate, head_block)]);
}

const float* Forward::run(const Group& group, const int32_t* ids) {
    const int64_t hidden = model_.hidden;
    const std::vector<Run> runs = runs_of(group);
    for (int32_t t = 0; t < group.n_tokens; ++t) {
        std::memcpy(x_.get() + t * hidden, model_.embedding + ids[t] * hidden,
                    (size_t)hidden * sizeof(float));
    }
    for (int32_t l = 0; l < model_.n_layers; ++l) {
        const DecoderLayer& layer = model_.layers[l];
        // After the last layer's keys and values, only the wanted tokens go on.
        const bool last = l + 1 == model_.n_layers;
        project_qkv(layer, group);
        attend(group, runs, last);
        int32_t m = group.n_tokens;
        if (last) {
            m = (int32_t)group.wanted.size();
            for (int32_t i = 0; i < m; ++i) {
                std::memmove(x_.get() + i * hidden, x_.get() + group.wanted[i] * hidden,
                             (size_t)hidden * sizeof(float));
            }
        }
        project_output(layer, m);
        mlp(layer, m);
    }
    return x_.get();
}

void Forward::project_qkv(const DecoderLayer& layer, const Group& group) {
    const int32_t d = model_.head_dim, heads = n_qkv_heads(model_), width = heads * d;
    const int32_t rotated = model_.n_heads + model_.n_kv_heads;
    for (int32_t t0 = 0; t0 < group.n_tokens; t0 += kRowBlock) {
        const int32_t m = std::min(kRowBlock, group.n_tokens - t0);
        vec_rmsnorm_quantise(x_.get() + (int64_t)t0 * model_.hidden, layer.attention_norm,
                             model_.rms_eps, q_.get(), row_scale_, m, model_.hidden);
        gemm_int8(q_.get(), layer.qkv.packed, acc_.get(), m, width, model_.hidden);
        for (int32_t i = 0; i < m; ++i) {
            const int64_t t = t0 + i, position = t - group.begins[t];
            const float* cosine = model_.cosine + position * (d / 2);
            const float* sine = model_.sine + position * (d / 2);
            for (int32_t h = 0; h < heads; ++h) {
                const float* bias = layer.qkv.bias ? layer.qkv.bias + h * d : nullptr;
                const int64_t slot = (int64_t)h * max_tokens_ + t;
                scales_[slot] = vec_rope_quantise(
                    acc_.get() + (int64_t)i * width + h * d, row_scale_[i], layer.qkv.scale + h * d,
                    bias, h < rotated ? cosine : nullptr, sine, heads_.get() + slot * d, d);
            }
        }
    }
}

void Forward::attend(const Group& group, const std::vector<Run>& runs, bool last_layer) {
    const int32_t d = model_.head_dim, share = model_.n_heads / model_.n_kv_heads;
    const int64_t stride = (int64_t)model_.n_heads * d;
    const float inv_sqrt_d = 1.0f / std::sqrt((float)d);
    std::vector<int32_t> begins, rows;
    for (const Run& run : runs) {
        const int32_t n = run.end - run.begin;
        begins.assign(group.begins.begin() + run.begin, group.begins.begin() + run.end);
        for (int32_t& b : begins) b -= run.begin;
        rows.clear();
        for (int32_t i = 0; last_layer && i < run.n_wanted; ++i) {
            rows.push_back(group.wanted[run.first_wanted + i] - run.begin);
        }
        const int32_t n_rows = last_layer ? run.n_wanted : n;
        if (n_rows == 0) continue;
        float* out = context_.get() + (last_layer ? run.first_wanted : run.begin) * stride;
        for (int32_t g = 0; g < model_.n_kv_heads; ++g) {
            const int64_t k = (int64_t)(model_.n_heads + g) * max_tokens_ + run.begin;
            const int64_t v = k + (int64_t)model_.n_kv_heads * max_tokens_;
            const KeysValues kv = {heads_.get() + k * d,
                                   scales_.get() + k,
                                   heads_.get() + v * d,
                                   scales_.get() + v,
                                   n,
                                   d};
            attention_.pack(kv);
            for (int32_t h = g * share; h < (g + 1) * share; ++h) {
                const int64_t q = (int64_t)h * max_tokens_ + run.begin;
                const Queries queries = {heads_.get() + q * d,
                                         scales_.get() + q,
                                         last_layer ? rows.data() : nullptr,
                                         n_rows,
                                         begins.data(),
                                         inv_sqrt_d};
                attention_.attend(kv, queries, out + h * d, stride);
            }
        }
    }
}

void Forward::project_output(const DecoderLayer& layer, int32_t m_all) {
    const int32_t width = model_.n_heads * model_.head_dim;
    for (int32_t t0 = 0; t0 < m_all; t0 += kRowBlock) {
        const int32_t m = std::min(kRowBlock, m_all - t0);
        vec_quantise(context_.get() + (int64_t)t0 * width, q_.get(), row_scale_, m, width);
        gemm_int8(q_.get(), layer.output.packed, acc_.get(), m, model_.hidden, width);
        vec_dequantise_add(acc_.get(), row_scale_, layer.output.scale, layer.output.bias,
                           x_.get() + (int64_t)t0 * model_.hidden, m, model_.hidden);
    }
}

void Forward::mlp(const DecoderLayer& layer, int32_t m_all) {
    const int32_t hidden = model_.hidden, inner = model_.intermediate;
    for (int32_t t0 = 0; t0 < m_all; t0 += kRowBlock) {
        const int32_t m = std::min(kRowBlock, m_all - t0);
        float* x = x_.get() + (int64_t)t0 * hidden;
        vec_rmsnorm_quantise(x, layer.mlp_norm, model_.rms_eps, q_.get(), row_scale_, m, hidden);
        gemm_int8(q_.get(), layer.gate_up.packed, acc_.get(), m, 2 * inner, hidden);
        vec_swiglu_quantise(acc_.get(), row_scale_, layer.gate_up.scale, q_.get(), row_scale_,
                            scratch_.get(), m, inner);
        gemm_int8(q_.get(), layer.down.packed, acc_.get(), m, hidden, inner);
        vec_dequantise_add(acc_.get(), row_scale_, layer.down.scale, layer.down.bias, x, m, hidden);
    }
}

void Forward::head_input(const float* x, int32_t m) {
    vec_rmsnorm_quantise(x, model_.final_norm, model_.rms_eps, q_.get(), row_scale_, m,
                         model_.hidden);
}

void Forward::score(const float* x, int32_t m_all, float* rewards) {
    for (int32_t t0 = 0; t0 < m_all; t0 += kRowBlock) {
        const int32_t m = std::min(kRowBlock, m_all - t0);
        head_input(x + (int64_t)t0 * model_.hidden, m);
        gemm_int8(q_.get(), model_.head[0], acc_.get(), m, 1, model_.hidden);
        for (int32_t i = 0; i < m; ++i) {
            rewards[t0 + i] = ((float)acc_[i] * model_.head_scale[0]) * row_scale_[i];
        }
    }
}

void Forward::logprobs(const float* x, const int32_t* targets, int32_t m_all,
                       float inverse_temperature, float* out) {
    LogSumExp state[kRowBlock];
    float target_z[kRowBlock];
    for (int32_t t0 = 0; t0 < m_all; t0 += kRowBlock) {
        const int32_t m = std::min(kRowBlock, m_all - t0);
        head_input(x + (int64_t)t0 * model_.hidden, m);
        for (int32_t i = 0; i < m; ++i) {
            state[i] = {-std::numeric_limits<float>::infinity(), 0.0};
            target_z[i] = 0.0f;
        }
        for (int32_t v0 = 0; v0 < model_.head_rows; v0 += model_.head_block) {
            const int32_t n = std::min(model_.head_block, model_.head_rows - v0);
            gemm_int8(q_.get(), model_.head[v0 / model_.head_block], acc_.get(), m, n,
                      model_.hidden);
            for (int32_t i = 0; i < m; ++i) {
                vec_log_sum_exp(acc_.get() + (int64_t)i * n, row_scale_[i] * inverse_temperature,
                                model_.head_scale + v0, scratch_.get(), &state[i], n);
                const int32_t target = targets[t0 + i] - v0;
                if (target >= 0 && target < n) target_z[i] = scratch_[target];
            }
        }
        for (int32_t i = 0; i < m; ++i) {
            out[t0 + i] =
                (float)((double)target_z[i] - (double)state[i].maximum - vec_log(state[i].sum));
        }
    }
}

}  // namespace ecorl

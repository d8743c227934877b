#include "forward.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "../gemm_int8/gemm_int8.hpp"
#include "dataflow.hpp"
#include "forward_parts.hpp"

namespace ecorl {

std::vector<std::int32_t> group_t::asked(bool in_last_layer) const {
    if (in_last_layer) return wanted;
    std::vector<std::int32_t> all(positions.size());
    std::iota(all.begin(), all.end(), 0);
    return all;
}

Forward::Forward(const decoder_model& model, std::int32_t max_tokens, std::int32_t max_pages)
    : model_(model), max_tokens_(max_tokens), cards_(model.n_cards) {
    const std::int64_t tokens = max_tokens, d = model.head_dim;
    std::int64_t out = model.hidden, widest = 0;
    for (std::int32_t c = 0; c < model.n_cards; ++c) {
        const decoder_card& card = model.cards[c];
        card_buffers& buffers = cards_[c];
        const std::int64_t heads = heads_of(card), width = card.n_heads * d;
        buffers.pages.reset(new Pages(max_pages, model.head_dim));
        buffers.heads.reset(new code_t[heads * tokens * d]);
        buffers.scales.reset(new scale_t[heads * tokens]);
        buffers.context.reset(new value_t[tokens * width]);
        buffers.exponents.reset(new std::int32_t[tokens * card.n_heads]);
        buffers.values.reset(new value_t[ROW_BLOCK * 2 * std::int64_t{card.intermediate}]);
        buffers.codes.reset(
            new code_t[ROW_BLOCK * std::max<std::int64_t>(width, card.intermediate)]);
        const std::int64_t own = std::max(heads * d, 2 * std::int64_t{card.intermediate});
        buffers.acc.reset(new value_t[ROW_BLOCK * own]);
        widest = std::max(widest, own);
        for (std::int32_t b = 0; b < card.n_head_blocks; ++b) {
            out = std::max<std::int64_t>(out, card.head[b].n);
        }
    }
    for (std::int32_t l = 0; l < model.n_gate_layers; ++l) {
        out = std::max<std::int64_t>(out, model.gate[l].n);
    }
    x_.reset(new value_t[tokens * model.hidden]);
    marks_.reset(new value_t[tokens]);
    codes_.reset(new code_t[ROW_BLOCK * std::int64_t{model.hidden}]);
    acc_.reset(new value_t[ROW_BLOCK * out]);
    partial_.reset(new value_t[ROW_BLOCK * std::max(out, widest)]);
    scratch_.reset(new value_t[std::max<std::int64_t>(model.hidden, 2 * d)]);
}

const value_t* Forward::run(const group_t& group, const std::int32_t* ids) {
    embed(group, ids);
    for (std::int32_t l = 0; l < model_.n_layers; ++l) {
        const bool last = l + 1 == model_.n_layers;
        std::int32_t m = group.n_tokens();
        const auto do_step = [&](const decoder_step& step, std::int32_t t0, std::int32_t n) {
            rows_step(step, l, group, t0, n);
        };
        for_row_blocks(BEFORE_ATTENTION, m, ROW_BLOCK, do_step);
        if (last) spread_marks(group);  // later ones reach no other token
        const std::vector<std::int32_t> asked = group.asked(last);
        for (std::int32_t c = 0; c < model_.n_cards; ++c) {
            for (std::int32_t g = 0; g < model_.cards[c].n_kv_heads; ++g) {
                for (const decoder_step& step : ATTENTION) {
                    if (step.what == operation::ROUTE) route(group, c, g);
                    if (step.what == operation::ATTEND) attend(group, asked, c, g);
                }
            }
        }
        if (last) {
            keep_wanted(group);
            m = static_cast<std::int32_t>(group.wanted.size());
        }
        for_row_blocks(AFTER_ATTENTION, m, ROW_BLOCK, do_step);
    }
    wanted_marks_.assign(marks_.get(), marks_.get() + group.wanted.size());
    return x_.get();
}

/// After the last keys and values only the wanted tokens go on.
void Forward::keep_wanted(const group_t& group) {
    for (std::size_t i = 0; i < group.wanted.size(); ++i) {
        const std::int64_t from = group.wanted[i];
        std::memmove(static_cast<void*>(x_.get() + i * model_.hidden),
                     x_.get() + from * model_.hidden, model_.hidden * sizeof(value_t));
        marks_[i] = marks_[from];
    }
}

void Forward::rows_step(const decoder_step& step, std::int32_t l, const group_t& group,
                        std::int32_t t0, std::int32_t m) {
    switch (step.what) {
        case operation::NORM:
            norm(layer_of(0, l).*step.norm, x_.get() + std::int64_t{t0} * model_.hidden, m);
            break;
        case operation::MULTIPLY:
            for (std::int32_t c = 0; c < model_.n_cards; ++c) {
                multiply(layer_of(c, l).*step.linear, codes_.get(), m, cards_[c].acc.get(), false);
            }
            break;
        case operation::MULTIPLY_PARTS:
            for (std::int32_t c = 0; c < model_.n_cards; ++c) {
                multiply(layer_of(c, l).*step.linear, cards_[c].codes.get(), m, acc_.get(), c > 0);
            }
            break;
        case operation::HEAD:
            heads(step, l, group, t0, m);
            break;
        case operation::CONTEXT:
            context(t0, m);
            break;
        case operation::GATE:
            gate(step, l, t0, m);
            break;
        case operation::RESIDUAL:
            add_residual(layer_of(0, l).*step.linear, t0, m);
            break;
        case operation::ROUTE:
        case operation::ATTEND:
            break;  // of all rows at once
    }
}

void Forward::embed(const group_t& group, const std::int32_t* ids) {
    for (std::int32_t t = 0; t < group.n_tokens(); ++t) {
        const std::int64_t id = ids[t];
        marks_[t] = 0;
        rows().embed(reinterpret_cast<const sint<16>*>(model_.embedding + id * model_.hidden),
                     model_.embedding_exponent[id], model_.fraction_bits,
                     x_.get() + std::int64_t{t} * model_.hidden, model_.hidden, marks_[t]);
    }
}

/// All later tokens of a sequence attend to a marked one.
void Forward::spread_marks(const group_t& group) {
    for (const segment_t& s : group.segments) {
        value_t carried = s.parent >= 0 ? marks_[group.segments[s.parent].end - 1] : value_t(0);
        for (std::int32_t t = s.begin; t < s.end; ++t) {
            carried |= marks_[t];
            marks_[t] = carried;
        }
    }
}

void Forward::norm(const decoder_norm& weights, const value_t* x, std::int32_t m) {
    for (std::int64_t i = 0; i < m; ++i) norm_row(weights, x + i * model_.hidden, i);
}

/// One row of x into the i-th of the codes.
void Forward::norm_row(const decoder_norm& weights, const value_t* x, std::int64_t i) {
    row_scale_[i] = rows().rmsnorm(x, values(weights.weight), weights.exponent,
                                   {model_.eps_m, model_.eps_e}, model_.fraction_bits,
                                   scratch_.get(), codes_.get() + i * model_.hidden, model_.hidden);
}

/// acc = codes [m, k] times the map, or acc += with `add`; exact.
void Forward::multiply(const decoder_linear& linear, const code_t* codes, std::int32_t m,
                       value_t* acc, bool add) {
    thread_local std::vector<std::int8_t> slice;
    for (std::int32_t s = 0; s < linear.n_slices; ++s) {
        const std::int32_t k0 = linear.slice[s], k = linear.slice[s + 1] - k0;
        const std::int8_t* a = bytes(codes);
        if (linear.n_slices > 1) {
            slice.resize(static_cast<std::size_t>(m) * k);
            for (std::int64_t i = 0; i < m; ++i) {
                std::memcpy(slice.data() + i * k, a + i * linear.k + k0, k);
            }
            a = slice.data();
        }
        const bool first = s == 0 && !add;
        std::int32_t* const out = integers(first ? acc : partial_.get());
        dataflow::check(gemm_int8(a, linear.packed[s], out, m, linear.n, k));
        if (first) continue;
        std::int32_t* const sum = integers(acc);
        const std::int32_t* const more = integers(partial_.get());
        for (std::int64_t j = 0; j < std::int64_t{m} * linear.n; ++j) sum[j] += more[j];
    }
}

void Forward::heads(const decoder_step& step, std::int32_t l, const group_t& group, std::int32_t t0,
                    std::int32_t m) {
    const std::int32_t d = model_.head_dim;
    for (std::int32_t c = 0; c < model_.n_cards; ++c) {
        const decoder_card& card = model_.cards[c];
        const decoder_linear& qkv = layer_of(c, l).*step.linear;
        const std::int32_t n = heads_of(card), rotated = card.n_heads + card.n_kv_heads;
        for (std::int64_t i = 0; i < m; ++i) {
            const std::int64_t at = std::int64_t{group.positions[t0 + i]} * (d / 2);
            const auto* cosine = reinterpret_cast<const sint<16>*>(model_.cosine + at);
            const auto* sine = reinterpret_cast<const sint<16>*>(model_.sine + at);
            for (std::int32_t h = 0; h < n; ++h) {
                const std::int64_t slot = std::int64_t{h} * max_tokens_ + t0 + i;
                cards_[c].scales[slot] = rows().head(
                    cards_[c].acc.get() + i * qkv.n + h * d, channels(qkv, h * d),
                    exponent_of(qkv, h), row_scale_[i], model_.fraction_bits,
                    qkv.bias ? values(qkv.bias + h * d) : nullptr, h < rotated ? cosine : nullptr,
                    sine, scratch_.get(), cards_[c].heads.get() + slot * d, d, marks_[t0 + i]);
            }
        }
    }
}

void Forward::route(const group_t& group, std::int32_t c, std::int32_t g) {
    card_buffers& own = cards_[c];
    const std::int64_t d = model_.head_dim;
    const std::int64_t k = std::int64_t{model_.cards[c].n_heads + g} * max_tokens_;
    const std::int64_t v = k + std::int64_t{model_.cards[c].n_kv_heads} * max_tokens_;
    own.pages->fill(group.segments, own.heads.get() + k * d, own.scales.get() + k,
                    own.heads.get() + v * d, own.scales.get() + v);
}

/// Contexts of the tokens `asked`, ascending.
void Forward::attend(const group_t& group, const std::vector<std::int32_t>& asked, std::int32_t c,
                     std::int32_t g) {
    const decoder_card& card = model_.cards[c];
    card_buffers& own = cards_[c];
    const std::int32_t d = model_.head_dim, share = card.n_heads / card.n_kv_heads;
    const std::int64_t stride = std::int64_t{card.n_heads} * d;
    std::int64_t done = 0;
    for (std::int32_t s = 0; s < static_cast<std::int32_t>(group.segments.size()); ++s) {
        const auto from = asked.begin() + done;
        const auto to = std::lower_bound(from, asked.end(), group.segments[s].end);
        const auto n = static_cast<std::int32_t>(to - from);
        for (std::int32_t h = g * share; n > 0 && h < (g + 1) * share; ++h) {
            const std::int64_t q = std::int64_t{h} * max_tokens_;
            own.pages->attend(
                group.segments, s, &*from, n, own.heads.get() + q * d, own.scales.get() + q,
                {model_.score_m, model_.score_e}, own.context.get() + done * stride + h * d, stride,
                own.exponents.get() + done * card.n_heads + h, card.n_heads, marks_.get());
        }
        done += n;
    }
}

void Forward::add_residual(const decoder_linear& linear, std::int32_t t0, std::int32_t m) {
    for (std::int64_t i = 0; i < m; ++i) {
        rows().residual(acc_.get() + i * linear.n, channels(linear, 0), exponent_of(linear, 0),
                        row_scale_[i], model_.fraction_bits,
                        linear.bias ? values(linear.bias) : nullptr,
                        x_.get() + (t0 + i) * model_.hidden, linear.n, marks_[t0 + i]);
    }
}

/// Contexts to each card's codes; the cards exchange an exponent and a peak a row.
void Forward::context(std::int32_t t0, std::int32_t m) {
    const std::int32_t d = model_.head_dim;
    row_peak peaks[ROW_BLOCK];
    for (std::int64_t i = 0; i < m; ++i) {
        peaks[i] = {0, NO_EXPONENT};
        for (std::int32_t c = 0; c < model_.n_cards; ++c) {
            const std::int32_t n = model_.cards[c].n_heads;
            const std::int32_t* e = cards_[c].exponents.get() + (t0 + i) * n;
            peaks[i].exponent = std::max(peaks[i].exponent, *std::max_element(e, e + n));
        }
        for (std::int32_t c = 0; c < model_.n_cards; ++c) {
            const std::int32_t n = model_.cards[c].n_heads;
            for (std::int32_t h = 0; h < n; ++h) {
                const std::int64_t at = (t0 + i) * n + h;
                const std::int32_t e = cards_[c].exponents[at];
                if (e == NO_EXPONENT) continue;
                const value_t peak = rows().align(cards_[c].context.get() + at * d,
                                                  std::min(peaks[i].exponent - e, 31), d);
                peaks[i].peak = larger(peaks[i].peak, peak);
            }
        }
    }
    for (std::int32_t c = 0; c < model_.n_cards; ++c) {
        const std::int64_t width = std::int64_t{model_.cards[c].n_heads} * d;
        for (std::int64_t i = 0; i < m; ++i) {
            const quantiser_t by = make_quantiser(peaks[i].peak, peaks[i].exponent);
            rows().codes(cards_[c].context.get() + (t0 + i) * width, by,
                         cards_[c].codes.get() + i * width, static_cast<dim_t>(width));
            row_scale_[i] = by.scale;
        }
    }
}

/// SwiGLU of the products into each card's codes; the cards exchange three peaks a row.
void Forward::gate(const decoder_step& step, std::int32_t l, std::int32_t t0, std::int32_t m) {
    value_t peak_gate[ROW_BLOCK], peak_up[ROW_BLOCK], peak_h[ROW_BLOCK];
    for (std::int32_t i = 0; i < m; ++i)
        peak_gate[i] = peak_up[i] = peak_h[i] = 0;  // {} leaves an ap_int as it is
    for (std::int32_t c = 0; c < model_.n_cards; ++c) {
        const decoder_linear& map = layer_of(c, l).*step.linear;
        const std::int64_t n = model_.cards[c].intermediate;
        for (std::int64_t i = 0; i < m; ++i) {
            const value_t* acc = cards_[c].acc.get() + i * 2 * n;
            value_t* v = cards_[c].values.get() + i * 2 * n;
            const auto width = static_cast<dim_t>(n);
            peak_gate[i] = larger(peak_gate[i], rows().dequantise(acc, channels(map, 0), v, width));
            peak_up[i] =
                larger(peak_up[i], rows().dequantise(acc + n, channels(map, width), v + n, width));
        }
    }
    const decoder_linear& map = layer_of(0, l).*step.linear;
    const int exponent_gate = exponent_of(map, 0), exponent_up = exponent_of(map, 1);
    const auto gate_of = [&](std::int64_t i) {
        return make_gate(peak_gate[i], peak_up[i], exponent_gate, row_scale_[i]);
    };
    const auto empty = [&](std::int64_t i) { return peak_gate[i] == 0 || peak_up[i] == 0; };
    for (std::int32_t c = 0; c < model_.n_cards; ++c) {
        const std::int64_t n = model_.cards[c].intermediate;
        for (std::int64_t i = 0; i < m; ++i) {
            if (empty(i)) continue;
            value_t* v = cards_[c].values.get() + i * 2 * n;
            const auto width = static_cast<dim_t>(n);
            peak_h[i] = larger(peak_h[i], rows().gate(v, v + n, gate_of(i), width, marks_[t0 + i]));
        }
    }
    for (std::int64_t i = 0; i < m; ++i) {
        const int exponent = empty(i) ? 0 : gated_exponent(gate_of(i), exponent_gate, exponent_up);
        const quantiser_t by = make_quantiser(peak_h[i], exponent);
        for (std::int32_t c = 0; c < model_.n_cards; ++c) {
            const std::int64_t n = model_.cards[c].intermediate;
            rows().codes(cards_[c].values.get() + i * 2 * n, by, cards_[c].codes.get() + i * n,
                         static_cast<dim_t>(n));
        }
        row_scale_[i] = times(times(by.scale, row_scale_[i]), row_scale_[i]);
    }
}

void Forward::rewards(const value_t* x, std::int32_t m_all, std::int32_t* out,
                      std::int32_t* marks) {
    const decoder_linear& head = model_.cards[0].head[0];
    for (std::int32_t t0 = 0; t0 < m_all; t0 += ROW_BLOCK) {
        const std::int32_t m = std::min(ROW_BLOCK, m_all - t0);
        norm(model_.final_norm, x + std::int64_t{t0} * model_.hidden, m);
        multiply(head, codes_.get(), m, acc_.get(), false);
        for (std::int64_t i = 0; i < m; ++i) {
            value_t clip = wanted_marks_[t0 + i];
            rows().fixed(acc_.get() + i * head.n, channels(head, 0), exponent_of(head, 0),
                         row_scale_[i], SCORE_BITS, head.bias ? values(head.bias) : nullptr,
                         reinterpret_cast<value_t*>(out) + (t0 + i) * head.n, head.n, clip);
            marks[t0 + i] = clip != 0;
        }
    }
}

void Forward::logprobs(const value_t* x, const std::int32_t* at, const std::int32_t* targets,
                       std::int32_t m_all, scale_t by, std::int32_t* out, std::int32_t* marks) {
    std::vector<partial_t> parts;
    for (std::int32_t t0 = 0; t0 < m_all;) {
        // Outputs after ROW_BLOCK rows of x at most; several targets may follow one row.
        std::int32_t t1 = t0, m = 0;
        const std::int32_t first = at[t0];
        while (t1 < m_all && at[t1] - first < ROW_BLOCK) m = at[t1++] - first + 1;
        norm(model_.final_norm, x + std::int64_t{first} * model_.hidden, m);
        value_t clips[ROW_BLOCK];
        for (std::int32_t i = 0; i < m; ++i) clips[i] = wanted_marks_[first + i];
        std::vector<value_t> z(t1 - t0, value_t(0));
        parts.clear();
        std::int32_t v0 = 0;
        for (std::int32_t c = 0; c < model_.n_cards; ++c) {
            for (std::int32_t b = 0; b < model_.cards[c].n_head_blocks; ++b) {
                const decoder_linear& head = model_.cards[c].head[b];
                multiply(head, codes_.get(), m, acc_.get(), false);
                for (std::int64_t i = 0; i < m; ++i) {
                    parts.push_back(rows().logits(acc_.get() + i * head.n, channels(head, 0),
                                                  exponent_of(head, 0), times(row_scale_[i], by),
                                                  head.n, clips[i]));
                }
                for (std::int32_t j = t0; j < t1; ++j) {
                    const std::int32_t target = targets[j] - v0;
                    if (target < 0 || target >= head.n) continue;
                    z[j - t0] = acc_[std::int64_t{at[j] - first} * head.n + target];
                }
                v0 += head.n;
            }
        }
        const auto n_blocks = static_cast<std::int32_t>(parts.size()) / m;
        std::vector<partial_t> row(n_blocks);
        std::vector<std::int64_t> sums(m);
        for (std::int32_t i = 0; i < m; ++i) {
            for (std::int32_t b = 0; b < n_blocks; ++b) row[b] = parts[b * m + i];
            sums[i] = log_sum(row.data(), n_blocks);
        }
        for (std::int32_t j = t0; j < t1; ++j) {
            const std::int32_t i = at[j] - first;
            value_t clip = clips[i];
            out[j] = log_prob(z[j - t0], sums[i], clip);
            marks[j] = clip != 0;
        }
        t0 = t1;
    }
}

}  // namespace ecorl

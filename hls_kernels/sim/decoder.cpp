#include "decoder.hpp"

#include <algorithm>
#include <atomic>
#include <new>
#include <thread>
#include <vector>

#include "card_forward.hpp"
#include "dataflow.hpp"
#include "forward.hpp"
#include "row_table.hpp"

using namespace ecorl;

namespace {

/// Tokens that a thread takes through all layers at a time: enough to read the weights seldom, few
/// enough to keep activations in cache. Families are never split.
constexpr std::int64_t GROUP_TOKENS = 256;

/// First segment of each group, then n_segments, and the most tokens and pages of a group.
struct plan_t {
    std::vector<std::int32_t> firsts;
    std::int64_t max_tokens = 0;
    std::int64_t max_pages = 0;
};

/// Pages that segments [first, last) can need: each may begin and end within a page.
std::int64_t pages_of(const decoder_batch& batch, std::int32_t first, std::int32_t last) {
    std::int64_t pages = 0;
    for (std::int32_t s = first; s < last; ++s) {
        pages += (batch.begin[s + 1] - batch.begin[s]) / PAGE + 2;
    }
    return pages;
}

plan_t plan_of(const decoder_batch& batch, std::int32_t threads) {
    const std::int64_t share = (batch.begin[batch.n_segments] + threads - 1) / threads;
    const std::int64_t target = std::min(GROUP_TOKENS, share);
    plan_t plan;
    std::int64_t tokens = 0, pages = 0;
    for (std::int32_t s = 0; s < batch.n_segments;) {
        std::int32_t next = s + 1;
        while (next < batch.n_segments && batch.parent[next] >= 0) ++next;
        const std::int64_t family = batch.begin[next] - batch.begin[s];
        if (plan.firsts.empty() || tokens + family > target) {
            plan.firsts.push_back(s);
            tokens = pages = 0;
        }
        tokens += family;
        pages += pages_of(batch, s, next);
        plan.max_tokens = std::max(plan.max_tokens, tokens);
        plan.max_pages = std::max(plan.max_pages, pages);
        s = next;
    }
    plan.firsts.push_back(batch.n_segments);
    return plan;
}

group_t group_of(const decoder_batch& batch, std::int32_t first, std::int32_t last) {
    group_t group;
    group.first = first;
    group.last = last;
    group.first_token = batch.begin[first];
    for (std::int32_t s = first; s < last; ++s) {
        segment_t segment = {};
        segment.begin = static_cast<std::int32_t>(batch.begin[s] - group.first_token);
        segment.end = static_cast<std::int32_t>(batch.begin[s + 1] - group.first_token);
        segment.parent = batch.parent[s] < 0 ? -1 : batch.parent[s] - first;
        group.segments.push_back(segment);
    }
    lay_out_pages(group.segments);
    for (const segment_t& s : group.segments) {
        for (std::int32_t i = 0; i < s.length(); ++i) group.positions.push_back(s.position + i);
    }
    const std::int64_t* const end = batch.outputs + batch.n_outputs;
    const auto* from = std::lower_bound(batch.outputs, end, batch.begin[first]);
    const auto* to = std::lower_bound(from, end, batch.begin[last]);
    group.first_output = from - batch.outputs;
    group.last_output = to - batch.outputs;
    for (const auto* output = from; output != to; ++output) {
        const auto token = static_cast<std::int32_t>(*output - group.first_token);
        if (group.wanted.empty() || group.wanted.back() != token) group.wanted.push_back(token);
    }
    return group;
}

/// Run `answer(forward, group, x)` for each group; results do not depend on who takes which.
template <typename Schedule, typename Answer>
std::int32_t run_groups(const decoder_model& model, const decoder_batch& batch,
                        std::int32_t threads, const Answer& answer) {
    std::atomic<std::int32_t> next{0}, failed{0};
    try {
        const plan_t plan = plan_of(batch, threads);
        const auto n_groups = static_cast<std::int32_t>(plan.firsts.size()) - 1;
        const auto work = [&]() {
            try {
                Schedule forward(model, static_cast<std::int32_t>(plan.max_tokens),
                                 static_cast<std::int32_t>(plan.max_pages));
                for (std::int32_t g = next++; g < n_groups && !failed; g = next++) {
                    const group_t group = group_of(batch, plan.firsts[g], plan.firsts[g + 1]);
                    if (group.wanted.empty()) continue;
                    answer(forward, group, forward.run(group, batch.ids + group.first_token));
                }
            } catch (const std::bad_alloc&) {
                failed = 1;
            } catch (const dataflow::fault&) {
                failed = dataflow::FAULT;
            }
        };
        std::vector<std::thread> helpers;
        helpers.reserve(static_cast<std::size_t>(std::max(threads, 1)));
        const std::int32_t n_helpers = std::min(threads, n_groups) - 1;
        try {
            for (std::int32_t i = 0; i < n_helpers; ++i) helpers.emplace_back(work);
        } catch (const std::exception&) {
            // No more threads to be had: those that started, and this one, do all the work.
        }
        work();
        for (std::thread& helper : helpers) helper.join();
    } catch (const std::bad_alloc&) {
        failed = 1;
    }
    return failed;
}

/// The same, by the kernels or by the host's schedule.
template <typename Answer>
std::int32_t for_groups(const decoder_model& model, const decoder_batch& batch,
                        std::int32_t threads, const Answer& answer) {
    if (batch.n_outputs == 0) return 0;
    if (!kernels_chosen()) return run_groups<Forward>(model, batch, threads, answer);
    if (!fits_kernels(model)) return 2;
    return run_groups<CardForward>(model, batch, threads, answer);
}

/// Row of the wanted tokens that each of the group's outputs reads.
std::vector<std::int32_t> wanted_rows(const decoder_batch& batch, const group_t& group) {
    std::vector<std::int32_t> at;
    for (std::int64_t o = group.first_output, i = 0; o < group.last_output; ++o) {
        while (group.wanted[i] != batch.outputs[o] - group.first_token) ++i;
        at.push_back(static_cast<std::int32_t>(i));
    }
    return at;
}

/// Row of the wanted tokens that holds a token of the batch.
std::int32_t wanted_row(const group_t& group, std::int64_t token) {
    const auto own = static_cast<std::int32_t>(token - group.first_token);
    const auto found = std::lower_bound(group.wanted.begin(), group.wanted.end(), own);
    return static_cast<std::int32_t>(found - group.wanted.begin());
}

/// Those of the batch's gated rewards whose tokens are in the group; all tokens are wanted.
void gated_rewards(Forward& forward, const group_t& group, const value_t* x,
                   const decoder_model& model, const decoder_batch& batch, std::int32_t* out,
                   std::int32_t* marks) {
    const auto m = static_cast<std::int32_t>(group.wanted.size());
    const std::int64_t n = model.cards[0].head[0].n;
    std::vector<std::int32_t> rewards(m * n), clipped(m);
    forward.rewards(x, m, rewards.data(), clipped.data());

    const std::int64_t* const end = batch.outputs + batch.n_outputs;
    const std::int64_t last_token = group.first_token + group.n_tokens();
    const auto first = std::lower_bound(batch.outputs, end, group.first_token) - batch.outputs;
    const auto last = std::lower_bound(batch.outputs, end, last_token) - batch.outputs;
    std::vector<std::int32_t> gates;  // rows, each once: those of a family may share their gate
    for (auto o = first; o < last; ++o) gates.push_back(wanted_row(group, batch.gates[o]));
    std::sort(gates.begin(), gates.end());
    gates.erase(std::unique(gates.begin(), gates.end()), gates.end());
    std::vector<value_t> z(gates.size() * n), gate_marks(gates.size());
    forward.gate_logits(x, gates, z.data(), gate_marks.data());

    for (auto o = first; o < last; ++o) {
        const std::int32_t row = wanted_row(group, batch.outputs[o]);
        const auto gate =
            std::lower_bound(gates.begin(), gates.end(), wanted_row(group, batch.gates[o])) -
            gates.begin();
        const auto* own = reinterpret_cast<const value_t*>(rewards.data() + row * n);
        out[o] = static_cast<std::int32_t>(
            rows().gated_reward(own, z.data() + gate * n, static_cast<dim_t>(n)));
        marks[o] = clipped[row] != 0 || gate_marks[gate] != 0;
    }
}

}  // namespace

extern "C" {

std::int32_t decoder_rewards(const decoder_model* model, const decoder_batch* batch,
                             std::int32_t* out, std::int32_t* marks, std::int32_t threads) {
    const std::int64_t n = model->cards[0].head[0].n;
    return for_groups(*model, *batch, threads,
                      [&](auto& forward, const group_t& group, const value_t* x) {
                          const auto m = static_cast<std::int32_t>(group.wanted.size());
                          std::vector<std::int32_t> values(m * n), clipped(m);
                          forward.rewards(x, m, values.data(), clipped.data());
                          std::int64_t o = group.first_output;
                          for (const std::int32_t row : wanted_rows(*batch, group)) {
                              std::copy_n(values.data() + row * n, n, out + o * n);
                              marks[o++] = clipped[row];
                          }
                      });
}

std::int32_t decoder_gated_rewards(const decoder_model* model, const decoder_batch* batch,
                                   std::int32_t* out, std::int32_t* marks, std::int32_t threads) {
    try {
        const std::int64_t n = batch->n_outputs;
        if (n == 0) return 0;
        std::vector<std::int64_t> tokens(batch->outputs, batch->outputs + n);
        tokens.insert(tokens.end(), batch->gates, batch->gates + n);
        std::sort(tokens.begin(), tokens.end());
        decoder_batch both = *batch;
        both.outputs = tokens.data();
        both.n_outputs = 2 * n;
        // The gate's small layers have no schedule of the kernels: the host's does the whole.
        return run_groups<Forward>(*model, both, threads,
                                   [&](Forward& forward, const group_t& group, const value_t* x) {
                                       gated_rewards(forward, group, x, *model, *batch, out, marks);
                                   });
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

std::int32_t decoder_logprobs(const decoder_model* model, const decoder_batch* batch,
                              std::int32_t m, std::int32_t e, std::int32_t* out,
                              std::int32_t* marks, std::int32_t threads) {
    return for_groups(*model, *batch, threads,
                      [&](auto& forward, const group_t& group, const value_t* x) {
                          const std::vector<std::int32_t> at = wanted_rows(*batch, group);
                          forward.logprobs(x, at.data(), batch->targets + group.first_output,
                                           static_cast<std::int32_t>(at.size()), {m, e},
                                           out + group.first_output, marks + group.first_output);
                      });
}

std::int32_t decoder_hidden(const decoder_model* model, const decoder_batch* batch,
                            std::int32_t* out, std::int32_t* marks, std::int32_t threads) {
    const std::int64_t n = model->hidden;
    return for_groups(*model, *batch, threads,
                      [&](auto& forward, const group_t& group, const value_t* x) {
                          std::int64_t o = group.first_output;
                          for (const std::int32_t row : wanted_rows(*batch, group)) {
                              for (std::int64_t j = 0; j < n; ++j) {
                                  out[o * n + j] = static_cast<std::int32_t>(x[row * n + j]);
                              }
                              marks[o++] = forward.mark(row);
                          }
                      });
}
}

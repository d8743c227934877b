#include "decoder.hpp"

#include <algorithm>
#include <atomic>
#include <new>
#include <thread>
#include <vector>

#include "forward.hpp"

using namespace ecorl;

namespace {

// Tokens that a thread takes through all layers at a time: enough to read the weights seldom, few
// enough to keep activations in cache. Rows are never split.
constexpr int32_t kGroupTokens = 256;

int32_t length_of(const DecoderBatch& batch, int32_t row) {
    return (int32_t)(batch.offsets[row + 1] - batch.offsets[row]);
}

struct Plan {
    std::vector<int32_t> firsts;  // first row of each group, then n_rows
    int32_t max_tokens = 0;       // of a group
    int32_t max_run = 0;          // upper bound of a run: longest row, or kQueryBlock
};

Plan plan_of(const DecoderBatch& batch, int32_t threads) {
    const int64_t share = (batch.offsets[batch.n_rows] + threads - 1) / threads;
    const int32_t target = (int32_t)std::min<int64_t>(kGroupTokens, share);
    Plan plan;
    int32_t tokens = 0;
    for (int32_t row = 0; row < batch.n_rows; ++row) {
        const int32_t length = length_of(batch, row);
        if (plan.firsts.empty() || tokens + length > target) {
            plan.firsts.push_back(row);
            tokens = 0;
        }
        tokens += length;
        plan.max_tokens = std::max(plan.max_tokens, tokens);
        plan.max_run = std::max(plan.max_run, length);
    }
    plan.firsts.push_back(batch.n_rows);
    plan.max_run = std::max(plan.max_run, std::min(kQueryBlock, plan.max_tokens));
    return plan;
}

enum Kind { kScore = 0, kLogprobs = 1, kHidden = 2 };

// Rows [first, last) of the batch, and which of their tokens the answer needs.
Group group_of(const DecoderBatch& batch, int32_t first, int32_t last, Kind kind) {
    Group group;
    group.first = first;
    group.last = last;
    group.n_tokens = 0;
    for (int32_t row = first; row < last; ++row) {
        const int32_t length = length_of(batch, row), begin = group.n_tokens;
        const int32_t end = begin + length;
        group.begins.insert(group.begins.end(), (size_t)length, begin);
        int32_t from = begin, to = end;
        if (kind == kScore) from = end - 1;
        if (kind == kLogprobs) {  // the token before each completion token
            from = end - 1 - batch.n_completion[row];
            to = end - 1;
        }
        for (int32_t t = from; t < to; ++t) group.wanted.push_back(t);
        group.n_tokens = end;
    }
    return group;
}

// Run `answer(forward, group, x)` for each group; results do not depend on who takes which.
template <typename Answer>
int32_t for_groups(const Decoder& model, const DecoderBatch& batch, Kind kind, int32_t threads,
                   const Answer& answer) {
    if (batch.n_rows == 0) return 0;
    std::atomic<int32_t> next{0}, failed{0};
    try {
        const Plan plan = plan_of(batch, threads);
        const int32_t n_groups = (int32_t)plan.firsts.size() - 1;
        const auto work = [&]() {
            try {
                Forward forward(model, plan.max_tokens, plan.max_run);
                for (int32_t g = next++; g < n_groups && !failed; g = next++) {
                    const Group group = group_of(batch, plan.firsts[g], plan.firsts[g + 1], kind);
                    if (group.wanted.empty()) continue;
                    const int32_t* ids = batch.ids + batch.offsets[group.first];
                    answer(forward, group, forward.run(group, ids));
                }
            } catch (const std::bad_alloc&) {
                failed = 1;
            }
        };
        std::vector<std::thread> helpers;
        helpers.reserve((size_t)std::max(threads, 1));
        const int32_t n_helpers = std::min(threads, n_groups) - 1;
        try {
            for (int32_t i = 0; i < n_helpers; ++i) helpers.emplace_back(work);
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

}  // namespace

extern "C" {

int32_t decoder_score(const Decoder* model, const DecoderBatch* batch, float* rewards,
                      int32_t threads) {
    return for_groups(*model, *batch, kScore, threads,
                      [&](Forward& forward, const Group& group, const float* x) {
                          forward.score(x, (int32_t)group.wanted.size(), rewards + group.first);
                      });
}

int32_t decoder_logprobs(const Decoder* model, const DecoderBatch* batch, float inverse_temperature,
                         float* out, int32_t threads) {
    return for_groups(*model, *batch, kLogprobs, threads,
                      [&](Forward& forward, const Group& group, const float* x) {
                          const int32_t* ids = batch->ids + batch->offsets[group.first];
                          int64_t at = 0;
                          for (int32_t row = 0; row < group.first; ++row) {
                              at += batch->n_completion[row];
                          }
                          std::vector<int32_t> targets;
                          for (const int32_t t : group.wanted) targets.push_back(ids[t + 1]);
                          forward.logprobs(x, targets.data(), (int32_t)targets.size(),
                                           inverse_temperature, out + at);
                      });
}

int32_t decoder_hidden(const Decoder* model, const DecoderBatch* batch, float* out,
                       int32_t threads) {
    return for_groups(*model, *batch, kHidden, threads,
                      [&](Forward&, const Group& group, const float* x) {
                          const int64_t at = batch->offsets[group.first] * model->hidden;
                          const int64_t n = (int64_t)group.n_tokens * model->hidden;
                          std::copy(x, x + n, out + at);
                      });
}
}

#include "card_pages.hpp"

#include <algorithm>

#include "../mha_int8/mha_int8.hpp"
#include "kv_cache_router_sim.hpp"

namespace ecorl {

namespace {

const beat_t* codes_of(const card_heads& heads, std::int32_t head, std::int32_t d) {
    const std::int64_t row = std::int64_t{head} * heads.stride;
    return static_cast<const beat_t*>(heads.codes) + row * token_beats(d);
}

const head_row_t* rows_of(const card_heads& heads, std::int32_t head) {
    return static_cast<const head_row_t*>(heads.rows) + std::int64_t{head} * heads.stride;
}

/// Tokens asked for that stand side by side in a segment, at most a block of the array.
struct run_t {
    std::int32_t segment, first, n;
};

std::vector<run_t> runs_of(const std::vector<segment_t>& segments,
                           const std::vector<std::int32_t>& asked) {
    std::vector<run_t> runs;
    std::int32_t segment = 0;
    for (const std::int32_t t : asked) {
        while (t >= segments[segment].end) ++segment;
        const bool goes_on = !runs.empty() && runs.back().segment == segment &&
                             runs.back().first + runs.back().n == t &&
                             runs.back().n < mha::QUERY_ROWS;
        if (!goes_on) runs.push_back({segment, t, 0});
        ++runs.back().n;
    }
    return runs;
}

}  // namespace

CardPages::CardPages(std::int32_t n_kv_heads, std::int32_t max_pages, std::int32_t head_dim)
    : d_(head_dim),
      max_pages_(max_pages),
      memory_(new std::uint8_t[std::int64_t{n_kv_heads} * max_pages *
                               kv_cache_router_page_bytes(head_dim)]) {}

void CardPages::fill(const std::vector<segment_t>& segments, const card_heads& heads) {
    entries_.clear();
    n_entries_ = 0;
    for (const segment_t& s : segments) {
        entries_.push_back(n_entries_);
        n_entries_ += s.n_pages;
    }
    table_.resize(std::int64_t{n_entries_} * heads.n_kv_heads);
    for (const bool is_child : {false, true}) {
        std::vector<router::job_t> jobs;
        for (std::int32_t h = 0; h < heads.n_kv_heads; ++h) {
            for (std::size_t i = 0; i < segments.size(); ++i) {
                const segment_t& s = segments[i];
                const std::int32_t end = s.position + s.length();
                for (std::int32_t p = 0; p < s.n_pages && (s.parent >= 0) == is_child; ++p) {
                    const std::int32_t kept = std::clamp(s.position - p * PAGE, 0, PAGE);
                    const bool is_own = p >= s.n_shared;
                    jobs.push_back({kept > 0 ? page_number(h, page_of(segments, s.parent, p)) : -1,
                                    kept,
                                    h * heads.stride + s.begin + std::max(p * PAGE - s.position, 0),
                                    std::min(PAGE, end - p * PAGE) - kept,
                                    is_own ? page_number(h, s.first_page + p - s.n_shared) : -1,
                                    entry(h, static_cast<std::int32_t>(i)) + p,
                                    {0, 0}});
                }
            }
        }
        if (jobs.empty()) continue;
        const std::int32_t keys = heads.n_heads, values = keys + heads.n_kv_heads;
        auto* const pages = reinterpret_cast<beat_t*>(memory_.get());
        kv_cache_router_krnl(codes_of(heads, keys, d_), codes_of(heads, values, d_),
                             rows_of(heads, keys), rows_of(heads, values), jobs.data(), pages,
                             pages, table_.data(), static_cast<std::int32_t>(jobs.size()), d_);
    }
    router::counts::add_to_totals();
}

void CardPages::attend(const std::vector<segment_t>& segments,
                       const std::vector<std::int32_t>& asked, const card_heads& heads,
                       scale_t score, void* context, void* results) const {
    const std::vector<run_t> runs = runs_of(segments, asked);
    const std::int32_t share = heads.n_heads / heads.n_kv_heads;
    std::vector<mha::query_block_t> blocks;
    for (std::int32_t h = 0; h < heads.n_heads; ++h) {
        for (const run_t& run : runs) {
            const segment_t& s = segments[run.segment];
            const std::int32_t last = s.position + run.first + run.n - 1 - s.begin;
            blocks.push_back({h * heads.stride + run.first, run.n, entry(h / share, run.segment),
                              last / PAGE + 1});
        }
    }
    mha_int8_krnl(blocks.data(), rows_of(heads, 0), codes_of(heads, 0, d_), table_.data(),
                  reinterpret_cast<const beat_t*>(memory_.get()), static_cast<word_t*>(context),
                  static_cast<mha::head_result_t*>(results),
                  static_cast<std::int32_t>(blocks.size()), d_, score.m, score.e);
}

}  // namespace ecorl

#include "card_pages.hpp"

#include <algorithm>
#include <cstring>

#include "../kv_cache_router/kv_cache_router.hpp"
#include "../mha_int8/mha_int8.hpp"

namespace ecorl {

namespace {

const std::int8_t* bytes(const code_t* codes) {
    return reinterpret_cast<const std::int8_t*>(codes);
}

/// Scales as pairs of numbers.
const std::int32_t* pairs(const scale_t* scales) {
    static_assert(sizeof(scale_t) == 2 * sizeof(std::int32_t), "a scale is a pair");
    return &scales->m;
}

}  // namespace

bool CardPages::takes(std::int32_t head_dim) {
    return kv_cache_router_page_bytes(head_dim) > 0;
}

CardPages::CardPages(std::int32_t max_pages, std::int32_t head_dim)
    : d_(head_dim), memory_(new std::uint8_t[max_pages * kv_cache_router_page_bytes(head_dim)]) {}

void CardPages::fill(const std::vector<segment_t>& segments, const code_t* keys,
                     const scale_t* key_scales, const code_t* values, const scale_t* value_scales) {
    entries_.clear();
    std::int32_t n_entries = 0;
    for (const segment_t& s : segments) {
        entries_.push_back(n_entries);
        n_entries += s.n_pages;
    }
    table_.resize(n_entries);
    std::vector<router::job_t> jobs;
    for (std::size_t i = 0; i < segments.size(); ++i) {
        const segment_t& s = segments[i];
        const std::int32_t end = s.position + s.length();
        jobs.clear();
        for (std::int32_t page = 0; page < s.n_pages; ++page) {
            const std::int32_t first = page * PAGE;
            const std::int32_t kept = std::clamp(s.position - first, 0, PAGE);
            jobs.push_back({kept > 0 ? table_[entries_[s.parent] + page] : -1,
                            kept,
                            std::max(first - s.position, 0),
                            std::min(PAGE, end - first) - kept,
                            page < s.n_shared ? -1 : s.first_page + page - s.n_shared,
                            entries_[i] + page,
                            {0, 0}});
        }
        const std::int64_t from = std::int64_t{s.begin} * d_;
        kv_cache_router(bytes(keys) + from, pairs(key_scales + s.begin), bytes(values) + from,
                        pairs(value_scales + s.begin), s.length(), d_, &jobs[0].source,
                        static_cast<std::int32_t>(jobs.size()), memory_.get(), table_.data());
    }
}

void CardPages::attend(const std::vector<segment_t>& segments, std::int32_t segment,
                       const std::int32_t* tokens, std::int32_t n, const code_t* queries,
                       const scale_t* query_scales, scale_t score_scale, value_t* context,
                       std::int64_t stride, std::int32_t* exponents, std::int64_t exponent_stride,
                       value_t* marks) const {
    const segment_t& own = segments[segment];
    const std::int64_t size = std::int64_t{n} * d_;
    std::vector<std::int8_t> codes(size);
    std::vector<scale_t> scales(n);
    std::vector<std::int32_t> positions(n), rows(size), row_exponents(n), row_marks(n);
    for (std::int64_t i = 0; i < n; ++i) {
        std::memcpy(codes.data() + i * d_, bytes(queries) + std::int64_t{tokens[i]} * d_, d_);
        scales[i] = query_scales[tokens[i]];
        positions[i] = tokens[i] - own.begin + own.position;
    }
    mha_int8(codes.data(), pairs(scales.data()), positions.data(), n, d_, score_scale.m,
             score_scale.e, memory_.get(), table_.data() + entries_[segment], rows.data(),
             row_exponents.data(), row_marks.data());
    for (std::int64_t i = 0; i < n; ++i) {
        for (std::int64_t j = 0; j < d_; ++j) context[i * stride + j] = rows[i * d_ + j];
        exponents[i * exponent_stride] = row_exponents[i];
        marks[tokens[i]] |= row_marks[i];
    }
}

}  // namespace ecorl

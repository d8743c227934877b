#include "pages.hpp"

#include <algorithm>
#include <cstring>

#include "../gemm_int8/gemm_int8.hpp"
#include "dataflow.hpp"
#include "row_table.hpp"
#include "transpose.hpp"

namespace ecorl {

namespace {

/// Packed weights start at multiples of 64 bytes, as in the card's memory.
std::uint8_t* aligned(std::uint8_t* memory) {
    return reinterpret_cast<std::uint8_t*>((reinterpret_cast<std::uintptr_t>(memory) + 63) / 64 *
                                           64);
}

std::int64_t aligned(std::int64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

std::int8_t* bytes_of(code_t* codes) {
    return reinterpret_cast<std::int8_t*>(codes);
}

}  // namespace

std::int32_t lay_out_pages(std::vector<segment_t>& segments) {
    std::int32_t n_pages = 0;
    for (segment_t& s : segments) {
        const bool child = s.parent >= 0;
        s.position = child ? segments[s.parent].length() : 0;
        s.n_shared = s.position / PAGE;
        s.n_pages = ceil_div(s.position + s.length(), PAGE);
        s.first_page = n_pages;
        n_pages += s.n_pages - s.n_shared;
    }
    return n_pages;
}

std::int32_t page_of(const std::vector<segment_t>& segments, std::int32_t segment,
                     std::int32_t index) {
    const segment_t& s = segments[segment];
    if (index >= s.n_shared) return s.first_page + index - s.n_shared;
    return segments[s.parent].first_page + index;  // parents share nothing themselves
}

Pages::Pages(std::int32_t max_pages, std::int32_t head_dim)
    : d_(head_dim),
      bytes_(aligned(std::max(gemm_int8_packed_bytes(PAGE, head_dim),
                              gemm_int8_packed_bytes(head_dim, PAGE)))),
      pages_(max_pages),
      key_rows_(new code_t[PAGE * head_dim]),
      value_rows_(new code_t[PAGE * head_dim]),
      turned_(new code_t[PAGE * head_dim]),
      queries_(new code_t[QUERIES * head_dim]),
      weights_(new code_t[2 * QUERIES * PAGE]),
      scores_(new value_t[QUERIES * PAGE]),
      partial_(new value_t[2 * QUERIES * head_dim]) {
    for (page_t& page : pages_) page.memory.reset(new std::uint8_t[2 * bytes_ + 64]);
}

std::uint8_t* Pages::keys_of(page_t& page) const {
    return aligned(page.memory.get());
}

std::uint8_t* Pages::values_of(page_t& page) const {
    return aligned(page.memory.get()) + bytes_;
}

/// n keys and values of a segment, from a position of the sequence on, into the rows of a page.
void Pages::gather(const std::vector<segment_t>& segments, std::int32_t segment,
                   std::int32_t position, std::int32_t n, const code_t* keys,
                   const scale_t* key_scales, const code_t* values, const scale_t* value_scales,
                   page_t& page) {
    for (std::int32_t i = 0; i < n; ++i, ++position) {
        const segment_t& own = segments[segment];
        const segment_t& from = position < own.position ? segments[own.parent] : own;
        const std::int64_t t = from.begin + position - from.position;
        std::memcpy(bytes_of(key_rows_.get()) + std::int64_t{i} * d_,
                    reinterpret_cast<const std::int8_t*>(keys) + t * d_, d_);
        std::memcpy(bytes_of(value_rows_.get()) + std::int64_t{i} * d_,
                    reinterpret_cast<const std::int8_t*>(values) + t * d_, d_);
        page.key_m[i] = key_scales[t].m;
        page.key_e[i] = key_scales[t].e;
        page.value_m[i] = value_scales[t].m >> 16;
        page.value_e[i] = value_scales[t].e;
    }
}

void Pages::fill_page(page_t& page, std::int32_t n) {
    if (n < PAGE) {
        std::memset(bytes_of(key_rows_.get()) + std::int64_t{n} * d_, 0, (PAGE - n) * d_);
        std::memset(bytes_of(value_rows_.get()) + std::int64_t{n} * d_, 0, (PAGE - n) * d_);
    }
    for (std::int32_t i = n; i < PAGE; ++i) {
        page.key_m[i] = page.key_e[i] = page.value_m[i] = page.value_e[i] = 0;
    }
    gemm_int8_pack(bytes_of(key_rows_.get()), keys_of(page), PAGE, d_);
    transpose(bytes_of(value_rows_.get()), bytes_of(turned_.get()), PAGE, d_);
    gemm_int8_pack(bytes_of(turned_.get()), values_of(page), d_, PAGE);
    page.n = n;
}

void Pages::fill(const std::vector<segment_t>& segments, const code_t* keys,
                 const scale_t* key_scales, const code_t* values, const scale_t* value_scales) {
    for (std::int32_t s = 0; s < static_cast<std::int32_t>(segments.size()); ++s) {
        const segment_t& segment = segments[s];
        const std::int32_t end = segment.position + segment.length();
        for (std::int32_t i = segment.n_shared; i < segment.n_pages; ++i) {
            const std::int32_t n = std::min(PAGE, end - i * PAGE);
            page_t& page = pages_[segment.first_page + i - segment.n_shared];
            gather(segments, s, i * PAGE, n, keys, key_scales, values, value_scales, page);
            fill_page(page, n);
        }
    }
}

void Pages::attend(const std::vector<segment_t>& segments, std::int32_t segment,
                   const std::int32_t* tokens, std::int32_t n, const code_t* queries,
                   const scale_t* query_scales, scale_t score_scale, value_t* context,
                   std::int64_t stride, std::int32_t* exponents, std::int64_t exponent_stride,
                   value_t* marks) {
    const row_table& row = rows();
    const segment_t& own = segments[segment];
    const auto position = [&](std::int32_t i) { return tokens[i] - own.begin + own.position; };
    for (std::int32_t first = 0; first < n; first += QUERIES) {
        const std::int32_t m = std::min(QUERIES, n - first);
        const std::int32_t* const asked = tokens + first;
        softmax_t states[QUERIES];
        scale_t scales[QUERIES];
        for (std::int32_t i = 0; i < m; ++i) {
            const std::int64_t t = asked[i];
            std::memcpy(bytes_of(queries_.get()) + std::int64_t{i} * d_,
                        reinterpret_cast<const std::int8_t*>(queries) + t * d_, d_);
            scales[i] = times(query_scales[t], score_scale);
            states[i] = NOTHING_SEEN;
            value_t* const c = context + (first + i) * stride;
            std::fill(c, c + d_, value_t(0));
        }
        const std::int32_t last_page = position(first + m - 1) / PAGE;
        for (std::int32_t b = 0, r = 0; b <= last_page; ++b) {
            page_t& page = pages_[page_of(segments, segment, b)];
            while (position(first + r) < b * PAGE) ++r;  // rows that end before this page
            const std::int32_t live_rows = m - r;
            dataflow::check(gemm_int8(bytes_of(queries_.get()) + std::int64_t{r} * d_,
                                      keys_of(page), reinterpret_cast<std::int32_t*>(scores_.get()),
                                      live_rows, PAGE, d_));
            const page_scales_t by = {page.key_m, page.key_e, page.value_m, page.value_e};
            int down[QUERIES];
            for (std::int32_t i = 0; i < live_rows; ++i) {
                const std::int32_t live = std::min(PAGE, position(first + r + i) - b * PAGE + 1);
                down[i] = row.softmax(scores_.get() + i * PAGE, by, scales[r + i], live,
                                      states[r + i], weights_.get() + i * PAGE,
                                      weights_.get() + (live_rows + i) * PAGE, marks[asked[r + i]]);
            }
            dataflow::check(gemm_int8(bytes_of(weights_.get()), values_of(page),
                                      reinterpret_cast<std::int32_t*>(partial_.get()),
                                      2 * live_rows, d_, PAGE));
            for (std::int32_t i = 0; i < live_rows; ++i) {
                row.accumulate(context + (first + r + i) * stride,
                               partial_.get() + std::int64_t{i} * d_,
                               partial_.get() + std::int64_t{live_rows + i} * d_, down[i], d_);
            }
        }
        for (std::int32_t i = 0; i < m; ++i) {
            row.finish(context + (first + i) * stride, states[i],
                       exponents[(first + i) * exponent_stride], d_);
        }
    }
}

}  // namespace ecorl

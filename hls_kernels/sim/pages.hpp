// Keys and values of a group in pages, and attention over them, on the host.
//
// A page holds the keys and values of PAGE positions of one sequence, the first at a multiple of
// PAGE. Sequences that go on from a common prefix share its whole pages; the page in which they
// part is copied.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "decoder.hpp"

namespace ecorl {

/// A run of tokens of a group that goes on from the end of `parent`.
struct segment_t {
    std::int32_t begin, end;  ///< tokens of the group
    std::int32_t parent;      ///< segment of the group, or -1
    std::int32_t position;    ///< of its first token
    std::int32_t first_page;  ///< the first page of its own
    std::int32_t n_shared;    ///< whole pages of its parent, which come first
    std::int32_t n_pages;     ///< shared and own
    std::int32_t length() const { return end - begin; }
};

/// Lay out pages for segments whose begin, end and parent are set; returns how many there are.
std::int32_t lay_out_pages(std::vector<segment_t>& segments);

/// One head's keys and values in pages, and the buffers of a block of queries.
class Pages {
  public:
    Pages(std::int32_t max_pages, std::int32_t head_dim);
    /// Take over keys and values [tokens, head_dim] with their scales [tokens].
    void fill(const std::vector<segment_t>& segments, const code_t* keys, const scale_t* key_scales,
              const code_t* values, const scale_t* value_scales);
    /// Attention of one query head for tokens[n] of a segment, ascending: context of the i-th into
    /// context + i * stride, its exponent into exponents + i * exponent_stride.
    void attend(const std::vector<segment_t>& segments, std::int32_t segment,
                const std::int32_t* tokens, std::int32_t n, const code_t* queries,
                const scale_t* query_scales, scale_t score_scale, value_t* context,
                std::int64_t stride, std::int32_t* exponents, std::int64_t exponent_stride,
                value_t* marks);

  private:
    static constexpr std::int32_t QUERIES = 64;
    struct page_t {
        std::unique_ptr<std::uint8_t[]> memory;  ///< packed keys, then packed turned values
        value_t key_m[PAGE], key_e[PAGE], value_m[PAGE], value_e[PAGE];
        std::int32_t n = 0;
    };
    std::uint8_t* keys_of(page_t& page) const;
    std::uint8_t* values_of(page_t& page) const;
    void fill_page(page_t& page, std::int32_t n);
    void gather(const std::vector<segment_t>& segments, std::int32_t segment, std::int32_t position,
                std::int32_t n, const code_t* keys, const scale_t* key_scales, const code_t* values,
                const scale_t* value_scales, page_t& page);

    std::int32_t d_;
    std::int64_t bytes_;
    std::vector<page_t> pages_;
    std::unique_ptr<code_t[]> key_rows_, value_rows_, turned_;
    std::unique_ptr<code_t[]> queries_;   ///< [QUERIES, d]
    std::unique_ptr<code_t[]> weights_;   ///< [2 QUERIES, PAGE] high codes, then low codes
    std::unique_ptr<value_t[]> scores_;   ///< [QUERIES, PAGE]
    std::unique_ptr<value_t[]> partial_;  ///< [2 QUERIES, d]
};

/// The page of a sequence that holds a position: index among all pages of the group.
std::int32_t page_of(const std::vector<segment_t>& segments, std::int32_t segment,
                     std::int32_t index);

}  // namespace ecorl

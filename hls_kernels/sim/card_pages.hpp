// Keys and values of a group in the card's pages, and attention over them, by the kernels: on the
// buffers that HEAD of vector_ops wrote and its CONTEXT reads, as they are.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "pages.hpp"

namespace ecorl {

/// A card's heads in its memory: queries, then keys, then values.
struct card_heads {
    std::int32_t n_heads, n_kv_heads;
    std::int32_t stride;  ///< rows from one head to the next
    const void* codes;    ///< [heads][stride][token_beats(head_dim)] words
    const void* rows;     ///< [heads][stride] head_row_t
};

/// Pages and page tables of all heads, as kv_cache_router writes and mha_int8 reads them. Numbers
/// of pages and of entries count through all heads.
class CardPages {
  public:
    /// `max_pages` of each head; head_dim is a multiple of HEAD_UNIT.
    CardPages(std::int32_t n_kv_heads, std::int32_t max_pages, std::int32_t head_dim);
    /// Keys and values of all segments: a call of the router for those without a parent, and one
    /// for their children, which copy pages that the first has written.
    void fill(const std::vector<segment_t>& segments, const card_heads& heads);
    /// Attention of all heads for tokens `asked`, ascending, in one call: context
    /// [n_heads][stride][head_dim / 16] words, results [n_heads][stride] exponents and marks. Other
    /// rows stay as they are. The streams of the C-simulation hold all pages that the call reads.
    void attend(const std::vector<segment_t>& segments, const std::vector<std::int32_t>& asked,
                const card_heads& heads, scale_t score, void* context, void* results) const;

  private:
    std::int32_t page_number(std::int32_t kv_head, std::int32_t page) const {
        return kv_head * max_pages_ + page;
    }
    std::int32_t entry(std::int32_t kv_head, std::int32_t segment) const {
        return kv_head * n_entries_ + entries_[segment];
    }

    std::int32_t d_, max_pages_;
    std::unique_ptr<std::uint8_t[]> memory_;
    std::vector<std::int32_t> table_;
    std::vector<std::int32_t> entries_;  ///< [segments] first one of a head's part of the table
    std::int32_t n_entries_ = 0;         ///< of one head
};

}  // namespace ecorl

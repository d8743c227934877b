// Keys and values of a group in the card's pages, and attention over them, by the kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "pages.hpp"

namespace ecorl {

/// One head's pages and page tables as kv_cache_router writes and mha_int8 reads them.
class CardPages {
  public:
    /// Whether the kernels take heads of this size.
    static bool takes(std::int32_t head_dim);

    CardPages(std::int32_t max_pages, std::int32_t head_dim);
    /// As Pages::fill: one call of the router for each segment, since a call reads no page that it
    /// writes.
    void fill(const std::vector<segment_t>& segments, const code_t* keys, const scale_t* key_scales,
              const code_t* values, const scale_t* value_scales);
    /// As Pages::attend.
    void attend(const std::vector<segment_t>& segments, std::int32_t segment,
                const std::int32_t* tokens, std::int32_t n, const code_t* queries,
                const scale_t* query_scales, scale_t score_scale, value_t* context,
                std::int64_t stride, std::int32_t* exponents, std::int64_t exponent_stride,
                value_t* marks) const;

  private:
    std::int32_t d_;
    std::unique_ptr<std::uint8_t[]> memory_;
    std::vector<std::int32_t> table_;
    std::vector<std::int32_t> entries_;  ///< [segments] first one of the table
};

}  // namespace ecorl

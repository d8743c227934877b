// The C API of kv_cache_router: row-major arrays into the kernel's order of memory.
#include <cstring>
#include <vector>

#include "dataflow.hpp"
#include "kv_cache_router_sim.hpp"

namespace ecorl {
namespace router {

namespace {

/// Codes [tokens, head_dim] in beats, filled up with zeros.
std::vector<beat_t> token_rows(const std::int8_t* codes, std::int32_t n, std::int32_t head_dim) {
    const std::int64_t bytes = std::int64_t{token_beats(card_head(head_dim))} * BEAT;
    std::vector<beat_t> rows(static_cast<std::size_t>(n * bytes / BEAT));
    auto* const to = reinterpret_cast<std::int8_t*>(rows.data());
    for (std::int64_t t = 0; t < n; ++t) {
        std::memcpy(to + t * bytes, codes + t * head_dim, head_dim);
        std::memset(to + t * bytes + head_dim, 0, bytes - head_dim);
    }
    return rows;
}

/// Scales [tokens, 2] as records; the router reads no positions.
std::vector<head_row_t> records(const std::int32_t* scales, std::int32_t n) {
    std::vector<head_row_t> made;
    for (std::int64_t t = 0; t < n; ++t) made.push_back({scales[2 * t], scales[2 * t + 1], 0, 0});
    return made;
}

}  // namespace
}  // namespace router
}  // namespace ecorl

using namespace ecorl;
using namespace ecorl::router;

extern "C" {

std::int64_t kv_cache_router_page_bytes(std::int32_t head_dim) {
    return takes_head(head_dim) ? std::int64_t{page_beats(card_head(head_dim))} * BEAT : 0;
}

std::int32_t kv_cache_router(const std::int8_t* keys, const std::int32_t* key_scales,
                             const std::int8_t* values, const std::int32_t* value_scales,
                             std::int32_t n_tokens, std::int32_t head_dim, const std::int32_t* jobs,
                             std::int32_t n_jobs, void* pages, std::int32_t* table) {
    if (n_jobs < 1 || !takes_head(head_dim)) return 0;
    const std::vector<beat_t> key_rows = token_rows(keys, n_tokens, head_dim);
    const std::vector<beat_t> value_rows = token_rows(values, n_tokens, head_dim);
    const std::vector<head_row_t> key_records = records(key_scales, n_tokens);
    const std::vector<head_row_t> value_records = records(value_scales, n_tokens);
    static_assert(sizeof(job_t) == 8 * sizeof(std::int32_t), "jobs come as rows of eight");
    auto* const memory = static_cast<beat_t*>(pages);
    return dataflow::guarded([&] {
        kv_cache_router_krnl(key_rows.data(), value_rows.data(), key_records.data(),
                             value_records.data(), reinterpret_cast<const job_t*>(jobs), memory,
                             memory, table, n_jobs, card_head(head_dim));
        counts::add_to_totals();
    });
}

void kv_cache_router_counters(std::int64_t* out10) {
    counts::read(out10);
}

void kv_cache_router_counters_reset() {
    counts::reset();
}

}  // extern "C"

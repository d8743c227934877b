// The C API of mha_int8: row-major arrays into the kernel's order of memory, and results back.
#include <algorithm>
#include <cstring>
#include <vector>

#include "dataflow.hpp"
#include "mha_int8_sim.hpp"

namespace ecorl {
namespace mha {

namespace {

/// Blocks of rows that stand side by side and share one page table.
std::vector<query_block_t> blocks_of(const std::int32_t* positions, std::int32_t m) {
    std::vector<query_block_t> blocks;
    for (std::int32_t first = 0; first < m; first += QUERY_ROWS) {
        const std::int32_t n = std::min(QUERY_ROWS, m - first);
        const std::int32_t last = *std::max_element(positions + first, positions + first + n);
        blocks.push_back({first, n, 0, last / PAGE + 1});
    }
    return blocks;
}

bool within_limits(const std::int32_t* positions, std::int32_t m, std::int32_t head_dim) {
    return m >= 1 && head_dim >= 1 && head_dim <= MAX_HEAD &&
           std::all_of(positions, positions + m,
                       [](std::int32_t p) { return p >= 0 && p < MAX_PAGES * PAGE; });
}

}  // namespace
}  // namespace mha
}  // namespace ecorl

using namespace ecorl;
using namespace ecorl::mha;

extern "C" {

std::int32_t mha_int8(const std::int8_t* queries, const std::int32_t* query_scales,
                      const std::int32_t* positions, std::int32_t m, std::int32_t head_dim,
                      std::int32_t score_m, std::int32_t score_e, const void* pages,
                      const std::int32_t* table, std::int32_t* context, std::int32_t* exponents,
                      std::int32_t* marks) {
    if (!within_limits(positions, m, head_dim)) return 0;
    const dim_t d = ceil_div(head_dim, HEAD_UNIT) * HEAD_UNIT;
    const std::int64_t rows = m, width = words_of(d);
    const std::int64_t bytes = std::int64_t{token_beats(d)} * BEAT;
    std::vector<std::int8_t> codes(static_cast<std::size_t>(rows * bytes), 0);
    std::vector<head_row_t> infos;
    for (std::int64_t i = 0; i < rows; ++i) {
        std::memcpy(codes.data() + i * bytes, queries + i * head_dim, head_dim);
        infos.push_back({query_scales[2 * i], query_scales[2 * i + 1], positions[i], 0});
    }
    const std::vector<query_block_t> blocks = blocks_of(positions, m);
    std::vector<word_t> words(static_cast<std::size_t>(rows * width));
    std::vector<head_result_t> results(static_cast<std::size_t>(rows));
    const std::int32_t code = dataflow::guarded([&] {
        mha_int8_krnl(blocks.data(), infos.data(), reinterpret_cast<const beat_t*>(codes.data()),
                      table, static_cast<const beat_t*>(pages), words.data(), results.data(),
                      static_cast<std::int32_t>(blocks.size()), d, score_m, score_e);
    });
    if (code != 0) return code;
    for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < head_dim; ++j) {
            const value_t value = words[i * width + j / LANES].lane[j % LANES];
            context[i * head_dim + j] = static_cast<std::int32_t>(value);
        }
        exponents[i] = results[i].exponent;
        marks[i] = results[i].mark;
    }
    return 0;
}

void mha_int8_counters(std::int64_t* out17) {
    counts::read(out17);
}

void mha_int8_counters_reset() {
    counts::reset();
}

}  // extern "C"

// What the C-simulation adds to gemm_int8: counters and native paths. Vitis never sees this file.
#pragma once

#include <cstdint>
#include <vector>

#include "../gemm_int8/gemm_int8.hpp"

namespace ecorl {
namespace gemm {

constexpr int WORD_BYTES = TILE_N * TILE_K;

/// Counts of the present thread, not yet added to the totals.
extern thread_local std::int64_t local_counts[N_COUNTERS];

inline void count(counter slot, std::int64_t amount) {
    local_counts[slot] += amount;
}

/// At the end of a call: counts of the present thread to the totals.
void add_to_totals();

/// Who computes.
enum path : std::int32_t { AUTO, KERNEL, PORTABLE, AVX2, VNNI, AMX, N_PATHS };

/// One product: a and c row-major, the weights in tile order.
struct operands {
    const std::int8_t* a;
    const std::int8_t* packed;
    std::int32_t* c;
    std::int32_t m, n, k;
};

/// Packed weights as the kernel's two ports read them.
struct halves {
    std::vector<half_word_t> low, high;
    void take(const code_word_t* words, std::int64_t n);
};

/// Rows of A [rows, k] with zeros behind each up to padded_k; valid until the thread's next call.
const std::int8_t* pad_rows(const std::int8_t* a, std::int32_t rows, std::int32_t k,
                            std::int32_t padded_k);

void multiply_portable(const operands& p);
bool has_avx2();
void multiply_avx2(const operands& p);
bool has_vnni();
void multiply_vnni(const operands& p);
bool has_amx();
void multiply_amx(const operands& p);

}  // namespace gemm
}  // namespace ecorl

// The row functions, compiled once for each width of register.
#include "row_table.hpp"

#include <atomic>
#include <cstring>

#if defined(ECORL_NATIVE) && defined(__x86_64__)
#include <immintrin.h>
#endif

#define ECORL_ROW static inline

#define ECORL_ROWS plain
#include "row_functions.inc"
#undef ECORL_LANE
#undef ECORL_ROWS

#if defined(ECORL_NATIVE) && defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define ECORL_WIDE_ROWS 1
#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,lzcnt")
#define ECORL_ROWS avx2
#include "row_functions.inc"
#undef ECORL_LANE
#undef ECORL_ROWS
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,bmi,bmi2,lzcnt,prefer-vector-width=512")
#define ECORL_ROWS avx512
#include "row_functions.inc"
#undef ECORL_LANE
#undef ECORL_ROWS
#pragma GCC pop_options
#endif

namespace ecorl {

namespace {

#define ECORL_TABLE(width)                                                                    \
    {width::embed_row,    width::rmsnorm_row, width::codes_row,        width::dequantise_row, \
     width::residual_row, width::fixed_row,   width::head_row,         width::gated_row,      \
     width::align_row,    width::softmax_row, width::accumulate_row,   width::finish_row,     \
     width::logits_row,   width::gates_row,   width::gated_reward_row, width::relu_row}

const row_table plain_rows = ECORL_TABLE(plain);
const row_table kernel_rows = ECORL_TABLE(plain);
#ifdef ECORL_WIDE_ROWS
const row_table avx2_rows = ECORL_TABLE(avx2);
const row_table avx512_rows = ECORL_TABLE(avx512);
#endif

constexpr std::int32_t KERNELS = 1;  ///< in place of a width

/// The table for a width, or null where this build or CPU lacks it.
const row_table* table_of(std::int32_t bits) {
    switch (bits) {
        case KERNELS:
            return &kernel_rows;
        case 128:
            return &plain_rows;
#ifdef ECORL_WIDE_ROWS
        case 256:
            return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") ? &avx2_rows
                                                                                    : nullptr;
        case 512:
            return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
                       ? &avx512_rows
                       : nullptr;
#endif
        default:
            return nullptr;
    }
}

constexpr std::int32_t WIDTHS[] = {512, 256, 128};

std::int32_t widest() {
    for (const std::int32_t bits : WIDTHS) {
        if (table_of(bits) != nullptr) return bits;
    }
    return 128;
}

std::atomic<const row_table*>& chosen() {
    static std::atomic<const row_table*> table{table_of(widest())};
    return table;
}

}  // namespace

const row_table& rows() {
    return *chosen().load(std::memory_order_relaxed);
}

bool kernels_chosen() {
    return &rows() == &kernel_rows;
}

}  // namespace ecorl

extern "C" {

std::int32_t rows_set_width(std::int32_t bits) {
    const ecorl::row_table* table = ecorl::table_of(bits == 0 ? ecorl::widest() : bits);
    if (table == nullptr) return -1;
    ecorl::chosen().store(table, std::memory_order_relaxed);
    return 0;
}

std::int32_t rows_width() {
    if (ecorl::kernels_chosen()) return ecorl::KERNELS;
    for (const std::int32_t bits : ecorl::WIDTHS) {
        if (ecorl::table_of(bits) == &ecorl::rows()) return bits;
    }
    return 0;
}
}

// The choice among the row functions' widths of register.
#include "row_table.hpp"

#include <atomic>

namespace ecorl {

namespace {

constexpr std::int32_t KERNELS = 1;  ///< in place of a width

/// Names the kernels among the tables: they are asked for no row function.
const row_table kernel_rows = *plain_rows();

/// The table for a width, or null where this build or CPU lacks it.
const row_table* table_of(std::int32_t bits) {
    switch (bits) {
        case KERNELS:
            return &kernel_rows;
        case 128:
            return plain_rows();
#if defined(__x86_64__)
        case 256:
            return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") ? avx2_rows()
                                                                                    : nullptr;
        case 512:
            return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
                       ? avx512_rows()
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

// The row functions on registers of 256 bits. All that they inline is defined after the target.
#include "row_table.hpp"

#if defined(ECORL_NATIVE) && defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

#include <immintrin.h>

#include <cstring>

#pragma GCC push_options
#pragma GCC target("avx2,bmi,bmi2,lzcnt")
#include "rows_of.hpp"

namespace ecorl {

const row_table* avx2_rows() {
    static const row_table table = table_of_rows<wide_lanes<256> >();
    return &table;
}

}  // namespace ecorl
#pragma GCC pop_options

#else

namespace ecorl {

const row_table* avx2_rows() {
    return nullptr;
}

}  // namespace ecorl

#endif

// The row functions on registers of 512 bits. All that they inline is defined after the target.
#include "row_table.hpp"

#if defined(ECORL_NATIVE) && defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

#include <immintrin.h>

#include <cstring>

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,bmi,bmi2,lzcnt,prefer-vector-width=512")
#include "rows_of.hpp"

namespace ecorl {

const row_table* avx512_rows() {
    static const row_table table = table_of_rows<wide_lanes<512> >();
    return &table;
}

}  // namespace ecorl
#pragma GCC pop_options

#else

namespace ecorl {

const row_table* avx512_rows() {
    return nullptr;
}

}  // namespace ecorl

#endif

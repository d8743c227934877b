// The row functions on registers that every CPU has: 128 bits, or one exact integer (strict).
#include "rows_of.hpp"

namespace ecorl {

const row_table* plain_rows() {
#ifdef ECORL_NATIVE
    static const row_table table = table_of_rows<wide_lanes<128> >();
#else
    static const row_table table = table_of_rows<one_lane>();
#endif
    return &table;
}

}  // namespace ecorl

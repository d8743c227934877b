// How the vector kernels go over products: blocks of 16 token rows, stages, panels of columns.
#pragma once

#include <hls_stream.h>

#include "ecorl_words.hpp"

namespace ecorl {

/// The order in which a task reads its products. For each block of rows each stage reads all
/// panels again: what a row needs of all its columns (a peak) is known before the next stage.
struct plan_t {
    dim_t m, n;                     ///< rows; columns of a half
    dim_t parts;                    ///< sums that are added first; 0: the task reads no products
    dim_t halves;                   ///< 2 where gate and up stand side by side, else 1
    dim_t width;                    ///< columns of a panel in each half
    dim_t first_stage, last_stage;  ///< none where the last is before the first
    dim_t unit;                     ///< words of a row side by side in memory, 1 or a head's
    dim_t stride;                   ///< rows of memory between two heads; 0: gemm_int8's products
};

/// Where a plan is: `row` is the first of a block, `column` the first of a panel in its half.
struct walk_t {
    dim_t row, stage, column;
};

inline walk_t first_of(const plan_t& plan) {
#pragma HLS INLINE
    return {0, plan.first_stage, 0};
}

inline void go_on(walk_t& at, const plan_t& plan) {
#pragma HLS INLINE
    at.column += plan.width;
    if (at.column < plan.n) return;
    at.column = 0;
    if (++at.stage <= plan.last_stage) return;
    at.stage = plan.first_stage;
    at.row += BLOCK_ROWS;
}

inline dim_t panels_of(const plan_t& plan) {
#pragma HLS INLINE
    const dim_t stages = most(plan.last_stage - plan.first_stage + 1, 0);
    return ceil_div(plan.m, BLOCK_ROWS) * stages * ceil_div(plan.n, plan.width);
}

inline dim_t rows_at(const walk_t& at, const plan_t& plan) {
#pragma HLS INLINE
    return least(plan.m - at.row, BLOCK_ROWS);
}

inline dim_t columns_at(const walk_t& at, const plan_t& plan) {
#pragma HLS INLINE
    return least(plan.n - at.column, plan.width);
}

/// Place of the first row of a block: in the part-th products of gemm_int8, or in mha_int8's heads,
/// which have one part and `plan.unit` words of a row side by side.
inline std::int64_t block_at(const plan_t& plan, dim_t row, dim_t group, dim_t part) {
#pragma HLS INLINE
    if (plan.stride > 0) {
        return static_cast<std::int64_t>(group) * plan.stride +
               static_cast<std::int64_t>(row) * plan.unit;
    }
    const dim_t groups = words_of(plan.halves * plan.n);
    return static_cast<std::int64_t>(part) * plan.m * groups +
           product_at(row, group, plan.m, groups);
}

/// Read the products of a task. A panel of one part is one burst, else there is one for the rows of
/// 16 columns of each part, or for those of a head.
template <class Counted>
void load_products(const word_t* acc, hls::stream<word_t>& out, const plan_t plan) {
    const dim_t n_panels = plan.parts > 0 ? panels_of(plan) : 0;
    walk_t at = first_of(plan);
LOAD_PANEL:
    for (dim_t i = 0; i < n_panels; ++i) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 512 avg = 4
        const dim_t rows = rows_at(at, plan);
        const dim_t groups = words_of(columns_at(at, plan));
        const dim_t first = at.column / LANES;
        const bool is_whole = plan.stride == 0 && plan.parts == 1;
        const dim_t step = is_whole ? groups : plan.unit;
    LOAD_HALF:
        for (dim_t half = 0; half < plan.halves; ++half) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 2 avg = 1
        LOAD_GROUP:
            for (dim_t g = 0; g < groups; g += step) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 512 avg = 256
                const dim_t group = half * (plan.n / LANES) + first + g;
            LOAD_PART:
                for (dim_t p = 0; p < plan.parts; ++p) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 4 avg = 1
                    const std::int64_t base = block_at(plan, at.row, group, p);
                LOAD_ACC:
                    for (dim_t i = 0; i < rows * step; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 8192 avg = 4096
                        out.write(acc[base + i]);
                        Counted::product_word();
                    }
                }
            }
        }
        go_on(at, plan);
    }
}

inline word_t sum_of(const word_t& a, const word_t& b) {
#pragma HLS INLINE
    word_t sum;
    for (int lane = 0; lane < LANES; ++lane) {
#pragma HLS UNROLL
        sum.lane[lane] = value_t(a.lane[lane] + b.lane[lane]);
    }
    return sum;
}

/// Where the next word enters the block buffer: word of a unit, then row, part and unit.
struct entry_t {
    dim_t word, row, part, group;
};

inline void step(entry_t& at, dim_t rows, const plan_t& plan) {
#pragma HLS INLINE
    if (++at.word < plan.unit) return;
    at.word = 0;
    if (++at.row < rows) return;
    at.row = 0;
    if (++at.part < plan.parts) return;
    at.part = 0;
    at.group += plan.unit;
}

/// From the order of memory to rows, through a block buffer of WORDS words a row. A panel comes in
/// beside the one before going out. Parts are added on the way.
template <int WORDS, class Counted>
void turn_products(hls::stream<word_t>& in, hls::stream<word_t>& out, const plan_t plan) {
    ECORL_BUFFER word_t block[2][BLOCK_ROWS][WORDS];
#pragma HLS BIND_STORAGE variable = block type = ram_2p impl = uram
#pragma HLS AGGREGATE variable = block
    ECORL_BUFFER word_t sums[BLOCK_ROWS];
#pragma HLS ARRAY_PARTITION variable = sums complete
    const dim_t n_panels = plan.parts > 0 ? panels_of(plan) : 0;
    walk_t at = first_of(plan);
    dim_t old_rows = 0;
    dim_t old_words = 0;
TURN_PANEL:
    for (dim_t i = 0; i < n_panels + 1; ++i) {
#pragma HLS LOOP_TRIPCOUNT min = 2 max = 513 avg = 5
        const int now = i & 1;
        const dim_t rows = i < n_panels ? rows_at(at, plan) : 0;
        const dim_t words = plan.halves * words_of(columns_at(at, plan));
        const dim_t n_in = rows * words * plan.parts;
        const dim_t n_out = old_rows * old_words;
        entry_t from = {0, 0, 0, 0};
        dim_t row = 0;
        dim_t word = 0;
    TURN:
        for (dim_t j = 0; j < most(n_in, n_out); ++j) {
#pragma HLS PIPELINE II = 1
#pragma HLS DEPENDENCE variable = block type = inter false
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 32768 avg = 4096
            if (j < n_in) {
                const word_t part = in.read();
                const word_t sum = from.part == 0 ? part : sum_of(sums[from.row], part);
                sums[from.row] = sum;
                block[now][from.row][from.group + from.word] = sum;
                step(from, rows, plan);
            }
            if (j < n_out) {
                out.write(block[1 - now][row][word]);
                if (++word == old_words) {
                    word = 0;
                    ++row;
                }
            }
            Counted::turn_cycle();
        }
        old_rows = rows;
        old_words = words;
        if (i < n_panels) go_on(at, plan);
    }
}

/// Places of words in a line buffer: `words` in all, `unit` of them side by side, units `stride`
/// words apart. Heads stand 128 values apart whatever their size, so that lanes stay lanes.
struct layout_t {
    dim_t words, unit, stride;
};

struct cursor_t {
    dim_t word, base;
};

/// First value of the word at the cursor, which goes on.
inline dim_t next_place(cursor_t& at, const layout_t& layout) {
#pragma HLS INLINE
    const dim_t place = (at.base + at.word) * LANES;
    if (++at.word == layout.unit) {
        at.word = 0;
        at.base += layout.stride;
    }
    return place;
}

/// The words of a row into a line buffer of N values.
template <int N>
void take_values(hls::stream<word_t>& in, value_t out[N], dim_t words) {
TAKE_VALUES:
    for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 512 avg = 256
        const word_t word = in.read();
        for (int lane = 0; lane < LANES; ++lane) {
#pragma HLS UNROLL
            out[i * LANES + lane] = word.lane[lane];
        }
    }
}

}  // namespace ecorl

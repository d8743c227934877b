// Products on their way into a vector kernel: read from memory, parts added, brought to rows.
//
// gemm_int8 writes blocks of 16 token rows, in a block 16 columns of all its rows after the 16
// columns before (`product_at`). A vector kernel works row by row, so a block is transposed on the
// chip. mha_int8's context comes by the same way: its heads stand one after the other, with all
// rows of a head side by side.
#pragma once

#include <hls_stream.h>

#include "ecorl_dependence.hpp"
#include "ecorl_words.hpp"

namespace ecorl {

/// How a call goes over its products.
struct products_t {
    dim_t m;      ///< token rows; 0 where a call reads no products
    dim_t words;  ///< of a row
    dim_t parts;  ///< sums that are added (slices of k, cards)
    dim_t heads;  ///< 0: the order of gemm_int8. Else [heads][stride][unit], of one part
    dim_t unit, stride;
    dim_t panel;   ///< words of a row that leave together: all of a row, or those of a head
    dim_t panels;  ///< of a row
};

constexpr int SUM_WORDS = 256;  ///< words of a part that are read before those of the next

inline dim_t rows_from(dim_t first, dim_t m) {
#pragma HLS INLINE
    return least(m - first, BLOCK_ROWS);
}

/// Words that are read one after the other: all products of one part, SUM_WORDS of one of several,
/// or a block of rows of a head.
struct product_run_t {
    std::int64_t base;
    dim_t words;
};

inline product_run_t run_at(const products_t& from, dim_t outer, dim_t inner) {
#pragma HLS INLINE
    if (from.heads > 0) {
        const dim_t row = outer * BLOCK_ROWS;
        const std::int64_t first = static_cast<std::int64_t>(inner) * from.stride + row;
        return {first * from.unit, rows_from(row, from.m) * from.unit};
    }
    const dim_t all = from.m * from.words;
    if (from.parts == 1) return {0, all};
    const dim_t first = outer * SUM_WORDS;
    return {static_cast<std::int64_t>(inner) * all + first, least(all - first, SUM_WORDS)};
}

/// Runs of all parts or heads that come before the next words or rows.
inline dim_t outer_runs(const products_t& from) {
#pragma HLS INLINE
    if (from.m == 0) return 0;
    if (from.heads > 0) return ceil_div(from.m, BLOCK_ROWS);
    return from.parts == 1 ? 1 : ceil_div(from.m * from.words, SUM_WORDS);
}

inline dim_t inner_runs(const products_t& from) {
#pragma HLS INLINE
    return from.heads > 0 ? from.heads : from.parts;
}

template <class Counted>
void load_products(const word_t* acc, hls::stream<word_t>& out, const products_t from) {
    const dim_t n_outer = outer_runs(from);
    const dim_t n_inner = inner_runs(from);
LOAD_OUTER:
    for (dim_t outer = 0; outer < n_outer; ++outer) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 65536 avg = 1
    LOAD_INNER:
        for (dim_t inner = 0; inner < n_inner; ++inner) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 256 avg = 1
            const product_run_t run = run_at(from, outer, inner);
        LOAD_ACC:
            for (dim_t i = 0; i < run.words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 16777216 avg = 65536
                out.write(acc[run.base + i]);
                Counted::product_word();
            }
        }
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

/// Add the parts of each word, in the order of `load_products`. The innermost loop meets each sum
/// once, so no addition waits for the one before: it is not flattened into the loop over parts,
/// where the next part could meet a sum that is still on its way.
inline void sum_parts(hls::stream<word_t>& in, hls::stream<word_t>& out, const products_t from) {
    ECORL_BUFFER watched<word_t> sums[SUM_WORDS];
#pragma HLS AGGREGATE variable = sums
#pragma HLS BIND_STORAGE variable = sums type = ram_2p impl = bram
    const dim_t all = from.m * from.words;
    const dim_t chunk = from.parts == 1 ? all : dim_t(SUM_WORDS);
SUM_CHUNK:
    for (dim_t first = 0; first < all; first += chunk) {
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 65536 avg = 1
        const dim_t words = least(all - first, chunk);
    SUM_PART:
        for (dim_t part = 0; part < from.parts; ++part) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 4 avg = 1
            const bool is_first = part == 0;
            const bool is_last = part == from.parts - 1;
        SUM_PARTS:
            for (dim_t i = 0; i < words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_FLATTEN off
#pragma HLS DEPENDENCE variable = sums type = inter false
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 16777216 avg = 65536
                ECORL_WATCH(sums, SUM_PARTS, ALL, NEVER, i, all, from.parts);
                const word_t own = in.read();
                const dim_t at = i % SUM_WORDS;
                const word_t sum = is_first ? own : sum_of(sums[at], own);
                if (is_last) {
                    out.write(sum);
                } else {
                    sums[at] = sum;
                }
            }
        }
    }
}

constexpr int PLACE_STEPS = 4;  ///< from a write to a read of the same place, at least

/// Tiles that enter and leave the buffer of `arrange_rows` one after the other: `rows` rows of
/// `groups` groups of `unit` words.
struct tiles_t {
    dim_t n, rows, groups, unit;
};

/// Where a tile's next word stands. The g-th group of row r is the i-th that enters, i = g rows +
/// r, and the o-th that leaves, o = r groups + g, so i = o rows modulo (rows groups - 1). Where the
/// i-th group of a tile stands at i s, the o-th that leaves is at o (s rows); the next tile's o-th
/// takes that place, so `stride` is multiplied by `rows` from tile to tile, modulo `wrap`. The last
/// group keeps the last place. A place within reach is held as `over`, what it is less `back`, and
/// `back` is `wrap` less `stride`: the sign of `over` says whether the next step passes `wrap`, so
/// that no comparison stands in its recurrence.
struct tile_walk_t {
    dim_t tile, index, word;
    dim_t over, back, stride, next, wrap;
};

/// 2 v modulo `wrap`, for v < wrap.
inline dim_t doubled(dim_t v, dim_t wrap) {
#pragma HLS INLINE
    const dim_t beyond = 2 * v - wrap;
    return beyond < 0 ? 2 * v : beyond;
}

/// A single tile of any number of rows, or whole blocks: their 16 rows are four doublings.
inline tile_walk_t first_word(const tiles_t& tiles) {
#pragma HLS INLINE
    const bool is_whole = tiles.rows == BLOCK_ROWS;
    const dim_t second = tiles.groups == 1 ? tiles.unit : tiles.rows * tiles.unit;
    const dim_t wrap = (tiles.rows * tiles.groups - 1) * tiles.unit;
    const dim_t back = wrap - tiles.unit;
    return {0, 0, 0, -back, back, tiles.unit, is_whole ? tiles.unit : second, wrap};
}

inline void go_on(tile_walk_t& at, const tiles_t& tiles) {
#pragma HLS INLINE
    const bool is_whole = tiles.rows == BLOCK_ROWS;
    if (is_whole && at.index < 4) at.next = doubled(at.next, at.wrap);
    const bool ends_tile = at.index == at.wrap + tiles.unit - 1;
    const bool ends_unit = at.word == tiles.unit - 1;
    if (ends_unit) at.over += at.over < 0 ? at.stride : -at.back;
    at.word = ends_unit ? 0 : at.word + 1;
    at.index = ends_tile ? 0 : at.index + 1;
    if (!ends_tile) return;
    ++at.tile;
    at.stride = at.next;
    at.back = at.wrap - at.next;
    at.over = -at.back;
}

/// The tiles of a run: all those of whole blocks, or one of the last block where it has fewer rows.
inline tiles_t tiles_at(const products_t& from, dim_t run) {
#pragma HLS INLINE
    const bool is_heads = from.heads > 0;
    const dim_t unit = is_heads ? from.unit : 1;
    const dim_t groups = is_heads ? from.heads : from.panel;
    if (run > 0) return {1, from.m % BLOCK_ROWS, groups, unit};
    return {from.m / BLOCK_ROWS * from.panels, BLOCK_ROWS, groups, unit};
}

/// Steps that pass between the entry of a tile and its way out, so that a place is read
/// PLACE_STEPS after it was written at the earliest. Without them the last row of the first group
/// is read soonest, rows + groups - 1 groups after it was written; of whole blocks never too soon.
inline dim_t steps_between(const tiles_t& tiles) {
#pragma HLS INLINE
    return most(PLACE_STEPS - (tiles.rows + tiles.groups - 1) * tiles.unit, 0);
}

/// From the order of memory to rows: of each tile one row after the other. A tile enters where the
/// one before leaves, word by word, so that one tile's buffer is enough. WORDS: the largest tile.
template <int WORDS, class Counted>
void arrange_rows(hls::stream<word_t>& in, hls::stream<word_t>& out, const products_t from) {
    ECORL_BUFFER watched<word_t> block[WORDS];
#pragma HLS AGGREGATE variable = block
#pragma HLS BIND_STORAGE variable = block type = ram_2p impl = uram
    const dim_t n_runs = 1 + (from.m % BLOCK_ROWS != 0 ? from.panels : 0);
ARRANGE_RUN:
    for (dim_t run = 0; run < n_runs; ++run) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 257 avg = 1
        const tiles_t tiles = tiles_at(from, run);
        const dim_t size = tiles.rows * tiles.groups * tiles.unit;
        const dim_t pause = steps_between(tiles);
        const dim_t steps = tiles.n == 0 ? 0 : (tiles.n + 1) * size + pause;
        tile_walk_t at = first_word(tiles);
    ARRANGE:
        for (dim_t i = 0; i < steps; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS DEPENDENCE variable = block type = inter direction = RAW distance = 4 true
#pragma HLS LOOP_TRIPCOUNT min = 5 max = 16777216 avg = 65536
            ECORL_WATCH(block, ARRANGE, RAW, 4, i, tiles.n, tiles.rows, tiles.groups, tiles.unit);
            const bool pauses = i >= size && i < size + pause;
            const dim_t place = at.index >= at.wrap ? at.index : at.over + at.back + at.word;
            if (at.tile > 0 && !pauses) out.write(block[place]);
            if (at.tile < tiles.n && !pauses) block[place] = in.read();
            if (!pauses) go_on(at, tiles);
            Counted::arrange_cycle();
        }
    }
}

}  // namespace ecorl

// The pages of the KV cache in the card's memory: who writes them and who reads them include this.
//
// A page holds PAGE positions of one head of one sequence, the first at a multiple of PAGE. Its
// head size d is a multiple of HEAD_UNIT; smaller heads are filled up with zeros. In beats of 64
// bytes, from the page's beginning:
//
//   from       beats
//   0          d      keys     beat [position / 8][c / 8]
//                              byte [c / 4 % 2][position % 8][c % 4]
//   d          d      values   beat [c / 8][position / 8]
//                              byte [position / 4 % 2][c % 8][position % 4]
//   2 d        4      key_m    INT32 [position]
//   2 d + 4    4      key_e    INT32 [position]
//   2 d + 8    4      value_m  INT32 [position], the upper 16 bits of the mantissa
//   2 d + 12   4      value_e  INT32 [position]
//
// c is the channel of the head. A page has (2 d + 16) * 64 bytes: 5,120 for d = 32, 9,216 for 64,
// 13,312 for 96, 17,408 for 128. Positions without a token are zeros. Keys and values have one
// order, that in which the array of mha_int8 takes them: 8 rows of a matrix by 8 of its columns a
// beat, two cycles of 8 x 4. The values are turned: their rows are the channels.
//
// A page table has an INT32 entry for each page of a sequence: the number of the page. Sequences
// that begin alike share entries.
#pragma once

#include "ecorl_rows.hpp"

namespace ecorl {

constexpr int ARRAY_LANES = 8;   ///< keys, or channels of the values, in the array at a time
constexpr int MAC_STEP = 4;      ///< codes of a row that the array takes in a cycle
constexpr int HEAD_UNIT = 16;    ///< head sizes on the card are multiples of it
constexpr int MAX_HEAD = 128;    ///< largest head size
constexpr int MAX_PAGES = 1024;  ///< pages of a sequence: the sums of its weights are INT32
constexpr int BEAT_INTS = BEAT / 4;
constexpr int PAGE_ROWS = 4;  ///< INT32 rows of a page: the scales of keys and of values
constexpr int ROW_BEATS = PAGE / BEAT_INTS;
constexpr int SCALE_BEATS = PAGE_ROWS * ROW_BEATS;

static_assert(PAGE % (2 * MAC_STEP) == 0 && HEAD_UNIT % ARRAY_LANES == 0 &&
                  ARRAY_LANES == 2 * MAC_STEP,
              "keys and turned values share one order");

/// One 512-bit beat of memory.
struct beat_t {
    code_t value[BEAT];
};

/// Beats of a page.
constexpr dim_t page_beats(dim_t d) {
    return 2 * d + SCALE_BEATS;
}

/// The i-th INT32 of a beat.
inline value_t int_of(const beat_t& beat, int i) {
#pragma HLS INLINE
    value_t v = 0;
    for (int b = 0; b < 4; ++b) {
#pragma HLS UNROLL
        v |= value_t(value_t(value_t(beat.value[4 * i + b]) & 255) << (8 * b));
    }
    return v;
}

inline void put_int(beat_t& beat, int i, value_t v) {
#pragma HLS INLINE
    for (int b = 0; b < 4; ++b) {
#pragma HLS UNROLL
        beat.value[4 * i + b] = code_t(v >> (8 * b));
    }
}

// ---- rows of codes, turned on the chip ------------------------------------------------------

/// Eight neighbouring codes of one position.
struct chunk_t {
    code_t value[ARRAY_LANES];
};

/// The codes of a page's positions: chunk [position % 8][c / 8][position / 8]. A beat of one
/// position and a beat of eight both touch each memory once when dimension 1 is apart, and
/// dimension 2 in eight.
using chunks_t = chunk_t[ARRAY_LANES][MAX_HEAD / ARRAY_LANES][PAGE / ARRAY_LANES];

/// Take the part-th 64 codes of one position.
inline void put_codes(chunks_t chunks, const beat_t& beat, dim_t position, dim_t part) {
#pragma HLS INLINE
    for (int i = 0; i < BEAT / ARRAY_LANES; ++i) {
#pragma HLS UNROLL
        chunk_t chunk;
        for (int c = 0; c < ARRAY_LANES; ++c) {
#pragma HLS UNROLL
            chunk.value[c] = beat.value[i * ARRAY_LANES + c];
        }
        chunks[position % ARRAY_LANES][part * (BEAT / ARRAY_LANES) + i][position / ARRAY_LANES] =
            chunk;
    }
}

/// The two orders of codes in a page.
enum order { KEYS, VALUES };

/// Where the element of a row and a column of a matrix stands in a beat, both modulo 8.
constexpr int byte_at(int row, int column) {
    return column / MAC_STEP * (ARRAY_LANES * MAC_STEP) + row * MAC_STEP + column % MAC_STEP;
}

/// Where the code of channel c of a position stands in a beat, both modulo 8.
template <order O>
constexpr int byte_of(int position, int c) {
    return O == KEYS ? byte_at(position, c) : byte_at(c, position);
}

/// Channels [8 c8, 8 c8 + 8) of positions [8 p8, 8 p8 + 8) as a beat.
template <order O>
beat_t beat_of(const chunks_t chunks, dim_t p8, dim_t c8) {
#pragma HLS INLINE
    beat_t beat;
    for (int lane = 0; lane < ARRAY_LANES; ++lane) {
#pragma HLS UNROLL
        const chunk_t chunk = chunks[lane][c8][p8];
        for (int c = 0; c < ARRAY_LANES; ++c) {
#pragma HLS UNROLL
            beat.value[byte_of<O>(lane, c)] = chunk.value[c];
        }
    }
    return beat;
}

/// The way back of beat_of.
template <order O>
void put_beat(chunks_t chunks, const beat_t& beat, dim_t p8, dim_t c8) {
#pragma HLS INLINE
    for (int lane = 0; lane < ARRAY_LANES; ++lane) {
#pragma HLS UNROLL
        chunk_t chunk;
        for (int c = 0; c < ARRAY_LANES; ++c) {
#pragma HLS UNROLL
            chunk.value[c] = beat.value[byte_of<O>(lane, c)];
        }
        chunks[lane][c8][p8] = chunk;
    }
}

}  // namespace ecorl

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
// beat, two cycles of 8 x 4. The values are transposed: their rows are the channels.
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
              "keys and transposed values share one order");

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

}  // namespace ecorl

// What the loops over a row are written on: words of sixteen values side by side, 512 bits.
//
// All builds of a kernel work alike: a loop takes one word a cycle, what it carries from word to
// word are sixteen running values, one a lane, and a balanced tree brings them together after the
// loop. So no comparison waits for its neighbour's. lane_functions.hpp holds the arithmetic of a
// lane, as templates over what a lane is:
//
//   exact   one integer of exact width: the kernels, in the strict build, the fast build and Vitis
//   others  a vector register of sixteen: the host's own paths in the fast build (sim/)
#pragma once

#include "ecorl_fixed.hpp"

// A function of a lane is part of the loop that uses it: HLS INLINE in hardware, and here, so that
// lanes in registers stay there.
#ifdef ECORL_NATIVE
#define ECORL_LANE static inline __attribute__((always_inline))
#else
#define ECORL_LANE static inline
#endif

namespace ecorl {

constexpr int LANES = 16;  ///< values of a word

/// 16 neighbouring values of one row.
struct word_t {
    value_t lane[LANES];
};

/// A word with the same value in each lane.
static inline word_t all_lanes(value_t v) {
#pragma HLS INLINE
    word_t word;
    for (int i = 0; i < LANES; ++i) {
#pragma HLS UNROLL
        word.lane[i] = v;
    }
    return word;
}

/// What a tree brings two lanes together by.
struct larger_of {
    static value_t of(value_t a, value_t b) {
#pragma HLS INLINE
        return larger(a, b);
    }
};

struct bits_of_either {
    static value_t of(value_t a, value_t b) {
#pragma HLS INLINE
        return a | b;
    }
};

struct sum_of_both {
    template <class T>
    static T of(const T& a, const T& b) {
#pragma HLS INLINE
        return T(a + b);
    }
};

/// Sixteen values brought together by a balanced tree.
template <class Fold, class T>
static inline T folded(T part[LANES]) {
#pragma HLS INLINE
TREE:
    for (int width = LANES / 2; width > 0; width /= 2) {
#pragma HLS UNROLL
        for (int i = 0; i < width; ++i) {
#pragma HLS UNROLL
            part[i] = Fold::of(part[i], part[i + width]);
        }
    }
    return part[0];
}

/// The lanes of a word, each as a T, brought together.
template <class Fold, class T>
static inline T folded_lanes(const word_t& word) {
#pragma HLS INLINE
    T part[LANES];
#pragma HLS ARRAY_PARTITION variable = part complete
    for (int i = 0; i < LANES; ++i) {
#pragma HLS UNROLL
        part[i] = word.lane[i];
    }
    return folded<Fold>(part);
}

/// The largest lane.
static inline value_t largest(const word_t& word) {
#pragma HLS INLINE
    return folded_lanes<larger_of, value_t>(word);
}

/// All bits that are set in any lane.
static inline value_t any_bit(const word_t& word) {
#pragma HLS INLINE
    return folded_lanes<bits_of_either, value_t>(word);
}

/// The sum of the lanes.
static inline sint<36> total(const word_t& word) {
#pragma HLS INLINE
    return folded_lanes<sum_of_both, sint<36> >(word);
}

/// One lane of a kernel: an integer of exact width. Shifts are by 0..31 bits, so that no shifter
/// goes both ways.
struct exact {
    using value = value_t;

    static value all(value_t v) {
#pragma HLS INLINE
        return v;
    }
    static value select(bool mask, value yes, value no) {
#pragma HLS INLINE
        return mask ? yes : no;
    }
    static value larger(value a, value b) {
#pragma HLS INLINE
        return a > b ? a : b;
    }
    static value smaller(value a, value b) {
#pragma HLS INLINE
        return a < b ? a : b;
    }
    static value magnitude(value v) {
#pragma HLS INLINE
        return v < 0 ? value(-v) : v;
    }
    static value left(value v, value n) {
#pragma HLS INLINE
        return v << amount(n);
    }
    static value right(value v, value n) {
#pragma HLS INLINE
        return v >> amount(n);
    }
    /// The upper half of the product.
    static value high(value a, value b) {
#pragma HLS INLINE
        return value(ecorl::product<32, 32>(a, b) >> 32);
    }
    /// (a * b) >> 16 for b of 17 bits with its sign.
    static value high_of_17(value a, value b) {
#pragma HLS INLINE
        return value(ecorl::product<32, 17>(a, sint<17>(b)) >> 16);
    }
    /// The product of an A-bit and a B-bit number, which fits a value.
    template <int A, int B>
    static value product(value a, value b) {
#pragma HLS INLINE
        return value(ecorl::product<A, B>(sint<A>(a), sint<B>(b)));
    }

  private:
#ifdef ECORL_NATIVE
    static int amount(value n) { return n; }
#else
    static ap_uint<5> amount(value n) {
#pragma HLS INLINE
        return ap_uint<5>(n);
    }
#endif
};

}  // namespace ecorl

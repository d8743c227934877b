// The one type switch of the kernels: bit-true widths or native integers.
//
// Three builds share the kernel sources:
//   strict  g++ with ECORL_CSIM and ECORL_STRICT: ap_int of the exact width, so that a value that
//           does not fit wraps as it would on the card. This build is the gate.
//   fast    g++ with ECORL_CSIM and ECORL_NATIVE: the smallest native integer that holds the width.
//   Vitis   neither: ap_int, and nothing of what the C-simulation library adds.
#pragma once

#include <cstdint>
#include <type_traits>

#ifndef ECORL_NATIVE
#include <ap_int.h>
#endif

namespace ecorl {

#ifndef ECORL_NATIVE

/// Signed integer of exactly W bits.
template <int W>
using sint = ap_int<W>;

/// The lowest W bits of `x`, read as a signed number.
template <int W, int V>
ap_int<W> low_bits(const ap_int<V>& x) {
#pragma HLS INLINE
    return ap_int<W>(x);  // ap_int drops the bits above its width
}

/// Exact product of a V-bit and a W-bit number, V + W bits wide.
template <int V, int W>
ap_int<V + W> product(const ap_int<V>& x, const ap_int<W>& y) {
#pragma HLS INLINE
    return x * y;
}

#else

/// Signed native integer of at least W bits (W <= 64).
template <int W>
using sint = std::conditional_t<
    (W <= 8), std::int8_t,
    std::conditional_t<(W <= 16), std::int16_t,
                       std::conditional_t<(W <= 32), std::int32_t, std::int64_t> > >;

/// The lowest W bits of `x`, read as a signed number.
template <int W>
std::int64_t low_bits(std::int64_t x) {
    const auto moved = static_cast<std::uint64_t>(x) << (64 - W);
    return static_cast<std::int64_t>(moved) >> (64 - W);
}

/// Exact product of a V-bit and a W-bit number, V + W bits wide.
template <int V, int W>
sint<V + W> product(sint<V> x, sint<W> y) {
    return static_cast<sint<V + W> >(x) * y;
}

#endif

/// Quotient rounded up, for a >= 0 and b > 0.
constexpr int ceil_div(int a, int b) {
    return a / b + (a % b != 0 ? 1 : 0);
}

}  // namespace ecorl

// The C-simulation library may skip lanes that hold no data; in hardware they run idle. Bounds of
// fully unrolled loops are written ECORL_LANES(all lanes, lanes with data).
// ECORL_BUFFER is a large local buffer: static storage in hardware, one per host thread here.
#ifdef ECORL_CSIM
#define ECORL_LANES(all, live) (live)
#define ECORL_BUFFER static thread_local
#else
#define ECORL_LANES(all, live) (all)
#define ECORL_BUFFER static
#endif

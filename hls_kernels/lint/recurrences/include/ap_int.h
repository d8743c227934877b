// ap_int for the recurrence analysis, as far as the kernels use it: clang's _BitInt, so that the
// intermediate representation has the widths that Vitis HLS would schedule.
#pragma once

#include <type_traits>

template <int W>
struct ap_int;

namespace ap {

template <int W>
using native = std::conditional_t<
    (W <= 8), signed char,
    std::conditional_t<(W <= 16), short, std::conditional_t<(W <= 32), int, long long> > >;

/// Bits of a number as the operand of an ap_int; 0 for all else.
template <class T>
constexpr int width =
    std::is_integral<T>::value ? 8 * static_cast<int>(sizeof(T)) + std::is_unsigned<T>::value : 0;
template <int W>
constexpr int width<ap_int<W> > = W;

constexpr int larger(int v, int w) {
    return v > w ? v : w;
}

template <class A>
constexpr bool is_own = !std::is_integral<A>::value && width<A> > 0;

/// Both are numbers, and at least one is an ap_int.
template <class A, class B>
using if_own = std::enable_if_t<(width<A> > 0) && (width<B> > 0) && (is_own<A> || is_own<B>)>;

template <int TO, class A>
constexpr signed _BitInt(TO) raw(const A& x) {
    if constexpr (is_own<A>) {
        return static_cast<signed _BitInt(TO)>(x.bits);
    } else {
        return static_cast<signed _BitInt(TO)>(x);
    }
}

}  // namespace ap

template <int W>
struct ap_int {
    signed _BitInt(W) bits;

    ap_int() = default;
    template <class T, class = std::enable_if_t<(ap::width<T> > 0)> >
    constexpr ap_int(const T& x) : bits(ap::raw<W>(x)) {}

    constexpr operator ap::native<W>() const { return static_cast<ap::native<W> >(bits); }
    constexpr ap_int<W + 1> operator-() const { return ap_int<W + 1>(0) - *this; }
    constexpr ap_int operator~() const { return made(~bits); }
    constexpr bool operator!() const { return bits == 0; }
    constexpr ap_int operator<<(int n) const { return made(bits << n); }
    constexpr ap_int operator>>(int n) const { return made(bits >> n); }

    static constexpr ap_int made(signed _BitInt(W) x) {
        ap_int own = 0;
        own.bits = x;
        return own;
    }
};

/// Amounts of shifts.
template <int W>
struct ap_uint {
    unsigned _BitInt(W) bits;

    template <int V>
    constexpr explicit ap_uint(const ap_int<V>& x)
        : bits(static_cast<unsigned _BitInt(W)>(x.bits)) {}
    constexpr operator int() const { return static_cast<int>(bits); }
};

#define ECORL_AP_BINARY(op, bits_of_result)                            \
    template <class A, class B, class = ap::if_own<A, B> >             \
    constexpr auto operator op(const A& x, const B& y) {               \
        constexpr int V = ap::width<A>, W = ap::width<B>;              \
        constexpr int R = bits_of_result;                              \
        return ap_int<R>::made(ap::raw<R>(x) op ap::raw<R>(y));        \
    }                                                                  \
    template <int V, class B>                                          \
    constexpr ap_int<V>& operator op## = (ap_int<V> & x, const B& y) { \
        return x = x op y;                                             \
    }
#define ECORL_AP_COMPARED(op)                                     \
    template <class A, class B, class = ap::if_own<A, B> >        \
    constexpr bool operator op(const A& x, const B& y) {          \
        constexpr int R = ap::larger(ap::width<A>, ap::width<B>); \
        return ap::raw<R>(x) op ap::raw<R>(y);                    \
    }

ECORL_AP_BINARY(+, (ap::larger(V, W) + 1))
ECORL_AP_BINARY(-, (ap::larger(V, W) + 1))
ECORL_AP_BINARY(*, (V + W))
ECORL_AP_BINARY(/, (V + 1))
ECORL_AP_BINARY(%, (ap::larger(V, W)))
ECORL_AP_BINARY(&, (ap::larger(V, W)))
ECORL_AP_BINARY(|, (ap::larger(V, W)))
ECORL_AP_BINARY(^, (ap::larger(V, W)))
ECORL_AP_COMPARED(<)
ECORL_AP_COMPARED(>)
ECORL_AP_COMPARED(<=)
ECORL_AP_COMPARED(>=)
ECORL_AP_COMPARED(==)
ECORL_AP_COMPARED(!=)

#undef ECORL_AP_BINARY
#undef ECORL_AP_COMPARED

template <int W>
constexpr ap_int<W>& operator++(ap_int<W>& x) {
    return x += 1;
}
template <int W>
constexpr ap_int<W>& operator--(ap_int<W>& x) {
    return x -= 1;
}
template <int W>
constexpr ap_int<W>& operator<<=(ap_int<W>& x, int n) {
    return x = x << n;
}
template <int W>
constexpr ap_int<W>& operator>>=(ap_int<W>& x, int n) {
    return x = x >> n;
}

"""Kernel sources for the lint: `BAD` marks its bad lines with ``//! rule ...``, `GOOD` has none."""

from __future__ import annotations

BAD = {
    "does not compile": "int f() { return missing; }  //! compile\n",
    "array of run-time length": "int f(int n) { int a[n]; return a[0]; }  //! compile\n",
    "template that does not compile": """
        template <int N> int f(int x) { return x.y + N; }  //! compile
        int g(int x) { return f<2>(x); }
    """,
    "new and delete": """
        int f(int n) {
            int* a = new int[4];  //! heap
            n += a[0];
            delete[] a;  //! heap
            return n;
        }
    """,
    "malloc": """
        #include <cstdlib>  //! include
        void* f() { return malloc(4); }  //! heap
        void* g() { return std::malloc(4); }  //! heap
        void* h() { return __builtin_malloc(4); }  //! heap
        void i(void* p) { free(p); }  //! heap
        void* j() { return ::operator new(4); }  //! heap
        extern "C" void* memalign(int, int);
        void* k() { return memalign(4, 4); }  //! heap
    """,
    "containers that allocate": """
        #include <string>  //! include
        #include <vector>  //! include
        std::vector<int> kept;  //! heap
        void f(int n) { kept.push_back(n); }  //! heap
        std::string g();  //! heap
        using names = std::vector<std::string>;  //! heap
    """,
    "stl": """
        #include <algorithm>  //! include
        #include <array>  //! include
        std::array<int, 2> kept;  //! stl
        int f(int a, int b) { return std::max(a, b); }  //! stl
        template <typename T> T g(T a, T b) { return std::min(a, b); }  //! stl
        int h(int a, int b) {
            using namespace std;  //! stl
            swap(a, b);  //! stl
            return a;
        }
        namespace s = std;
        int i(int a) { return s::min(a, 3); }  //! stl
    """,
    "libm": """
        #include <cmath>  //! include
        template <typename T> T f(T x) { return sqrt(x); }  //! libm
        template <typename T> T g(T x) { return std::exp(x); }  //! libm
        int h(int x) { return std::pow(x, 2); }  //! float libm
        int i(int x) { return __builtin_tanhf(x); }  //! float libm
    """,
    "float": """
        float kept;  //! float
        int f(int x) {
            const auto y = x * 2.5;  //! float
            return int(y);  //! float
        }
        struct pair_t {
            int a;
            const double* b;  //! float
        };
        template <typename T> int g(T x) { return int(x); }
        int h(int x) { return g<float>(x); }  //! float
        #include <ap_int.h>
        int i(ap_int<8> x) { return x.to_double() > 1; }  //! float
        int j(long double);  //! float
    """,
    "recursion": """
        int direct(int n) { return n ? direct(n - 1) : 0; }  //! recursion
        int far(int n);
        int near(int n) { return far(n); }  //! recursion
        int middle(int n) { return near(n); }
        int far(int n) { return middle(n); }
        int outside(int n) { return far(n); }
    """,
    "recursion through templates": """
        template <int N> int down(int x) { return x + down<N - 1>(x); }  //! recursion
        template <> int down<0>(int x) { return x; }
        template <typename T> struct tree {
            int depth(int n) { return n ? left(n) : 0; }  //! recursion
            int left(int n) { return depth(n - 1); }
        };
        template <int N> int unused(int x) { return unused<N - 1>(x); }  //! recursion
        int f(int x) {
            tree<int> t;
            return down<3>(x) + t.depth(x);
        }
    """,
    "recursion that is found where templates are used": """
        template <typename T> int walk(T x);
        struct a_t { int n; };
        struct b_t { int n; };
        int step(a_t x) { return walk(b_t{x.n}); }  //! recursion
        int step(b_t x) { return walk(a_t{x.n}); }
        template <typename T> int walk(T x) { return step(x); }
        int f(int n) { return walk(a_t{n}); }
    """,
    "recursion through operators, constructors and template arguments": """
        struct number {
            int n;
            number(int m) : n(m > 0 ? number(m - 1).n : 0) {}  //! recursion
            int operator+(const number& x) const { return x + *this; }  //! recursion
        };
        template <int (*F)(int)> int apply(int x) { return F(x); }  //! recursion
        int back(int x) { return apply<back>(x); }
    """,
    "recursion of a lambda": """
        int f(int n) {
            auto g = [](auto self, int m) -> int {  //! recursion
                return m ? self(self, m - 1) : 0;
            };
            return g(g, n);
        }
    """,
    "calls that cannot be followed": """
        int f(int n) { return n; }
        int g(int n) {
            int (*p)(int) = f;
            return p(n);  //! recursion
        }
        struct base {
            virtual int h(int n) { return n; }  //! recursion
        };
    """,
    "unbounded loops": """
        int f(int n) {
        A:
            while (true) {  //! unbounded-loop
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 8
                if (++n > 8) break;
            }
        B:
            for (;;) ++n;  //! unbounded-loop
        C:
            for (int i = 0;; ++i) n += i;  //! unbounded-loop
        D:
            while (n > 1) n >>= 1;  //! unbounded-loop
        E:
            do {  //! unbounded-loop
                ++n;
            } while (n & 1);
        F:
            do ++n; while (1 + 1);  //! unbounded-loop
            goto G;  //! unbounded-loop
        G:
            return n;
        }
    """,
    "loops without label": """
        template <int N> int f(const int a[N], int n) {
            for (int i = 0; i < N; ++i) n += a[i];  //! loop-label
            while (n > 1) {  //! loop-label
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 8
                n >>= 1;
            }
            for (int i = 0; i < N; ++i) {  //! loop-label
        #pragma HLS UNROLL factor = 2
                n += a[i];
            }
            for (int i = 0; i < N; ++i) {  //! loop-label
                {
        #pragma HLS UNROLL
                    n += a[i];
                }
            }
            for (int i = 0; i < N; ++i) {  //! loop-label
                for (int j = 0; j < N; ++j) {
        #pragma HLS UNROLL
                    n += a[j];
                }
            }
            for (int i = 0; i < n; ++i) {  //! loop-label
        #pragma HLS UNROLL
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 8
                n += a[i];
            }
            return n;
        }
    """,
    "loops without trip count": """
        int twice(int n) { return 2 * n; }
        template <int N> int f(const int a[N], int n) {
        A:
            for (int i = 0; i < n; ++i) {  //! trip-count
        #pragma HLS PIPELINE II = 1
                n += a[i];
            }
        B:
            for (int i = n; i > 0; --i) {  //! trip-count
        #pragma HLS LOOP_TRIPCOUNT max = 8
                n -= a[i];
            }
        C:
            for (int i = 0; i < N; --i) n += 1;  //! trip-count
        D:
            for (int i = 0; i < N; i += n) n += 1;  //! trip-count
        E:
            for (int i = 0; i < N; ++i) i = n;  //! trip-count
        F:
            for (int i = 0; i < twice(N); ++i) n += i;  //! trip-count
        G:
            for (int i = 0; i < n; ++i) {  //! trip-count
        #ifdef ECORL_CSIM
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 8
        #endif
                n += 1;
            }
        H:
            for (unsigned i = N; i >= 0; --i) n += 1;  //! trip-count
        I:
            for (int i = N; i >= 0; i >>= 1) n += 1;  //! trip-count
        J:
            for (int i = 0; i != N; ++i) n += 1;  //! trip-count
        K:
            for (int width = N / 2; width > 0; width /= 2) {
                for (int i = 0; i < width; ++i) {  //! loop-label trip-count
        #pragma HLS UNROLL
                    n += a[i];
                }
            }
            return n;
        }
    """,
    "loops that a constexpr function runs in hardware": """
        template <int K = 2>
        constexpr int sum(int n) {
            int s = 0;
            for (int i = 0; i < n; ++i) s += i * K;  //! loop-label trip-count
            return s;
        }
        int f(int n) { return sum(n); }
    """,
    "loops of a macro": """
        #define EACH(i, n) for (int i = 0; i < n; ++i)
        int f(int n) {
        A:
            EACH(i, 3) n += i;  //! loop-label
            return n;
        }
    """,
    "label twice": """
        int f(int n) {
        A:
            for (int i = 0; i < 3; ++i) n += i;
        A:  //! label-twice
            for (int i = 0; i < 3; ++i) n += i;
            return n;
        }
    """,
}

GOOD = """
#include <ap_int.h>
#include <hls_stream.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "ecorl_types.hpp"

#ifdef ECORL_CSIM
#include <vector>
static std::vector<double> seen;
#endif
#ifndef __SYNTHESIS__
float on_the_host() { return 1.0f; }
#endif

namespace ecorl {
constexpr int LANES = 16;
enum { ROWS = 4 };

template <int W>
struct table_t {
    static constexpr int size = 1 << W;
};

// a function of ours may bear the name of one of libm
template <int W>
sint<W> exp(sint<W> x) {
    static_assert(std::is_signed<std::int32_t>::value && W < 64, "");
    return x >> 1;
}

constexpr int half(int n) { return n / 2; }

// overloads that call each other in one direction are no recursion, used or not
template <int W, typename T>
T shifted(T x, int by) { return x >> by; }
template <int W, typename T>
T shifted(T x) { return shifted<W>(x, 1) + half(W); }
template <typename T>
T never_used(T x, T y) { return x + y; }
template <typename T>
T never_used(T x) { return never_used(x, x); }

// what the compiler itself runs is no hardware: such loops cannot bear labels
struct squares_t {
    int value[LANES];
};
constexpr int square(int n) {
    int s = 0;
    for (int i = 0; i < n; ++i) s += n;
    return s;
}
constexpr squares_t make_squares() {
    squares_t made = {};
    for (int i = 0; i < LANES; ++i) made.value[i] = square(i);
    return made;
}
static constexpr squares_t SQUARES = make_squares();
static_assert(square(3) == 9, "");

template <int N, typename T>
sint<32> sum(const sint<8> a[N], hls::stream<sint<8>>& in, std::int32_t n, std::size_t m) {
    const int pairs = half(N) + LANES / 2;
    std::conditional_t<(N > 8), std::int32_t, std::int16_t> counter = 0;
    sint<32> total = 0;
CONSTANT:
    for (int i = 0; i < pairs; ++i) total += a[i % N];
    for (int i = 0, j = 1; i < table_t<N>::size; i += 2) {
#pragma HLS unroll
        total += a[i % N] * j;
    }
    for (auto s = LANES / 2; 0 < s; s >>= 1) {
#pragma HLS UNROLL
        const int t = s - 1;
        total += t;
    }
    // a tree: in each copy of the outer loop the inner one has a constant bound
TREE:
    for (int width = LANES / 2; width > 0; width /= 2) {
#pragma HLS UNROLL
        for (int i = 0; i < width; ++i) {
#pragma HLS UNROLL
            total += a[i + width];
        }
    }
    const int both[2] = {1, 2};
RANGE:
    for (const int x : both) total += x;
RUN_TIME:
    for (std::int32_t i = 0; i < n; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 8 avg = 4
        total += in.read();
    BACK:
        for (int r = ROWS; r >= 1; --r) {
#pragma HLS UNROLL factor = 2
            total += r;
        }
    }
REST:
    while (n > 0) {
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 8
        --n;
    }
    auto add = [&](int x) { return x + int(m); };
    return exp<32>(shifted<8>(total)) + add(n) + counter + SQUARES.value[n];
}
}  // namespace ecorl

extern "C" int top(const ecorl::sint<8>* a, std::int32_t n) {
    hls::stream<ecorl::sint<8>, 16> in("in");
    return ecorl::sum<16, int>(a, in, n, 1);
}
"""

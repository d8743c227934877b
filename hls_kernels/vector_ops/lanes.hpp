// Sixteen lanes of float32 or int32, the width in which all vector operations reduce.
//
// The same bits come out of every build and on every CPU, because
//   * each operation below is one correctly rounded IEEE-754 operation per lane,
//   * a reduction keeps one partial sum per lane and folds the lanes by a fixed tree,
//   * exp and log are our own polynomials: no libm, whose versions differ,
//   * the build forbids contraction to fused multiply-add (-ffp-contract=off) and -ffast-math.
//
// A block is held in ECORL_PIECES equal pieces: 1 for 512-bit registers, 2 for 256-bit, 4 for
// 128-bit, 16 for scalars (any compiler). vector_ops.cpp includes this file once per choice, each
// time in a namespace of its own; hence no include guard.

#if defined(__FAST_MATH__)
#error "-ffast-math would make results depend on the compiler"
#endif

constexpr int kLanes = 16;
constexpr int kPieces = ECORL_PIECES;

#if ECORL_PIECES == 16
#define ECORL_INLINE static inline
#define ECORL_BLOCK [&](const int32_t j, const int32_t w)
typedef float FloatPiece;
typedef int32_t IntPiece;
typedef int8_t BytePiece;
ECORL_INLINE IntPiece less(float a, float b) {
    return a < b ? -1 : 0;
}
ECORL_INLINE IntPiece less(int32_t a, int32_t b) {
    return a < b ? -1 : 0;
}
ECORL_INLINE IntPiece shifted_left(int32_t a, int n) {
    return (int32_t)((uint32_t)a << n);
}
ECORL_INLINE FloatPiece to_float(IntPiece x) {
    return (float)x;
}
ECORL_INLINE BytePiece narrow(IntPiece x) {
    return (int8_t)x;
}
#else
#define ECORL_INLINE static inline __attribute__((always_inline))
#define ECORL_BLOCK [&](const int32_t j, const int32_t w) __attribute__((always_inline))
typedef float FloatPiece __attribute__((vector_size(64 / ECORL_PIECES)));
typedef int32_t IntPiece __attribute__((vector_size(64 / ECORL_PIECES)));
typedef int8_t BytePiece __attribute__((vector_size(16 / ECORL_PIECES)));
ECORL_INLINE IntPiece less(FloatPiece a, FloatPiece b) {
    return a < b;
}
ECORL_INLINE IntPiece less(IntPiece a, IntPiece b) {
    return a < b;
}
ECORL_INLINE IntPiece shifted_left(IntPiece a, int n) {
    return a << n;
}
ECORL_INLINE FloatPiece to_float(IntPiece x) {
    return __builtin_convertvector(x, FloatPiece);
}
#endif

template <typename Piece>
struct Block {
    Piece p[kPieces];
};
typedef Block<FloatPiece> Floats;
typedef Block<IntPiece> Ints;
typedef Block<BytePiece> Bytes;

#define ECORL_LANEWISE(Result, Operand, name, expression)          \
    ECORL_INLINE Result name(const Operand& a, const Operand& b) { \
        Result r;                                                  \
        for (int i = 0; i < kPieces; ++i) r.p[i] = expression;     \
        return r;                                                  \
    }
ECORL_LANEWISE(Floats, Floats, operator+, a.p[i] + b.p[i])
ECORL_LANEWISE(Floats, Floats, operator-, a.p[i] - b.p[i])
ECORL_LANEWISE(Floats, Floats, operator*, a.p[i] * b.p[i])
ECORL_LANEWISE(Floats, Floats, operator/, a.p[i] / b.p[i])
ECORL_LANEWISE(Ints, Ints, operator-, a.p[i] - b.p[i])
ECORL_LANEWISE(Ints, Ints, operator&, a.p[i] & b.p[i])
ECORL_LANEWISE(Ints, Floats, operator<, less(a.p[i], b.p[i]))
ECORL_LANEWISE(Ints, Ints, operator<, less(a.p[i], b.p[i]))
// The larger of each lane; b where either is NaN.
ECORL_LANEWISE(Floats, Floats, max_of, less(b.p[i], a.p[i]) ? a.p[i] : b.p[i])
ECORL_LANEWISE(Ints, Ints, max_of, less(b.p[i], a.p[i]) ? a.p[i] : b.p[i])
#undef ECORL_LANEWISE

ECORL_INLINE Floats splat(float x) {
    Floats r;
    for (int i = 0; i < kPieces; ++i) r.p[i] = x - FloatPiece{};
    return r;
}
ECORL_INLINE Ints splat(int32_t x) {
    Ints r;
    for (int i = 0; i < kPieces; ++i) r.p[i] = x - IntPiece{};
    return r;
}
ECORL_INLINE Floats to_float(const Ints& x) {
    Floats r;
    for (int i = 0; i < kPieces; ++i) r.p[i] = to_float(x.p[i]);
    return r;
}
// To INT8; the values are within -128..127.
ECORL_INLINE Bytes narrow(const Ints& x) {
    Bytes r;
#if ECORL_PIECES == 16
    for (int i = 0; i < kPieces; ++i) r.p[i] = (int8_t)x.p[i];
#elif defined(__x86_64__) && ECORL_PIECES == 2
    const __m256i pairs = _mm256_packs_epi32((__m256i)x.p[0], (__m256i)x.p[1]);
    const __m256i words = _mm256_permute4x64_epi64(pairs, 0xd8);  // undo the split in two halves
    const __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    std::memcpy(&r, &bytes, sizeof r);
#elif defined(__x86_64__) && ECORL_PIECES == 4
    const __m128i low = _mm_packs_epi32((__m128i)x.p[0], (__m128i)x.p[1]);
    const __m128i high = _mm_packs_epi32((__m128i)x.p[2], (__m128i)x.p[3]);
    const __m128i bytes = _mm_packs_epi16(low, high);
    std::memcpy(&r, &bytes, sizeof r);
#else
    for (int i = 0; i < kPieces; ++i) r.p[i] = __builtin_convertvector(x.p[i], BytePiece);
#endif
    return r;
}
ECORL_INLINE Ints shifted_left(const Ints& x, int n) {
    Ints r;
    for (int i = 0; i < kPieces; ++i) r.p[i] = shifted_left(x.p[i], n);
    return r;
}
ECORL_INLINE Floats select(const Ints& mask, const Floats& yes, const Floats& no) {
    Floats r;
    for (int i = 0; i < kPieces; ++i) r.p[i] = mask.p[i] ? yes.p[i] : no.p[i];
    return r;
}
// One piece at a time: a copy of the whole block would go through memory.
ECORL_INLINE Ints bits_of(const Floats& x) {
    Ints r;
    for (int i = 0; i < kPieces; ++i) std::memcpy(&r.p[i], &x.p[i], sizeof r.p[i]);
    return r;
}
ECORL_INLINE Floats float_of(const Ints& x) {
    Floats r;
    for (int i = 0; i < kPieces; ++i) std::memcpy(&r.p[i], &x.p[i], sizeof r.p[i]);
    return r;
}

// Loads and stores of a whole block, and of its first n lanes (the rest read as zero).
template <typename B, typename T>
ECORL_INLINE B load_block(const T* p) {
    B r;
    for (int i = 0; i < kPieces; ++i) {
        std::memcpy(&r.p[i], p + i * (kLanes / kPieces), sizeof r.p[i]);
    }
    return r;
}
template <typename B, typename T>
ECORL_INLINE B load_block(const T* p, int n) {
    if (n >= kLanes) return load_block<B>(p);
    T whole[kLanes] = {};
    if (n == kLanes / 2) {
        std::memcpy(whole, p, sizeof whole / 2);  // a constant size, for heads of half a block
    } else {
        std::memcpy(whole, p, (size_t)n * sizeof(T));
    }
    return load_block<B>(whole);
}
ECORL_INLINE Floats load(const float* p) {
    return load_block<Floats>(p);
}
ECORL_INLINE Floats load(const float* p, int n) {
    return load_block<Floats>(p, n);
}
ECORL_INLINE Ints load(const int32_t* p) {
    return load_block<Ints>(p);
}
ECORL_INLINE Ints load(const int32_t* p, int n) {
    return load_block<Ints>(p, n);
}
template <typename B, typename T>
ECORL_INLINE void store_block(T* p, const B& x) {
    for (int i = 0; i < kPieces; ++i) {
        std::memcpy(p + i * (kLanes / kPieces), &x.p[i], sizeof x.p[i]);
    }
}
template <typename B, typename T>
ECORL_INLINE void store_block(T* p, const B& x, int n) {
    if (n >= kLanes) return store_block(p, x);
    T whole[kLanes];
    store_block(whole, x);
    if (n == kLanes / 2) {
        std::memcpy(p, whole, sizeof whole / 2);
    } else {
        std::memcpy(p, whole, (size_t)n * sizeof(T));
    }
}
ECORL_INLINE void store(float* p, const Floats& x, int n = kLanes) {
    store_block(p, x, n);
}
ECORL_INLINE void store(int8_t* p, const Bytes& x, int n = kLanes) {
    store_block(p, x, n);
}

// All ones in the first n lanes.
ECORL_INLINE Ints first_lanes(int n) {
    static const int32_t index[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return load_block<Ints>(index) < splat((int32_t)n);
}

ECORL_INLINE float first_lane(const Floats& x) {
    float v;
    std::memcpy(&v, &x, sizeof v);
    return v;
}
ECORL_INLINE int32_t first_lane(const Ints& x) {
    int32_t v;
    std::memcpy(&v, &x, sizeof v);
    return v;
}

// Every lane moved down by n places, cyclically.
template <typename B>
ECORL_INLINE B lanes_from(const B& x, int n) {
    B r;
#if ECORL_PIECES == 16
    for (int i = 0; i < kLanes; ++i) r.p[i] = x.p[(i + n) % kLanes];
#elif defined(__clang__)
    // __builtin_shuffle is g++'s alone; of copies at constant offsets clang makes shuffles itself.
    char twice[2 * sizeof(B)];
    std::memcpy(twice, &x, sizeof x);
    std::memcpy(twice + sizeof x, &x, sizeof x);
    std::memcpy(&r, twice + (size_t)n * (sizeof(B) / kLanes), sizeof r);
#elif ECORL_PIECES == 4
    const IntPiece within = {(n + 0) & 3, (n + 1) & 3, (n + 2) & 3, (n + 3) & 3};
    for (int i = 0; i < kPieces; ++i) {  // the folds move by whole pieces, or within the first
        r.p[i] = n >= 4 ? x.p[(i + n / 4) % kPieces] : __builtin_shuffle(x.p[i], within);
    }
#elif ECORL_PIECES == 2
    const IntPiece within = {(n + 0) & 7, (n + 1) & 7, (n + 2) & 7, (n + 3) & 7,
                             (n + 4) & 7, (n + 5) & 7, (n + 6) & 7, (n + 7) & 7};
    for (int i = 0; i < kPieces; ++i) {
        r.p[i] = n >= 8 ? x.p[1 - i] : __builtin_shuffle(x.p[i], within);
    }
#else
    const IntPiece within = {(n + 0) & 15,  (n + 1) & 15,  (n + 2) & 15,  (n + 3) & 15,
                             (n + 4) & 15,  (n + 5) & 15,  (n + 6) & 15,  (n + 7) & 15,
                             (n + 8) & 15,  (n + 9) & 15,  (n + 10) & 15, (n + 11) & 15,
                             (n + 12) & 15, (n + 13) & 15, (n + 14) & 15, (n + 15) & 15};
    r.p[0] = __builtin_shuffle(x.p[0], within);
#endif
    return r;
}

// The fixed tree: lane i with lane i + 8, then + 4, + 2, + 1. Only lane 0 is read, so what wraps
// around does not matter.
ECORL_INLINE float sum_lanes(const Floats& x) {
    const Floats a = x + lanes_from(x, 8), b = a + lanes_from(a, 4), c = b + lanes_from(b, 2);
    return first_lane(c + lanes_from(c, 1));
}
template <typename B>
ECORL_INLINE auto max_lanes(const B& x) -> decltype(first_lane(x)) {
    const B a = max_of(x, lanes_from(x, 8)), b = max_of(a, lanes_from(a, 4));
    const B c = max_of(b, lanes_from(b, 2));
    return first_lane(max_of(c, lanes_from(c, 1)));
}

// ECORL_BLOCK { ... } is the body for the block of w elements from j; each_block runs it over n
// elements. w is the constant kLanes but in a last, shorter block.
template <typename Body>
ECORL_INLINE void each_block(int32_t n, const Body& body) {
    int32_t j = 0;
    for (; j + kLanes <= n; j += kLanes) {
#pragma HLS PIPELINE II = 1
        body(j, kLanes);
    }
    if (j < n) body(j, n - j);
}

// 1.5 * 2^23: adding it to |x| < 2^22 leaves round-half-to-even(x) in the low mantissa bits.
constexpr float kRound = 12582912.0f;
constexpr int32_t kRoundBits = 0x4B400000;

// Round half to even; exact for |x| < 2^22.
ECORL_INLINE Ints round_lanes(const Floats& x) {
    return bits_of(x + splat(kRound)) - splat(kRoundBits);
}

// |x| as bits: ordered like the magnitudes, with NaN above infinity above all finite values, so
// that a maximum over them neither depends on order nor loses a NaN.
ECORL_INLINE Ints magnitude_bits(const Floats& x) {
    return bits_of(x) & splat((int32_t)0x7fffffff);
}

// e^x, relative error below 2e-7 on [-87.3, 88.3]; clamped below, NaN stays NaN. Arguments must not
// be above 88.3.
ECORL_INLINE Floats exp_bounded(const Floats& argument) {
    const Floats low = splat(-87.3f);
    const Floats x = select(argument < low, low, argument);
    const Floats shifted = x * splat(1.44269504f) + splat(kRound);
    const Floats n = shifted - splat(kRound);
    // ln 2 in two parts; n * 0.693359375 is exact
    const Floats r = (x - n * splat(0.693359375f)) - n * splat(-2.12194440e-4f);
    // Taylor-like minimax polynomial of (e^r - 1 - r) / r^2 on [-ln2/2, ln2/2]
    Floats p = splat(1.9875691500e-4f);
    p = p * r + splat(1.3981999507e-3f);
    p = p * r + splat(8.3334519073e-3f);
    p = p * r + splat(4.1665795894e-2f);
    p = p * r + splat(1.6666665459e-1f);
    p = p * r + splat(5.0000001201e-1f);
    const Floats y = (p * (r * r) + r) + splat(1.0f);
    const Ints exponent = shifted_left(bits_of(shifted) - splat(kRoundBits - 127), 23);
    return y * float_of(exponent);
}

// e^x for any x: clamped above too.
ECORL_INLINE Floats exp_lanes(const Floats& x) {
    const Floats high = splat(88.3f);
    return exp_bounded(select(high < x, high, x));
}

// Inner products of the fast build on AMX tiles, which many a recent Intel processor has.
//
// A word of the packed weights is one row of a weight tile: 16 columns of four steps. So tiles of
// 16 words load as they lie in memory, and one instruction multiplies 16 rows by 16 columns over 64
// steps, exactly. What does not fill a tile of 16 rows goes to the vector path.
#include "gemm_int8_sim.hpp"

#ifdef ECORL_NATIVE

#if defined(__x86_64__) && defined(__linux__) && __has_include(<amxint8intrin.h>)
#define ECORL_HAS_AMX
#endif

#ifdef ECORL_HAS_AMX
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#endif

namespace ecorl {
namespace gemm {

#ifdef ECORL_HAS_AMX

#define ECORL_AMX __attribute__((target("amx-tile,amx-int8")))
#define ECORL_AMX_INLINE __attribute__((target("amx-tile,amx-int8"), always_inline)) inline

namespace {

constexpr std::int32_t SIDE = 16;   ///< rows and columns of a tile of sums
constexpr std::int32_t DEPTH = 64;  ///< steps of a tile of codes
constexpr std::int32_t TILE_BYTES = 1024;
constexpr std::int32_t ROWS = 64;  ///< rows whose activations stay in cache while W passes
static_assert(TILE_N == SIDE && WORD_BYTES == DEPTH, "a word is a row of a weight tile");

/// What ldtilecfg reads: eight tiles of 16 rows of 64 bytes.
struct alignas(64) tile_config {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t bytes_per_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

/// A column of weight tiles. The last one may lack steps: it is read from a copy with zeros.
struct weights_t {
    const std::int8_t* whole;
    const std::int8_t* rest;
};

/// Up to 32 rows of A, `stride` bytes apart: `whole` tiles of steps, and one more with a rest.
struct rows_t {
    const std::int8_t* a;
    std::int64_t stride;
    std::int32_t whole;
    bool has_rest;
};

/// Add one tile of steps to the sums. Tiles 0 to 3 are sums, 4 and 5 activations, 6 and 7 weights.
template <int R, int C>
ECORL_AMX_INLINE void add_steps(const std::int8_t* a, std::int64_t stride, const std::int8_t* w0,
                                const std::int8_t* w1) {
    _tile_loadd(4, a, stride);
    _tile_loadd(6, w0, WORD_BYTES);
    _tile_dpbssd(0, 4, 6);
    if (C > 1) {
        _tile_loadd(7, w1, WORD_BYTES);
        _tile_dpbssd(1, 4, 7);
    }
    if (R > 1) {
        _tile_loadd(5, a + SIDE * stride, stride);
        _tile_dpbssd(2, 5, 6);
    }
    if (R > 1 && C > 1) _tile_dpbssd(3, 5, 7);
}

/// 16 R rows times 16 C columns.
template <int R, int C>
ECORL_AMX_INLINE void multiply_tiles(const rows_t& rows, const weights_t* w, std::int32_t* c,
                                     std::int64_t c_stride) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    const std::int8_t* a = rows.a;
    for (std::int32_t t = 0; t < rows.whole; ++t, a += DEPTH) {
        const std::int32_t at = t * TILE_BYTES;
        add_steps<R, C>(a, rows.stride, w[0].whole + at, w[C - 1].whole + at);
    }
    if (rows.has_rest) add_steps<R, C>(a, rows.stride, w[0].rest, w[C - 1].rest);
    const std::int64_t bytes = c_stride * static_cast<std::int64_t>(sizeof(std::int32_t));
    _tile_stored(0, c, bytes);
    if (C > 1) _tile_stored(1, c + SIDE, bytes);
    if (R > 1) _tile_stored(2, c + SIDE * c_stride, bytes);
    if (R > 1 && C > 1) _tile_stored(3, c + SIDE * c_stride + SIDE, bytes);
}

/// One product over rows that fill tiles.
class tiled {
  public:
    explicit tiled(const operands& p)
        : p_(p), steps_(ceil_div(p.k, TILE_K)), whole_(steps_ / SIDE), rest_(steps_ % SIDE) {}

    ECORL_AMX void rows(std::int32_t first, std::int32_t m) {
        const bool as_it_lies = p_.k % DEPTH == 0;
        const std::int32_t padded_k = ceil_div(p_.k, DEPTH) * DEPTH;
        const std::int8_t* a = p_.a + std::int64_t{first} * p_.k;
        if (!as_it_lies) a = pad_rows(a, m, p_.k, padded_k);
        std::int32_t* const c = p_.c + std::int64_t{first} * p_.n;
        std::int32_t j = 0;
        for (; p_.n - j >= 2 * SIDE; j += 2 * SIDE) columns<2>(a, padded_k, c, j, m);
        for (; j < p_.n; j += SIDE) columns<1>(a, padded_k, c, j, m);
    }

  private:
    weights_t weights(std::int32_t j, int slot) {
        const std::int8_t* const w = p_.packed + std::int64_t{j / SIDE} * steps_ * WORD_BYTES;
        if (rest_ > 0) {
            std::memcpy(rests_[slot], w + whole_ * TILE_BYTES, rest_ * WORD_BYTES);
            std::memset(rests_[slot] + rest_ * WORD_BYTES, 0, TILE_BYTES - rest_ * WORD_BYTES);
        }
        return {w, rests_[slot]};
    }

    template <int C>
    ECORL_AMX_INLINE void columns(const std::int8_t* a, std::int64_t stride, std::int32_t* c,
                                  std::int32_t j, std::int32_t m) {
        weights_t w[C];
        for (int s = 0; s < C; ++s) w[s] = weights(j + s * SIDE, s);
        std::int32_t i = 0;
        for (; m - i >= 2 * SIDE; i += 2 * SIDE) block<2, C>(a + i * stride, stride, w, c, i, j);
        if (i < m) block<1, C>(a + i * stride, stride, w, c, i, j);
    }

    /// One block of sums; where columns are missing, by way of a buffer of whole tiles.
    template <int R, int C>
    ECORL_AMX_INLINE void block(const std::int8_t* a, std::int64_t stride, const weights_t* w,
                                std::int32_t* c, std::int32_t i, std::int32_t j) {
        const rows_t rows = {a, stride, whole_, rest_ > 0};
        std::int32_t* const to = c + std::int64_t{i} * p_.n + j;
        if (p_.n - j >= C * SIDE) {
            multiply_tiles<R, C>(rows, w, to, p_.n);
            return;
        }
        std::int32_t sums[2 * SIDE][SIDE];
        multiply_tiles<R, 1>(rows, w, sums[0], SIDE);
        for (std::int64_t r = 0; r < R * SIDE; ++r) {
            std::memcpy(to + r * p_.n, sums[r], (p_.n - j) * sizeof(std::int32_t));
        }
    }

    const operands& p_;
    std::int32_t steps_, whole_, rest_;
    alignas(64) std::int8_t rests_[2][TILE_BYTES];
};

/// Whether the processor has the tiles and the kernel lets this process use them.
bool may_use_tiles() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
    constexpr unsigned TILE = 1u << 24, INT8 = 1u << 25;
    if ((d & TILE) == 0 || (d & INT8) == 0) return false;
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // of arch_prctl
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

}  // namespace

bool has_amx() {
    static const bool may = has_vnni() && may_use_tiles();
    return may;
}

ECORL_AMX void multiply_amx(const operands& p) {
    const std::int32_t whole_rows = p.m / SIDE * SIDE;
    if (whole_rows > 0) {
        const tile_config config;
        _tile_loadconfig(&config);
        tiled product(p);
        for (std::int32_t first = 0; first < whole_rows; first += ROWS) {
            product.rows(first, whole_rows - first < ROWS ? whole_rows - first : ROWS);
        }
        _tile_release();
    }
    if (whole_rows < p.m) {
        const std::int64_t done = whole_rows;
        multiply_vnni({p.a + done * p.k, p.packed, p.c + done * p.n, p.m - whole_rows, p.n, p.k});
    }
}

#else

bool has_amx() {
    return false;
}
void multiply_amx(const operands& p) {
    multiply_portable(p);
}

#endif  // ECORL_HAS_AMX

}  // namespace gemm
}  // namespace ecorl

#endif  // ECORL_NATIVE

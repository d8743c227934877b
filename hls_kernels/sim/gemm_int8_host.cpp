// The C API of gemm_int8: tile order, choice of path, counters.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "dataflow.hpp"
#include "gemm_int8_sim.hpp"

namespace ecorl {
namespace gemm {

thread_local std::int64_t local_counts[N_COUNTERS] = {};

void halves::take(const code_word_t* words, std::int64_t n) {
    low.resize(static_cast<std::size_t>(n));
    high.resize(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) {
        for (int r = 0; r < TILE_N / 2; ++r) {
            for (int t = 0; t < TILE_K; ++t) {
                low[i].code[r][t] = words[i].code[r][t];
                high[i].code[r][t] = words[i].code[TILE_N / 2 + r][t];
            }
        }
    }
}

namespace {

std::atomic<std::int64_t> totals[N_COUNTERS];

}  // namespace

void add_to_totals() {
    std::int64_t* const counts = local_counts;
    for (int i = 0; i < N_COUNTERS; ++i) {
        totals[i].fetch_add(counts[i], std::memory_order_relaxed);
        counts[i] = 0;
    }
}

namespace {

/// The kernel's loop counts in closed form, for the paths that do not run its loops.
void count_closed_form(std::int64_t m, std::int64_t n, std::int64_t k) {
    const std::int64_t steps = (k + TILE_K - 1) / TILE_K;
    const std::int64_t n_tiles = (n + TILE_N - 1) / TILE_N;
    const std::int64_t blocks = (m + TILE_M - 1) / TILE_M;
    const std::int64_t tile_trips = std::max(steps, std::min<std::int64_t>(m, TILE_M));
    const std::int64_t last_rows = m - (blocks - 1) * TILE_M;
    const auto words = [&](std::int64_t rows) { return (rows + TILE_N - 1) / TILE_N * steps; };
    /// Trips in which a block of `rows` comes in and nothing is multiplied.
    const auto wait = [&](std::int64_t rows) {
        return std::max<std::int64_t>(0, words(rows) + SETTLE_TRIPS - n_tiles * tile_trips);
    };
    std::int64_t fill = words(std::min<std::int64_t>(m, TILE_M)) + SETTLE_TRIPS;
    if (blocks > 1) fill += (blocks - 2) * wait(TILE_M) + wait(last_rows);
    std::int64_t* const counts = local_counts;
    counts[CALLS] += 1;
    counts[TILES] += blocks * n_tiles;
    counts[MAC_CYCLES] += blocks * n_tiles * steps;
    counts[FILL_CYCLES] += fill;
    counts[DRAIN_CYCLES] += blocks * n_tiles * (tile_trips - steps) + last_rows;
    counts[BYTES_A] += words(m) * WORD_BYTES;
    counts[BYTES_W] += blocks * n_tiles * steps * WORD_BYTES;
    counts[BYTES_C] += n_tiles * m * WORD_BYTES;
    counts[MACS] += m * n * k;
}

bool available(std::int32_t which) {
#ifndef ECORL_NATIVE
    return which == KERNEL;
#else
    switch (which) {
        case KERNEL:
        case PORTABLE:
            return true;
        case AVX2:
            return has_avx2();
        case VNNI:
            return has_vnni();
        case AMX:
            return has_amx();
        default:
            return false;
    }
#endif
}

path best_path() {
    for (const path which : {AMX, VNNI, AVX2, PORTABLE}) {
        if (available(which)) return which;
    }
    return KERNEL;
}

path initial_path() {
    static const char* const names[N_PATHS] = {"auto", "kernel", "portable", "avx2", "vnni", "amx"};
    const char* const wanted = std::getenv("ECORL_GEMM_PATH");
    for (std::int32_t i = KERNEL; wanted != nullptr && i < N_PATHS; ++i) {
        if (std::strcmp(wanted, names[i]) == 0 && available(i)) return static_cast<path>(i);
    }
    return best_path();
}

std::atomic<path>& chosen_path() {
    static std::atomic<path> chosen{initial_path()};
    return chosen;
}

/// Run the kernel's own source: bring A into tile order, and C back out of it.
void multiply_kernel(const operands& p) {
    static thread_local std::vector<code_word_t> a_words;
    static thread_local std::vector<word_t> c_words;
    a_words.resize(gemm_int8_packed_bytes(p.m, p.k) / sizeof(ecorl::code_word_t));
    const std::int32_t n_tiles = ceil_div(p.n, TILE_N);
    c_words.resize(static_cast<std::size_t>(n_tiles) * p.m);
    static thread_local halves weights;
    gemm_int8_pack(p.a, a_words.data(), p.m, p.k);
    weights.take(reinterpret_cast<const code_word_t*>(p.packed),
                 gemm_int8_packed_bytes(p.n, p.k) / WORD_BYTES);
    gemm_int8_krnl(a_words.data(), weights.low.data(), weights.high.data(), c_words.data(), p.m,
                   p.n, p.k);
    for (std::int64_t i = 0; i < p.m; ++i) {
        for (std::int64_t j = 0; j < p.n; ++j) {
            const word_t& word = c_words[product_at(i, j / TILE_N, p.m, n_tiles)];
            p.c[i * p.n + j] = static_cast<std::int32_t>(word.lane[j % TILE_N]);
        }
    }
}

void multiply(const operands& p) {
    switch (chosen_path().load(std::memory_order_relaxed)) {
#ifdef ECORL_NATIVE
        case PORTABLE:
            multiply_portable(p);
            break;
        case AVX2:
            multiply_avx2(p);
            break;
        case VNNI:
            multiply_vnni(p);
            break;
        case AMX:
            multiply_amx(p);
            break;
#endif
        default:
            multiply_kernel(p);
            return;  // the kernel's loops have counted
    }
    count_closed_form(p.m, p.n, p.k);
}

bool within_limits(std::int32_t m, std::int32_t n, std::int32_t k) {
    return m >= 1 && n >= 1 && k >= 1 && m <= MAX_DIM && n <= MAX_DIM && k <= MAX_K;
}

}  // namespace
}  // namespace gemm
}  // namespace ecorl

using namespace ecorl::gemm;

extern "C" {

std::int64_t gemm_int8_packed_bytes(std::int32_t n, std::int32_t k) {
    if (!within_limits(1, n, k)) return 0;
    return static_cast<std::int64_t>(ecorl::ceil_div(n, TILE_N)) * ecorl::ceil_div(k, TILE_K) *
           WORD_BYTES;
}

void gemm_int8_pack(const std::int8_t* w, void* packed, std::int32_t n, std::int32_t k) {
    if (!within_limits(1, n, k)) return;
    auto* out = static_cast<std::int8_t*>(packed);
    const std::int32_t steps = ecorl::ceil_div(k, TILE_K);
    const std::int32_t whole = k / TILE_K;
    for (std::int32_t first = 0; first < n;
         first += TILE_N, out += std::int64_t{steps} * WORD_BYTES) {
        const std::int32_t live = n - first < TILE_N ? n - first : TILE_N;
        const std::int8_t* const from = w + std::int64_t{first} * k;
        if (live < TILE_N || whole < steps) std::memset(out, 0, std::int64_t{steps} * WORD_BYTES);
        for (std::int32_t row = 0; row < live; ++row) {
            const std::int8_t* const values = from + std::int64_t{row} * k;
            std::int8_t* const to = out + row * TILE_K;
            for (std::int64_t step = 0; step < whole; ++step) {
                std::memcpy(to + step * WORD_BYTES, values + step * TILE_K, TILE_K);
            }
            if (whole < steps) {
                std::memcpy(to + std::int64_t{whole} * WORD_BYTES, values + whole * TILE_K,
                            k - whole * TILE_K);
            }
        }
    }
}

std::int32_t gemm_int8(const std::int8_t* a, const void* packed, std::int32_t* c, std::int32_t m,
                       std::int32_t n, std::int32_t k) {
    if (!within_limits(m, n, k)) return 0;
    return ecorl::dataflow::guarded([&] {
        multiply({a, static_cast<const std::int8_t*>(packed), c, m, n, k});
        add_to_totals();
    });
}

std::int32_t gemm_int8_batched(const std::int8_t* a, const std::int8_t* w, std::int32_t* c,
                               std::int32_t batch, std::int32_t m, std::int32_t n, std::int32_t k) {
    if (!within_limits(m, n, k)) return 0;
    static thread_local std::vector<ecorl::code_word_t> packed;
    packed.resize(gemm_int8_packed_bytes(n, k) / sizeof(ecorl::code_word_t));
    return ecorl::dataflow::guarded([&] {
        for (std::int64_t b = 0; b < batch; ++b) {
            gemm_int8_pack(w + b * n * k, packed.data(), n, k);
            multiply({a + b * m * k, reinterpret_cast<const std::int8_t*>(packed.data()),
                      c + b * m * n, m, n, k});
        }
        add_to_totals();
    });
}

void gemm_int8_counters(std::int64_t* out9) {
    for (int i = 0; i < N_COUNTERS; ++i) out9[i] = totals[i].load(std::memory_order_relaxed);
}

void gemm_int8_counters_reset() {
    for (auto& total : totals) total.store(0, std::memory_order_relaxed);
}

std::int32_t gemm_int8_set_path(std::int32_t which) {
    if (which == AUTO) which = best_path();
    if (!available(which)) return -1;
    chosen_path().store(static_cast<path>(which), std::memory_order_relaxed);
    return 0;
}

std::int32_t gemm_int8_path() {
    return chosen_path().load(std::memory_order_relaxed);
}

}  // extern "C"

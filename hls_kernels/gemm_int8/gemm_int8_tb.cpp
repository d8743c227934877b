// Test bench of gemm_int8: the kernel against 64-bit sums over the row-major matrices.
//
// It brings its own tile order, so that it tests the kernel alone and runs under Vitis as well.
// Under ECORL_CSIM it goes on to the C API of the library. Exit code 0 means that all agreed.
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "gemm_int8.hpp"

using namespace ecorl;
using namespace ecorl::gemm;

namespace {

struct problem {
    std::int32_t m, n, k;
    std::vector<std::int8_t> a, w;
    std::vector<std::int64_t> golden;
};

enum class fill { RANDOM, ALL_MIN, MIN_AND_MAX };

problem make_problem(std::int32_t m, std::int32_t n, std::int32_t k, fill how) {
    problem p{m, n, k, {}, {}, {}};
    static std::mt19937 random(20240229);
    std::uniform_int_distribution<int> any(-128, 127);
    const auto draw = [&](int sign) -> std::int8_t {
        if (how == fill::ALL_MIN) return -128;
        if (how == fill::MIN_AND_MAX) return sign > 0 ? 127 : -128;
        return static_cast<std::int8_t>(any(random));
    };
    for (std::int64_t i = 0; i < std::int64_t{m} * k; ++i) p.a.push_back(draw(1));
    for (std::int64_t i = 0; i < std::int64_t{n} * k; ++i) p.w.push_back(draw(-1));
    p.golden.assign(static_cast<std::size_t>(m) * n, 0);
    for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
            for (std::int64_t t = 0; t < k; ++t) {
                p.golden[i * n + j] += std::int64_t{p.a[i * k + t]} * p.w[j * k + t];
            }
        }
    }
    return p;
}

std::vector<code_word_t> tile_order(const std::vector<std::int8_t>& rows, std::int32_t n_rows,
                                    std::int32_t k) {
    const std::int32_t steps = ceil_div(k, TILE_K);
    std::vector<code_word_t> words(static_cast<std::size_t>(ceil_div(n_rows, TILE_N)) * steps);
    for (code_word_t& word : words) {
        for (auto& row : word.code) {
            for (code_t& code : row) code = 0;
        }
    }
    for (std::int32_t r = 0; r < n_rows; ++r) {
        for (std::int32_t t = 0; t < k; ++t) {
            code_word_t& word = words[static_cast<std::size_t>(r / TILE_N) * steps + t / TILE_K];
            word.code[r % TILE_N][t % TILE_K] = rows[static_cast<std::size_t>(r) * k + t];
        }
    }
    return words;
}

/// Number of wrong results, the first of them printed.
template <typename Result>
int compare(const problem& p, const char* who, Result result) {
    int wrong = 0;
    for (std::int32_t i = 0; i < p.m; ++i) {
        for (std::int32_t j = 0; j < p.n; ++j) {
            const std::int64_t want = p.golden[static_cast<std::size_t>(i) * p.n + j];
            const std::int64_t got = result(i, j);
            if (got != want && wrong++ == 0) {
                std::printf("FAIL %s %dx%dx%d at [%d,%d]: %lld, want %lld\n", who, p.m, p.n, p.k, i,
                            j, static_cast<long long>(got), static_cast<long long>(want));
            }
        }
    }
    return wrong;
}

/// The layout of results, written here a second time: word [m / 16][n / 16][m % 16], where the last
/// 16 rows are only those that exist.
std::size_t place(const problem& p, std::size_t row, std::size_t group) {
    const std::size_t groups = (p.n + 15) / 16, rows_before = row / 16 * 16;
    const std::size_t rows = p.m - rows_before < 16 ? p.m - rows_before : 16;
    return rows_before * groups + group * rows + row % 16;
}

int check_kernel(const problem& p) {
    const std::vector<code_word_t> a = tile_order(p.a, p.m, p.k);
    const std::vector<code_word_t> w = tile_order(p.w, p.n, p.k);
    std::vector<word_t> c(static_cast<std::size_t>(ceil_div(p.n, TILE_N)) * p.m);
    std::vector<half_word_t> w_low(w.size()), w_high(w.size());
    for (std::size_t i = 0; i < w.size(); ++i) {
        for (int r = 0; r < TILE_N / 2; ++r) {
            for (int t = 0; t < TILE_K; ++t) {
                w_low[i].code[r][t] = w[i].code[r][t];
                w_high[i].code[r][t] = w[i].code[TILE_N / 2 + r][t];
            }
        }
    }
    gemm_int8_krnl(a.data(), w_low.data(), w_high.data(), c.data(), p.m, p.n, p.k);
    return compare(p, "kernel", [&](std::int32_t i, std::int32_t j) {
        const word_t& word = c[place(p, i, j / TILE_N)];
        return static_cast<std::int64_t>(word.lane[j % TILE_N]);
    });
}

#ifdef ECORL_CSIM
int check_c_api(const problem& p, std::int32_t path) {
    if (gemm_int8_set_path(path) != 0) return 0;
    // Exact sizes on the heap: under AddressSanitizer a step beyond an end is an error.
    std::vector<std::int8_t> packed(static_cast<std::size_t>(gemm_int8_packed_bytes(p.n, p.k)));
    std::vector<std::int32_t> c(static_cast<std::size_t>(p.m) * p.n, -1);
    gemm_int8_pack(p.w.data(), packed.data(), p.n, p.k);
    gemm_int8(p.a.data(), packed.data(), c.data(), p.m, p.n, p.k);
    const auto at = [&](std::int32_t i, std::int32_t j) -> std::int64_t {
        return c[static_cast<std::size_t>(i) * p.n + j];
    };
    int wrong = compare(p, "C API", at);
    c.assign(c.size(), -1);
    gemm_int8_batched(p.a.data(), p.w.data(), c.data(), 1, p.m, p.n, p.k);
    return wrong + compare(p, "C API, batched", at);
}
#endif

int check(std::int32_t m, std::int32_t n, std::int32_t k, fill how) {
    const problem p = make_problem(m, n, k, how);
    int wrong = check_kernel(p);
#ifdef ECORL_CSIM
    for (std::int32_t path = 0; path <= 4; ++path) wrong += check_c_api(p, path);
#endif
    return wrong;
}

}  // namespace

int main() {
    const std::int32_t shapes[][3] = {
        {1, 1, 1},      {1, 1, 4},     {2, 16, 4},      {3, 5, 7},     {12, 12, 32},  {64, 16, 64},
        {65, 17, 9},    {1, 70, 33},   {128, 8, 20},    {130, 33, 5},  {20, 49, 130}, {70, 280, 6},
        {200, 20, 130}, {65, 16, 576}, {129, 16, 1536}, {1, 16, 11008}};
    int wrong = 0;
    int runs = 0;
    for (const auto& s : shapes) {
        for (const fill how : {fill::RANDOM, fill::ALL_MIN, fill::MIN_AND_MAX}) {
            wrong += check(s[0], s[1], s[2], how);
            ++runs;
        }
    }
    std::printf("%s gemm_int8: %d problems, %d wrong results\n", wrong == 0 ? "PASS" : "FAIL", runs,
                wrong);
    return wrong == 0 ? 0 : 1;
}

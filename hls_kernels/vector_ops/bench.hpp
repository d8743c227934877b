// Host side of the test bench of vector_ops: data in the order of the card's memory and back.
#pragma once

#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "../sim/row_table.hpp"
#include "vector_ops.hpp"

namespace bench {

using namespace ecorl;

/// How values are drawn.
enum class fill { RANDOM, LARGEST, ZERO };

constexpr int INPUT_SHIFT = 6;  // of sums over k = 1,024
constexpr int LARGEST_SUM = 1024 * 127 * 127;
constexpr int FRACTION_BITS = 14;  // of the residual stream

inline std::mt19937& source() {
    static std::mt19937 random(20240229);
    return random;
}

inline int draw(int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(source());
}

inline value_t draw_sum(fill how) {
    if (how == fill::ZERO) return 0;
    if (how == fill::LARGEST) return draw(0, 1) ? LARGEST_SUM : -LARGEST_SUM;
    return draw(-LARGEST_SUM, LARGEST_SUM);
}

inline scale_t draw_scale(int exponent) {
    return {draw(1 << 30, INT32_MAX), exponent};
}

/// Constants of n channels; about one in 16 is a channel of zeros.
struct channels {
    std::vector<value_t> mantissa, bias;
    std::vector<std::int32_t> shift;

    channels(std::int32_t n, fill how) {
        for (std::int32_t j = 0; j < n; ++j) {
            const bool is_zero = how == fill::RANDOM && draw(0, 15) == 0;
            mantissa.push_back(
                is_zero ? 0 : (how == fill::LARGEST ? INT32_MAX : draw(1 << 30, INT32_MAX)));
            shift.push_back(how == fill::LARGEST ? 0 : draw(0, draw(0, 3) ? 6 : 31));
            bias.push_back(draw(-(1 << 20), 1 << 20));
        }
    }
    channels_t at(std::int32_t j) const {
        return {mantissa.data() + j, shift.data() + j, INPUT_SHIFT};
    }
};

/// Sums [parts][m][n].
inline std::vector<value_t> draw_sums(std::int32_t parts, std::int32_t m, std::int32_t n,
                                      fill how) {
    std::vector<value_t> sums;
    for (std::int64_t i = 0; i < std::int64_t{m} * n; ++i) sums.push_back(draw_sum(how));
    const std::size_t one = sums.size();
    for (std::size_t i = one; i < one * parts; ++i) {  // the parts add up to what was drawn
        const value_t part = draw(-LARGEST_SUM, LARGEST_SUM);
        sums.push_back(part);
        sums[i % one] = value_t(sums[i % one] - part);
    }
    return sums;
}

/// Values of the residual stream.
inline std::vector<value_t> draw_values(std::int64_t n, fill how) {
    std::vector<value_t> drawn;
    const int largest = how == fill::LARGEST ? (1 << 30) - 1 : (1 << 24);
    for (std::int64_t i = 0; i < n; ++i) {
        drawn.push_back(how == fill::ZERO      ? 0
                        : how == fill::LARGEST ? (draw(0, 1) ? largest : -largest)
                                               : draw(-largest, largest));
    }
    return drawn;
}

/// The sum of all parts [m][n].
inline std::vector<value_t> whole(const std::vector<value_t>& sums, std::int32_t parts) {
    std::vector<value_t> all(sums.begin(), sums.begin() + sums.size() / parts);
    for (std::size_t i = all.size(); i < sums.size(); ++i) all[i % all.size()] += sums[i];
    return all;
}

inline word_t empty_word() {
    word_t word;
    for (value_t& lane : word.lane) lane = 0;
    return word;
}

/// Rows [rows][n] as gemm_int8 writes its results: [parts][m / 16][n / 16][16].
inline std::vector<word_t> c_order(const std::vector<value_t>& sums, std::int32_t parts,
                                   std::int32_t m, std::int32_t n) {
    const std::int64_t groups = words_of(n);
    std::vector<word_t> words(parts * groups * m, empty_word());
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(sums.size()); ++i) {
        const std::int64_t j = i % n, r = i / n % m, p = i / n / m;
        const std::int64_t at = p * groups * m + product_at(r, j / LANES, m, groups);
        words[at].lane[j % LANES] = sums[i];
    }
    return words;
}

/// Rows one after the other: [m][n / 16].
inline std::vector<word_t> row_order(const std::vector<value_t>& values, std::int32_t n) {
    const std::int64_t words_of_row = words_of(n);
    std::vector<word_t> words(values.size() / n * words_of_row, empty_word());
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(values.size()); ++i) {
        words[i / n * words_of_row + i % n / LANES].lane[i % n % LANES] = values[i];
    }
    return words;
}

inline value_t value_at(const std::vector<word_t>& words, std::int64_t row, std::int32_t n,
                        std::int32_t j) {
    return words[row * words_of(n) + j / LANES].lane[j % LANES];
}

/// Mantissas, shifts and biases, three words for 16 channels.
inline void add_channels(std::vector<word_t>& words, const channels& by, std::int32_t first,
                         std::int32_t n, bool has_bias) {
    for (std::int32_t j0 = first; j0 < first + n; j0 += LANES) {
        word_t mantissa = empty_word(), shift = empty_word(), bias = empty_word();
        for (std::int32_t j = j0; j < least(j0 + LANES, first + n); ++j) {
            mantissa.lane[j - j0] = by.mantissa[j];
            shift.lane[j - j0] = by.shift[j];
            if (has_bias) bias.lane[j - j0] = by.bias[j];
        }
        words.insert(words.end(), {mantissa, shift, bias});
    }
}

/// Rows from one head to the next: at least m, and sometimes more.
inline std::int32_t draw_stride(std::int32_t m) {
    return (ceil_div(m, BLOCK_ROWS) + draw(0, 1)) * BLOCK_ROWS;
}

/// Rows [m][heads d] as mha_int8 writes contexts: [heads][stride][d / 16].
inline std::vector<word_t> head_order(const std::vector<value_t>& rows, std::int32_t m,
                                      std::int32_t d, std::int32_t stride) {
    const std::int64_t n = static_cast<std::int64_t>(rows.size()) / m;
    std::vector<word_t> words(n / LANES * stride, empty_word());
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(rows.size()); ++i) {
        const std::int64_t r = i / n, h = i % n / d, j = i % n % d;
        words[(h * stride + r) * (d / LANES) + j / LANES].lane[j % LANES] = rows[i];
    }
    return words;
}

/// Exponents and marks as mha_int8 writes them: a row's stand `row`-th.
inline void put_result(std::vector<word_t>& side, std::int64_t row, std::int32_t exponent,
                       std::int32_t mark) {
    value_t* const at = side[row / 8].lane + row % 8 * 2;
    at[0] = exponent;
    at[1] = mark;
}

/// What memory holds before a kernel writes it.
constexpr int UNTOUCHED = 77;

/// Codes for `rows` rows of heads of d values, nothing written.
inline std::vector<code_word_t> untouched_codes(std::int64_t rows, std::int32_t d) {
    std::vector<code_word_t> words(rows * token_beats(d));
    for (code_word_t& word : words) {
        for (auto& step : word.code) {
            for (code_t& code : step) code = UNTOUCHED;
        }
    }
    return words;
}

/// The c-th code of the `row`-th row of heads of d values.
inline int head_code(const std::vector<code_word_t>& words, std::int64_t row, std::int32_t d,
                     std::int32_t c) {
    const code_word_t& word = words[row * token_beats(d) + c / BEAT];
    return static_cast<int>(word.code[c % BEAT / STEP_CODES][c % STEP_CODES]);
}

/// The code of a row and column in gemm_int8's A of `columns` columns.
inline code_t code_at(const code_word_t* a, std::int64_t row, std::int32_t columns,
                      std::int32_t k) {
    const std::int64_t steps = ceil_div(columns, STEP_CODES);
    return a[row / BLOCK_ROWS * steps + k / STEP_CODES].code[row % BLOCK_ROWS][k % STEP_CODES];
}

/// Sum of the magnitudes of all codes beyond the last row and column: there are only zeros.
inline int padding(const code_word_t* a, std::int32_t m, std::int32_t columns) {
    int sum = 0;
    for (std::int32_t r = 0; r < ceil_div(m, BLOCK_ROWS) * BLOCK_ROWS; ++r) {
        for (std::int32_t k = 0; k < ceil_div(columns, STEP_CODES) * STEP_CODES; ++k) {
            const int code = static_cast<int>(code_at(a, r, columns, k));
            if (r >= m || k >= columns) sum += code < 0 ? -code : code;
        }
    }
    return sum;
}

/// The buffers of a task, as the card's memory holds them. Exact sizes: under AddressSanitizer a
/// step beyond an end is an error.
struct card {
    ecorl::vector::task_t task = {};
    std::vector<word_t> acc, x, side, scales;
    std::vector<table_word_t> table;
    std::vector<row_t> rows;
    std::vector<code_word_t> codes;

    explicit card(std::int32_t op, std::int32_t m, std::int32_t n) : rows(m) {
        task.op = op;
        task.m = m;
        task.n = n;
        task.parts = 1;
        task.input_shift = INPUT_SHIFT;
        for (row_t& row : rows) {
            row = {};
            const scale_t s = draw_scale(-40 - draw(0, 8));
            row.scale_m = s.m;
            row.scale_e = s.e;
        }
    }
    scale_t scale(std::int32_t r) const { return {rows[r].scale_m, rows[r].scale_e}; }
    void run() {
        vector_ops_krnl(&task, acc.data(), x.data(), side.data(), table.data(), rows.data(),
                        codes.data(), x.data(), rows.data(), scales.data());
    }
};

/// All stages on one card in the calls that `first` begins, or one at a time on several cards that
/// exchange maxima between them.
inline void run_stages(std::vector<card>& cards, const std::vector<std::int32_t>& first) {
    for (std::size_t call = 0; call < first.size(); ++call) {
        for (card& c : cards) {
            c.task.first_stage = first[call];
            c.task.last_stage = (call + 1 < first.size() ? first[call + 1] : 3) - 1;
            c.run();
        }
        for (std::int32_t r = 0; r < cards[0].task.m; ++r) {
            row_t all = cards[0].rows[r];
            for (const card& c : cards) {
                all.peak_gate = most(all.peak_gate, c.rows[r].peak_gate);
                all.peak_up = most(all.peak_up, c.rows[r].peak_up);
                all.peak_h = most(all.peak_h, c.rows[r].peak_h);
                all.exponent = most(all.exponent, c.rows[r].exponent);
                all.peak = most(all.peak, c.rows[r].peak);
                all.mark |= c.rows[r].mark;
            }
            for (card& c : cards) c.rows[r] = all;
        }
    }
}

/// The calls of one card alone, drawn: all stages at once, or two calls. Of several: three.
inline std::vector<std::int32_t> draw_calls(std::int32_t n_cards) {
    if (n_cards > 1) return {0, 1, 2};
    const std::int32_t second = draw(0, 2);
    return second == 0 ? std::vector<std::int32_t>{0} : std::vector<std::int32_t>{0, second};
}

/// Columns [first, first + share) of each n columns of acc [m][halves n].
inline std::vector<value_t> columns_of(const std::vector<value_t>& acc, std::int32_t n,
                                       std::int32_t first, std::int32_t share) {
    std::vector<value_t> own;
    for (std::size_t at = first; at < acc.size(); at += n) {
        own.insert(own.end(), acc.begin() + at, acc.begin() + at + share);
    }
    return own;
}

/// Counts what differs, and prints the first of it.
struct tally {
    const char* what;
    std::int64_t m, n;
    int wrong = 0;

    template <class Got, class Want>
    void same(const char* field, std::int64_t row, std::int64_t at, Got got, Want want) {
        if (got == want || wrong++ > 0) return;
        std::printf("FAIL %s %lld x %lld: %s of row %lld at %lld is %lld, want %lld\n", what,
                    static_cast<long long>(m), static_cast<long long>(n), field,
                    static_cast<long long>(row), static_cast<long long>(at),
                    static_cast<long long>(got), static_cast<long long>(want));
    }
    void same_scale(std::int64_t row, std::int64_t at, scale_t got, scale_t want) {
        same("scale", row, at, std::int64_t{got.m}, std::int64_t{want.m});
        same("exponent", row, at, std::int64_t{got.e}, std::int64_t{want.e});
    }
};

// ---- heads -----------------------------------------------------------------------------------

constexpr std::int32_t POSITIONS = 7;

inline int head_exponent(std::int32_t h) {
    return 2 + h % 3;
}

/// A task of heads of d values, the first two thirds rotated.
inline card head_card(std::int32_t m, std::int32_t heads, std::int32_t d,
                      const std::vector<value_t>& acc, const channels& by, bool has_bias) {
    card c(vector::HEAD, m, heads * d);
    c.task.head = d;
    c.task.rotated = heads * 2 / 3;
    c.task.has_bias = has_bias;
    c.task.fraction_bits = FRACTION_BITS;
    c.acc = c_order(acc, 1, m, heads * d);
    c.table.resize(POSITIONS * vector::ROPE_WORDS);
    for (table_word_t& word : c.table) {
        for (auto& lane : word.lane) lane = draw(-(1 << ROPE_BITS), 1 << ROPE_BITS);
    }
    for (std::int32_t h0 = 0; h0 < heads; h0 += vector::HEADER_HEADS) {
        for (std::int32_t h = h0; h < h0 + vector::HEADER_HEADS; h += LANES) {
            c.side.push_back(empty_word());
            for (int lane = 0; lane < LANES; ++lane) {
                c.side.back().lane[lane] = head_exponent(h + lane);
            }
        }
        add_channels(c.side, by, h0 * d, least(vector::HEADER_HEADS, heads - h0) * d, has_bias);
    }
    for (row_t& row : c.rows) row.position = draw(0, POSITIONS - 1);
    c.task.stride = draw_stride(m);
    c.codes = untouched_codes(std::int64_t{heads} * c.task.stride, d);
    c.scales.resize(heads * c.task.stride / 4, empty_word());
    for (word_t& word : c.scales) {
        for (value_t& lane : word.lane) lane = UNTOUCHED;
    }
    return c;
}

/// Rows beyond the last one: no code is written, and no scale but zeros in the last block.
inline void check_unused(tally& t, const card& c, std::int32_t h, std::int32_t r) {
    const std::int64_t row = std::int64_t{h} * c.task.stride + r;
    const bool is_block = r < ceil_div(c.task.m, BLOCK_ROWS) * BLOCK_ROWS;
    for (int j = 0; j < BEAT * token_beats(c.task.head); ++j) {
        t.same("code", r, h, head_code(c.codes, row, c.task.head, j), UNTOUCHED);
    }
    for (int i = 0; i < 4; ++i) {
        const value_t field = c.scales[row / 4].lane[row % 4 * 4 + i];
        t.same("unused scale", r, h, static_cast<int>(field), is_block ? 0 : UNTOUCHED);
    }
}

}  // namespace bench

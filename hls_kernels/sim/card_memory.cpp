#include "card_memory.hpp"

#include <algorithm>

#include "../vector_ops/vector_ops.hpp"

namespace ecorl {

namespace {

word_t empty_word() {
    word_t word;
    for (value_t& lane : word.lane) lane = 0;
    return word;
}

table_word_t empty_table_word() {
    table_word_t word;
    for (auto& lane : word.lane) lane = 0;
    return word;
}

/// entries[n] into whole words, zeros behind them.
void put_entries(const std::int16_t* entries, table_word_t* words, std::int32_t n) {
    for (std::int32_t j = 0; j < n; ++j) words[j / TABLE_LANES].lane[j % TABLE_LANES] = entries[j];
}

}  // namespace

void add_channels(std::vector<word_t>& words, const decoder_linear& linear, std::int32_t first,
                  std::int32_t n) {
    for (std::int32_t j0 = first; j0 < first + n; j0 += LANES) {
        word_t mantissa = empty_word(), shift = empty_word(), bias = empty_word();
        for (std::int32_t j = j0; j < std::min(j0 + LANES, first + n); ++j) {
            mantissa.lane[j - j0] = linear.mantissa[j];
            shift.lane[j - j0] = linear.shift[j];
            if (linear.bias != nullptr) bias.lane[j - j0] = linear.bias[j];
        }
        words.insert(words.end(), {mantissa, shift, bias});
    }
}

std::vector<word_t> head_side(const decoder_linear& linear, std::int32_t d) {
    constexpr std::int32_t HEADER = vector::HEADER_HEADS;
    std::vector<word_t> words;
    const std::int32_t heads = linear.n / d;
    for (std::int32_t h0 = 0; h0 < heads; h0 += HEADER) {
        const std::int32_t n = std::min(HEADER, heads - h0);
        const std::size_t at = words.size();
        words.resize(at + HEADER / LANES, empty_word());
        for (std::int32_t h = 0; h < n; ++h) {
            words[at + h / LANES].lane[h % LANES] =
                linear.exponents[h0 + h] + 32 - linear.input_shift;
        }
        add_channels(words, linear, h0 * d, n * d);
    }
    return words;
}

std::vector<word_t> norm_side(const decoder_norm& norm, std::int32_t n) {
    std::vector<word_t> words(words_of(n), empty_word());
    for (std::int32_t j = 0; j < n; ++j) words[j / LANES].lane[j % LANES] = norm.weight[j];
    return words;
}

std::vector<table_word_t> embedding_table(const decoder_model& model, const std::int32_t* ids,
                                          std::int32_t n) {
    const std::int64_t words = 1 + ceil_div(model.hidden, TABLE_LANES);
    std::vector<table_word_t> table(n * words, empty_table_word());
    for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t id = ids[i];
        table[i * words].lane[0] = model.embedding_exponent[id];
        put_entries(model.embedding + id * model.hidden, table.data() + i * words + 1,
                    model.hidden);
    }
    return table;
}

std::vector<table_word_t> rope_table(const decoder_model& model, std::int32_t n) {
    constexpr std::int32_t WORDS = vector::ROPE_WORDS;
    const std::int32_t half = model.head_dim / 2;
    std::vector<table_word_t> table(static_cast<std::size_t>(n) * WORDS, empty_table_word());
    for (std::int64_t i = 0; i < n; ++i) {
        put_entries(model.cosine + i * half, table.data() + i * WORDS, half);
        put_entries(model.sine + i * half, table.data() + i * WORDS + WORDS / 2, half);
    }
    return table;
}

void to_products(const value_t* values, std::int64_t stride, word_t* words, std::int32_t m,
                 std::int32_t n) {
    const std::int32_t groups = words_of(n);
    std::fill(words, words + std::int64_t{groups} * m, empty_word());
    for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
            word_t& word = words[product_at(i, j / LANES, m, groups)];
            word.lane[j % LANES] = values[i * stride + j];
        }
    }
}

void to_rows(const value_t* values, word_t* words, std::int32_t m, std::int32_t n) {
    const std::int64_t per_row = words_of(n);
    std::fill(words, words + m * per_row, empty_word());
    for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
            words[i * per_row + j / LANES].lane[j % LANES] = values[i * n + j];
        }
    }
}

void from_rows(const word_t* words, value_t* values, std::int32_t m, std::int32_t n) {
    const std::int64_t per_row = words_of(n);
    for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
            values[i * n + j] = words[i * per_row + j / LANES].lane[j % LANES];
        }
    }
}

}  // namespace ecorl

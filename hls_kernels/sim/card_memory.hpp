// A model's constants and the host's rows in the order of the card's memory, and back.
#pragma once

#include <cstdint>
#include <vector>

#include "../include/ecorl_words.hpp"
#include "decoder.hpp"

namespace ecorl {

/// `side` of a map: three words for 16 channels, from channel `first` on, `n` of them.
void add_channels(std::vector<word_t>& words, const decoder_linear& linear, std::int32_t first,
                  std::int32_t n);

/// `side` of HEAD: before each HEADER_HEADS heads the exponents of their values.
std::vector<word_t> head_side(const decoder_linear& linear, std::int32_t d);

/// `side` of NORM.
std::vector<word_t> norm_side(const decoder_norm& norm, std::int32_t n);

/// `table` of EMBED for tokens ids[n]: the i-th entry is that of the i-th token.
std::vector<table_word_t> embedding_table(const decoder_model& model, const std::int32_t* ids,
                                          std::int32_t n);

/// `table` of HEAD for the first n positions.
std::vector<table_word_t> rope_table(const decoder_model& model, std::int32_t n);

/// values [m][n], `stride` apart -> word [m / 16][n / 16][16] as `product_at` has it.
void to_products(const value_t* values, std::int64_t stride, word_t* words, std::int32_t m,
                 std::int32_t n);

/// values [m][n] -> word [m][n / 16].
void to_rows(const value_t* values, word_t* words, std::int32_t m, std::int32_t n);

/// word [m][n / 16] -> values [m][n].
void from_rows(const word_t* words, value_t* values, std::int32_t m, std::int32_t n);

}  // namespace ecorl

// The contexts of mha_int8: sums of a page to those of the pages before, and the division at the
// end of a block. These processes go from block to block by themselves.
#pragma once

#include "types.hpp"

namespace ecorl {
namespace mha {

/// Sums of eight neighbouring channels.
struct channels_of_tile_t {
    value_t channel[ARRAY_LANES];
};

/// A bank for each row of a quad. A word of 16 channels is two neighbouring elements of one.
using context_banks_t = watched<channels_of_tile_t>[QUAD_ROWS][QUADS * HEAD_TILES];

/// Add a page: a quad of rows by eight channels a cycle.
inline void add_page(hls::stream<sum_quad_t>& sums, const moves_t moves[QUADS],
                     context_banks_t& context, dim_t quads, dim_t d) {
#pragma HLS INLINE
    dim_t quad = 0;
    dim_t tile = 0;
ACCUMULATE:
    for (dim_t i = 0; i < quads * (d / ARRAY_LANES); ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS DEPENDENCE variable = context type = inter false
#pragma HLS LOOP_TRIPCOUNT min = 2 max = 256 avg = 256
        ECORL_WATCH(context, ACCUMULATE, ALL, NEVER, i, quads, d);
        const sum_quad_t sum = sums.read();
        const moves_t by = moves[quad];
        const dim_t at = quad * HEAD_TILES + tile;
    ADD_ROWS:
        for (int r = 0; r < QUAD_ROWS; ++r) {
#pragma HLS UNROLL
            channels_of_tile_t channels = context[r][at];
            for (int j = 0; j < ARRAY_LANES; ++j) {
#pragma HLS UNROLL
                channels.channel[j] =
                    accumulated<exact>(channels.channel[j], value_t(sum.row[r][j]),
                                       static_cast<std::int32_t>(by.row[r]));
            }
            context[r][at] = channels;
        }
        if (++quad == quads) {
            quad = 0;
            ++tile;
        }
        MHA_COUNT(ACCUMULATE_CYCLES, 1);
    }
}

/// 16 channels of a row.
inline word_t context_word(const context_banks_t context, dim_t row, dim_t word) {
#pragma HLS INLINE
    const dim_t at = row / QUAD_ROWS * HEAD_TILES + 2 * word;
    const channels_of_tile_t low = context[row % QUAD_ROWS][at];
    const channels_of_tile_t high = context[row % QUAD_ROWS][at + 1];
    word_t found;
BOTH:
    for (int j = 0; j < ARRAY_LANES; ++j) {
#pragma HLS UNROLL
        found.lane[j] = low.channel[j];
        found.lane[ARRAY_LANES + j] = high.channel[j];
    }
    return found;
}

/// The contexts of a block leave row by row, and the peak of each row after its last word.
inline void emit_rows(const context_banks_t context, hls::stream<word_t>& words,
                      hls::stream<value_t>& peaks, dim_t n_rows, dim_t row_words) {
#pragma HLS INLINE
    dim_t row = 0;
    dim_t at = 0;
    word_t peak;
EMIT:
    for (dim_t i = 0; i < n_rows * row_words; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 512 avg = 512
        const word_t word = context_word(context, row, at);
        for (int lane = 0; lane < LANES; ++lane) {
#pragma HLS UNROLL
            const value_t before = at == 0 ? value_t(0) : peak.lane[lane];
            peak.lane[lane] = larger(before, magnitude(word.lane[lane]));
        }
        words.write(word);
        if (++at == row_words) {
            peaks.write(largest(peak));
            at = 0;
            ++row;
        }
        MHA_COUNT(EMIT_CYCLES, 1);
    }
}

/// Sums of all pages of a block, row by row after the last one.
inline void accumulate(hls::stream<query_block_t>& blocks, hls::stream<moves_t>& moves,
                       hls::stream<sum_quad_t>& sums, hls::stream<word_t>& words,
                       hls::stream<value_t>& peaks, dim_t n_blocks, dim_t d) {
    ECORL_BUFFER context_banks_t context;
    moves_t page_moves[QUADS];
#pragma HLS ARRAY_PARTITION variable = context complete dim = 1
#pragma HLS AGGREGATE variable = context
#pragma HLS AGGREGATE variable = page_moves
#pragma HLS BIND_STORAGE variable = context type = ram_t2p impl = bram
#pragma HLS BIND_STORAGE variable = page_moves type = ram_2p impl = lutram
ACCUMULATE_BLOCK:
    for (dim_t b = 0; b < n_blocks; ++b) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 64
        const query_block_t block = blocks.read();
        const dim_t quads = quads_of(block.n_rows);
    ACCUMULATE_PAGE:
        for (dim_t p = 0; p < block.n_pages; ++p) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 5
        TAKE_MOVES:
            for (dim_t q = 0; q < quads; ++q) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 16 avg = 16
                page_moves[q] = moves.read();
                MHA_COUNT(ACCUMULATE_CYCLES, 1);
            }
            add_page(sums, page_moves, context, quads, d);
        }
        emit_rows(context, words, peaks, block.n_rows, words_of(d));
    }
}

/// The scalars of each row: what its context is divided by, and its result.
inline void divide(hls::stream<query_block_t>& blocks, hls::stream<value_t>& peaks,
                   hls::stream<quad_total_t>& totals, hls::stream<divisor_t>& divisors,
                   hls::stream<head_result_t>& results, dim_t n_blocks) {
    quad_total_t total;
#pragma HLS ARRAY_PARTITION variable = total.row complete
DIVIDE_BLOCK:
    for (dim_t b = 0; b < n_blocks; ++b) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 64
        const query_block_t block = blocks.read();
    DIVIDE:
        for (dim_t r = 0; r < block.n_rows; ++r) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 64 avg = 64
            if (r % QUAD_ROWS == 0) total = totals.read();
            const row_total_t row = total.row[r % QUAD_ROWS];
            const finisher_t by =
                make_finisher(peaks.read(), row.sum, static_cast<std::int32_t>(row.lead));
            divisors.write({by.room, by.inverse});
            results.write({by.exponent, row.mark != 0 ? 1 : 0});
        }
    }
}

/// Contexts, divided.
inline void scale_rows(hls::stream<query_block_t>& blocks, hls::stream<word_t>& words,
                       hls::stream<divisor_t>& divisors, hls::stream<word_t>& scaled,
                       dim_t n_blocks, dim_t d) {
    divisor_t by;
SCALE_BLOCK:
    for (dim_t b = 0; b < n_blocks; ++b) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 64
        const query_block_t block = blocks.read();
        dim_t at = 0;
    SCALE:
        for (dim_t i = 0; i < block.n_rows * words_of(d); ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 512 avg = 512
            if (at == 0) by = divisors.read();
            if (++at == words_of(d)) at = 0;
            const word_t word = words.read();
            word_t out;
            for (int lane = 0; lane < LANES; ++lane) {
#pragma HLS UNROLL
                const value_t full = exact::left(word.lane[lane], value_t(by.room));
                out.lane[lane] = high(full, value_t(by.inverse));
            }
            scaled.write(out);
        }
    }
}

}  // namespace mha
}  // namespace ecorl

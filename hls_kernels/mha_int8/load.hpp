// What mha_int8 reads: blocks, then for each of them its rows, queries and page table, and pages.
// Each port of memory has a process of its own.
#pragma once

#include "turns.hpp"

namespace ecorl {
namespace mha {

/// Blocks for each process that goes by them. The turns are told how many there are before they
/// begin, so the list is read twice; for them a block without rows stands behind the last one.
inline void load_blocks(const query_block_t* blocks, hls::stream<dim_t>& page_counts,
                        hls::stream<dim_t>& turn_counts, hls::stream<query_block_t>& to_table,
                        hls::stream<query_block_t>& to_rows, hls::stream<query_block_t>& to_queries,
                        hls::stream<query_block_t>& to_turns,
                        hls::stream<query_block_t>& to_accumulate,
                        hls::stream<query_block_t>& to_divide, hls::stream<query_block_t>& to_scale,
                        hls::stream<query_block_t>& to_context,
                        hls::stream<query_block_t>& to_results, dim_t n_blocks) {
    dim_t n_pages = 0;
COUNT_PAGES:
    for (dim_t b = 0; b < n_blocks; ++b) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 64
        const query_block_t block = blocks[b];
        n_pages += block.n_pages;
        MHA_COUNT(BYTES_QUERIES, sizeof(query_block_t));
    }
    page_counts.write(n_pages);
    turn_counts.write(n_pages + EXTRA_TURNS);
    MHA_COUNT(PAGES, n_pages);
LOAD_BLOCKS:
    for (dim_t b = 0; b < n_blocks; ++b) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 64
        const query_block_t block = blocks[b];
        to_table.write(block);
        to_rows.write(block);
        to_queries.write(block);
        to_turns.write(block);
        to_accumulate.write(block);
        to_divide.write(block);
        to_scale.write(block);
        to_context.write(block);
        to_results.write(block);
        MHA_COUNT(BLOCKS, 1);
        MHA_COUNT(BYTES_QUERIES, sizeof(query_block_t));
    }
    to_turns.write({0, 0, 0, INT32_MAX});
}

/// Numbers of the blocks' pages.
inline void load_table(const std::int32_t* table, hls::stream<query_block_t>& blocks,
                       hls::stream<std::int32_t>& entries, dim_t n_blocks) {
TABLE_OF_BLOCK:
    for (dim_t b = 0; b < n_blocks; ++b) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 64
        const query_block_t block = blocks.read();
    LOAD_TABLE:
        for (dim_t i = 0; i < block.n_pages; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 5
            entries.write(table[block.first_entry + i]);
            MHA_COUNT(BYTES_QUERIES, sizeof(std::int32_t));
        }
    }
}

/// Positions and scales of queries, these times the scale of all scores.
inline void load_rows(const head_row_t* rows, hls::stream<query_block_t>& blocks,
                      hls::stream<query_row_t>& out, dim_t n_blocks, const scale_t score) {
ROWS_OF_BLOCK:
    for (dim_t b = 0; b < n_blocks; ++b) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 64
        const query_block_t block = blocks.read();
    LOAD_ROWS:
        for (dim_t r = 0; r < block.n_rows; ++r) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 64 avg = 64
            const head_row_t query = rows[block.first_row + r];
            out.write({times({query.m, query.e}, score), query.position});
            MHA_COUNT(BYTES_QUERIES, sizeof(head_row_t));
        }
    }
}

inline void load_queries(const beat_t* queries, hls::stream<query_block_t>& blocks,
                         hls::stream<beat_t>& out, dim_t n_blocks, dim_t d) {
    const dim_t parts = token_beats(d);
QUERIES_OF_BLOCK:
    for (dim_t b = 0; b < n_blocks; ++b) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 64
        const query_block_t block = blocks.read();
        const std::int64_t first = static_cast<std::int64_t>(block.first_row) * parts;
    LOAD_QUERIES:
        for (dim_t i = 0; i < block.n_rows * parts; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 128 avg = 128
            out.write(queries[first + i]);
            MHA_COUNT(BYTES_QUERIES, sizeof(beat_t));
        }
    }
}

/// Pages, each in one burst: its keys, its values, its scales.
inline void load_pages(const beat_t* pages, hls::stream<dim_t>& page_counts,
                       hls::stream<std::int32_t>& entries, hls::stream<beat_t>& keys,
                       hls::stream<beat_t>& values, hls::stream<beat_t>& scales, dim_t d) {
    const dim_t n_pages = page_counts.read();
PAGE_OF_TABLE:
    for (dim_t p = 0; p < n_pages; ++p) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 65536 avg = 2048
        const std::int64_t first = static_cast<std::int64_t>(entries.read()) * page_beats(d);
    LOAD_PAGE:
        for (dim_t i = 0; i < page_beats(d); ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 48 max = 272 avg = 272
            const beat_t beat = pages[first + i];
            if (i < d) {
                keys.write(beat);
            } else if (i < 2 * d) {
                values.write(beat);
            } else {
                scales.write(beat);
            }
            MHA_COUNT(BYTES_PAGES, sizeof(beat_t));
        }
    }
}

}  // namespace mha
}  // namespace ecorl

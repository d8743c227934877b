// How kv_cache_router makes a page: what is kept of another one, the new tokens, zeros. Keys,
// values and scales are arranged by a process each; kv_pages.hpp says where they stand in a page.
#pragma once

#include "memory.hpp"

namespace ecorl {
namespace router {

constexpr int CHUNKS = BEAT / ARRAY_LANES;                  ///< of 8 codes in a beat
constexpr int PAGE_GROUPS = PAGE / ARRAY_LANES;             ///< of 8 positions in a page
constexpr int CHUNK_WORDS = MAX_HEAD / BEAT * PAGE_GROUPS;  ///< of one bank

/// Eight neighbouring codes of one position.
struct chunk_t {
    code_t value[ARRAY_LANES];
};

/// The codes of a page's positions: bank [position % 8][c / 8 % 8], word [c / 64][position / 8]. A
/// beat of one position and a beat of eight positions both touch each bank once at most.
using chunk_banks_t = chunk_t[ARRAY_LANES][CHUNKS][CHUNK_WORDS];

/// The two orders of codes in a page.
enum order { KEYS, VALUES };

/// Where the code of channel c of a position stands in a beat, both modulo 8.
template <order O>
constexpr int byte_of(int position, int c) {
    const int row = O == KEYS ? position : c;
    const int column = O == KEYS ? c : position;
    return column / MAC_STEP * (ARRAY_LANES * MAC_STEP) + row * MAC_STEP + column % MAC_STEP;
}

/// The chunks of a beat of a page: channels [8 c8, 8 c8 + 8) of positions [8 p8, 8 p8 + 8).
struct chunk_cursor_t {
    dim_t p8, c8;
};

/// Its chunk of channels in the banks, and its word there.
inline dim_t bank_of(const chunk_cursor_t& at) {
#pragma HLS INLINE
    return at.c8 % CHUNKS;
}

inline dim_t word_of(const chunk_cursor_t& at) {
#pragma HLS INLINE
    return at.c8 / CHUNKS * PAGE_GROUPS + at.p8;
}

/// On to the next beat of the page.
template <order O>
void next_chunks(chunk_cursor_t& at, dim_t d) {
#pragma HLS INLINE
    dim_t& inner = O == KEYS ? at.c8 : at.p8;
    dim_t& outer = O == KEYS ? at.p8 : at.c8;
    if (++inner == (O == KEYS ? d / ARRAY_LANES : PAGE_GROUPS)) {
        inner = 0;
        ++outer;
    }
}

/// One of a lane's eight chunks, chosen bank by bank so that no bank has a run-time number.
inline chunk_t chosen(const chunk_t banks[CHUNKS][CHUNK_WORDS], dim_t bank, dim_t word) {
#pragma HLS INLINE
    chunk_t result;
    for (int c = 0; c < ARRAY_LANES; ++c) {
#pragma HLS UNROLL
        result.value[c] = 0;
    }
    for (int i = 0; i < CHUNKS; ++i) {
#pragma HLS UNROLL
        const chunk_t chunk = banks[i][word];
        for (int c = 0; c < ARRAY_LANES; ++c) {
#pragma HLS UNROLL
            result.value[c] |= i == bank ? chunk.value[c] : code_t(0);
        }
    }
    return result;
}

/// The codes of the page that is copied.
template <order O>
void copy_codes(beats_t& in, chunk_banks_t banks, dim_t d) {
    chunk_cursor_t at = {0, 0};
COPY_CODES:
    for (dim_t i = 0; i < d; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 16 max = 128 avg = 128
        const beat_t beat = in.read();
        for (int lane = 0; lane < ARRAY_LANES; ++lane) {
#pragma HLS UNROLL
            chunk_t chunk;
            for (int c = 0; c < ARRAY_LANES; ++c) {
#pragma HLS UNROLL
                chunk.value[c] = beat.value[byte_of<O>(lane, c)];
            }
            for (int bank = 0; bank < CHUNKS; ++bank) {
#pragma HLS UNROLL
                if (bank == bank_of(at)) banks[lane][bank][word_of(at)] = chunk;
            }
        }
        next_chunks<O>(at, d);
        ROUTER_COUNT(COPY_CYCLES, 1);
    }
}

/// Codes of the new tokens behind those that were kept, then zeros.
template <order O>
void take_codes(beats_t& in, chunk_banks_t banks, const job_t& job, dim_t parts) {
    const dim_t end = (job.kept + job.n_tokens) * parts;
TAKE_CODES:
    for (dim_t i = job.kept * parts; i < PAGE * parts; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 128 avg = 64
        const dim_t position = parts == 2 ? i >> 1 : i;
        const dim_t part = parts == 2 ? i & 1 : 0;
        const dim_t word = part * PAGE_GROUPS + position / ARRAY_LANES;
        const bool is_token = i < end;
        beat_t beat;
        if (is_token) beat = in.read();
        for (int bank = 0; bank < CHUNKS; ++bank) {
#pragma HLS UNROLL
            chunk_t chunk;
            for (int c = 0; c < ARRAY_LANES; ++c) {
#pragma HLS UNROLL
                chunk.value[c] = is_token ? beat.value[bank * ARRAY_LANES + c] : code_t(0);
            }
            for (int lane = 0; lane < ARRAY_LANES; ++lane) {
#pragma HLS UNROLL
                if (lane == position % ARRAY_LANES) banks[lane][bank][word] = chunk;
            }
        }
        if (O == KEYS) ROUTER_COUNT(ROW_CYCLES, 1);
    }
}

template <order O>
void emit_codes(const chunk_banks_t banks, beats_t& out, dim_t d) {
    chunk_cursor_t at = {0, 0};
EMIT_CODES:
    for (dim_t i = 0; i < d; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 16 max = 128 avg = 128
        beat_t beat;
        for (int lane = 0; lane < ARRAY_LANES; ++lane) {
#pragma HLS UNROLL
            const chunk_t chunk = chosen(banks[lane], bank_of(at), word_of(at));
            for (int c = 0; c < ARRAY_LANES; ++c) {
#pragma HLS UNROLL
                beat.value[byte_of<O>(lane, c)] = chunk.value[c];
            }
        }
        out.write(beat);
        next_chunks<O>(at, d);
        ROUTER_COUNT(EMIT_CYCLES, 1);
    }
}

/// Keys or values of each page that is written.
template <order O>
void arrange_codes(jobs_t& jobs, beats_t& source, beats_t& tokens, beats_t& out, dim_t n_jobs,
                   dim_t d) {
    ECORL_BUFFER chunk_banks_t banks;
#pragma HLS BIND_STORAGE variable = banks type = ram_2p impl = lutram
#pragma HLS ARRAY_PARTITION variable = banks complete dim = 1
#pragma HLS ARRAY_PARTITION variable = banks complete dim = 2
#pragma HLS AGGREGATE variable = banks
    const dim_t parts = token_beats(d);
ARRANGE_CODES:
    for (dim_t j = 0; j < n_jobs; ++j) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 64
        const job_t job = jobs.read();
        if (is_copied(job)) copy_codes<O>(source, banks, d);
        if (!is_shared(job)) {
            take_codes<O>(tokens, banks, job, parts);
            emit_codes<O>(banks, out, d);
        }
    }
}

/// Scales of a page: [row of the page][position / 16][position % 16].
using scale_banks_t = value_t[PAGE_ROWS][ROW_BEATS][BEAT_INTS];

inline void copy_scales(beats_t& in, scale_banks_t banks) {
COPY_SCALES:
    for (int i = 0; i < SCALE_BEATS; ++i) {
#pragma HLS PIPELINE II = 1
        const beat_t beat = in.read();
        for (int row = 0; row < PAGE_ROWS; ++row) {
#pragma HLS UNROLL
            for (int k = 0; k < BEAT_INTS; ++k) {
#pragma HLS UNROLL
                if (row == i / ROW_BEATS) banks[row][i % ROW_BEATS][k] = int_of(beat, k);
            }
        }
        ROUTER_COUNT(COPY_CYCLES, 1);
    }
}

/// Those of the new tokens behind those that were kept, then zeros.
inline void take_scales(hls::stream<token_scales_t>& in, scale_banks_t banks, const job_t& job) {
    const dim_t end = job.kept + job.n_tokens;
TAKE_SCALES:
    for (dim_t i = job.kept; i < PAGE; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 64 avg = 64
        token_scales_t scales = {value_t(0), value_t(0), value_t(0), value_t(0)};
        if (i < end) scales = in.read();
        for (int k = 0; k < BEAT_INTS; ++k) {
#pragma HLS UNROLL
            if (k == i % BEAT_INTS) {
                banks[0][i / BEAT_INTS][k] = scales.key_m;
                banks[1][i / BEAT_INTS][k] = scales.key_e;
                banks[2][i / BEAT_INTS][k] = scales.value_m;
                banks[3][i / BEAT_INTS][k] = scales.value_e;
            }
        }
    }
}

inline void emit_scales(const scale_banks_t banks, beats_t& out) {
EMIT_SCALES:
    for (int i = 0; i < SCALE_BEATS; ++i) {
#pragma HLS PIPELINE II = 1
        beat_t beat;
        for (int k = 0; k < BEAT_INTS; ++k) {
#pragma HLS UNROLL
            value_t scale = 0;
            for (int row = 0; row < PAGE_ROWS; ++row) {
#pragma HLS UNROLL
                const value_t own = banks[row][i % ROW_BEATS][k];
                scale |= row == i / ROW_BEATS ? own : value_t(0);
            }
            put_int(beat, k, scale);
        }
        out.write(beat);
        ROUTER_COUNT(EMIT_CYCLES, 1);
    }
}

/// Scales of each page that is written.
inline void arrange_scales(jobs_t& jobs, beats_t& source, hls::stream<token_scales_t>& tokens,
                           beats_t& out, dim_t n_jobs) {
    ECORL_BUFFER scale_banks_t banks;
#pragma HLS BIND_STORAGE variable = banks type = ram_2p impl = lutram
#pragma HLS ARRAY_PARTITION variable = banks complete dim = 1
#pragma HLS ARRAY_PARTITION variable = banks complete dim = 3
ARRANGE_SCALES:
    for (dim_t j = 0; j < n_jobs; ++j) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 64
        const job_t job = jobs.read();
        if (is_copied(job)) copy_scales(source, banks);
        if (!is_shared(job)) {
            take_scales(tokens, banks, job);
            emit_scales(banks, out);
        }
    }
}

}  // namespace router
}  // namespace ecorl

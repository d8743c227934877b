// What kv_cache_router reads and writes: the processes at both ends of its streams.
#pragma once

#include <hls_stream.h>

#include "ecorl_dataflow.hpp"
#include "kv_cache_router.hpp"

#ifdef ECORL_CSIM
#include "kv_cache_router_sim.hpp"
#define ROUTER_COUNT(slot, amount) ::ecorl::router::counts::add(slot, amount)
#else
#define ROUTER_COUNT(slot, amount)
#endif

namespace ecorl {
namespace router {

using jobs_t = hls::stream<job_t>;
using beats_t = hls::stream<beat_t>;

/// Scales of one token's key and value, inside the kernel.
struct token_scales_t {
    value_t key_m, key_e;
    value_t value_m;  ///< upper 16 bits of the mantissa
    value_t value_e;
};

inline std::int64_t beat_of_page(std::int32_t page, dim_t d) {
#pragma HLS INLINE
    return static_cast<std::int64_t>(page) * page_beats(d);
}

/// The table refers to the page of another sequence; nothing is written.
inline bool is_shared(const job_t& job) {
#pragma HLS INLINE
    return job.kept == PAGE;
}

/// The page begins with positions of another one.
inline bool is_copied(const job_t& job) {
#pragma HLS INLINE
    return job.kept > 0 && job.kept < PAGE;
}

// ---- load -----------------------------------------------------------------------------------

/// The list of jobs, for each process that begins with one.
inline void load_jobs(const job_t* jobs, jobs_t& to_source, jobs_t& to_keys, jobs_t& to_values,
                      jobs_t& to_scales, jobs_t& to_pages, jobs_t& to_table, dim_t n_jobs) {
LOAD_JOBS:
    for (dim_t j = 0; j < n_jobs; ++j) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 64
        const job_t job = jobs[j];
        to_source.write(job);
        to_keys.write(job);
        to_values.write(job);
        to_scales.write(job);
        to_pages.write(job);
        to_table.write(job);
        ROUTER_COUNT(BYTES_TOKENS, sizeof(job_t));
    }
}

/// The pages that are copied: keys, values and scales, a page in one burst.
inline void load_source(const beat_t* sources, jobs_t& jobs, beats_t& keys, beats_t& values,
                        beats_t& scales, dim_t n_jobs, dim_t d) {
LOAD_SOURCES:
    for (dim_t j = 0; j < n_jobs; ++j) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 64
        const job_t job = jobs.read();
        const bool copied = is_copied(job);
        const dim_t beats = copied ? page_beats(d) : 0;
        const std::int64_t first = beat_of_page(job.source, d);
    LOAD_SOURCE:
        for (dim_t i = 0; i < beats; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 272 avg = 10
            const beat_t beat = sources[first + i];
            if (i < d) {
                keys.write(beat);
            } else if (i < 2 * d) {
                values.write(beat);
            } else {
                scales.write(beat);
            }
            ROUTER_COUNT(BYTES_READ, sizeof(beat_t));
        }
        if (copied) ROUTER_COUNT(PAGES_COPIED, 1);
    }
}

/// Codes of the new tokens, of keys or of values; the job goes on before them.
inline void load_codes(const beat_t* codes, jobs_t& jobs, jobs_t& jobs_out, beats_t& out,
                       dim_t n_jobs, dim_t d) {
    const dim_t parts = token_beats(d);
LOAD_TOKENS:
    for (dim_t j = 0; j < n_jobs; ++j) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 64
        const job_t job = jobs.read();
        jobs_out.write(job);
        const std::int64_t first = static_cast<std::int64_t>(job.first_token) * parts;
    LOAD_CODES:
        for (dim_t i = 0; i < job.n_tokens * parts; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 128 avg = 64
            out.write(codes[first + i]);
            ROUTER_COUNT(BYTES_TOKENS, sizeof(beat_t));
        }
    }
}

/// The new tokens' scales.
inline void load_scales(const head_row_t* key_rows, const head_row_t* value_rows, jobs_t& jobs,
                        jobs_t& jobs_out, hls::stream<token_scales_t>& out, dim_t n_jobs) {
LOAD_ROWS:
    for (dim_t j = 0; j < n_jobs; ++j) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 64
        const job_t job = jobs.read();
        jobs_out.write(job);
    LOAD_SCALES:
        for (dim_t i = 0; i < job.n_tokens; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 64 avg = 64
            const head_row_t key = key_rows[job.first_token + i];
            const head_row_t value = value_rows[job.first_token + i];
            const token_scales_t scales = {value_t(key.m), value_t(key.e), value_t(value.m >> 16),
                                           value_t(value.e)};
            out.write(scales);
            ROUTER_COUNT(BYTES_TOKENS, 2 * sizeof(head_row_t));
        }
    }
}

// ---- store ----------------------------------------------------------------------------------

/// Pages, each in one burst: keys, values and scales.
inline void store_pages(jobs_t& jobs, beats_t& keys, beats_t& values, beats_t& scales,
                        beat_t* pages, dim_t n_jobs, dim_t d) {
STORE_PAGES:
    for (dim_t j = 0; j < n_jobs; ++j) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 64
        const job_t job = jobs.read();
        const bool shared = is_shared(job);
        const dim_t beats = shared ? 0 : page_beats(d);
        const std::int64_t first = beat_of_page(job.destination, d);
    STORE_PAGE:
        for (dim_t i = 0; i < beats; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 272 avg = 272
            beat_t beat;
            if (i < d) {
                beat = keys.read();
            } else if (i < 2 * d) {
                beat = values.read();
            } else {
                beat = scales.read();
            }
            pages[first + i] = beat;
            ROUTER_COUNT(BYTES_WRITTEN, sizeof(beat_t));
        }
        ROUTER_COUNT(shared ? PAGES_SHARED : PAGES_WRITTEN, 1);
    }
}

/// Entries of the page table: single writes, since a job's entry may be any. They follow one
/// another without a wait for the memory's answer.
inline void store_entries(jobs_t& jobs, std::int32_t* table, dim_t n_jobs) {
STORE_ENTRIES:
    for (dim_t j = 0; j < n_jobs; ++j) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 64
        const job_t job = jobs.read();
        table[job.entry] = is_shared(job) ? job.source : job.destination;
        ROUTER_COUNT(BYTES_WRITTEN, sizeof(std::int32_t));
    }
}

}  // namespace router
}  // namespace ecorl

#include "kv_cache_router.hpp"

#include <hls_stream.h>

#include "ecorl_dataflow.hpp"

#ifdef ECORL_CSIM
#include "kv_cache_router_sim.hpp"
#define ROUTER_COUNT(slot, amount) ::ecorl::router::counts::add(slot, amount)
#else
#define ROUTER_COUNT(slot, amount)
#endif

namespace ecorl {
namespace router {

/// Scales of one token's key and value, inside the kernel.
struct token_scales_t {
    std::int32_t key_m, key_e, value_m, value_e;
};

inline std::int64_t place_of(std::int32_t page, dim_t d) {
#pragma HLS INLINE
    return static_cast<std::int64_t>(page) * page_beats(d);
}

// ---- load -----------------------------------------------------------------------------------

/// Beats [first, first + n) of the pages.
inline void read_source(const beat_t* sources, hls::stream<beat_t>& out, std::int64_t first,
                        dim_t n) {
READ_SOURCE:
    for (dim_t i = 0; i < n; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 272 avg = 10
        out.write(sources[first + i]);
        ROUTER_COUNT(BYTES_READ, sizeof(beat_t));
    }
}

inline void read_tokens(const beat_t* keys, const beat_t* values, const head_row_t* key_rows,
                        const head_row_t* value_rows, hls::stream<beat_t>& key_beats,
                        hls::stream<beat_t>& value_beats, hls::stream<token_scales_t>& out,
                        const job_t& job, dim_t parts) {
    const std::int64_t first = static_cast<std::int64_t>(job.first_token) * parts;
READ_CODES:
    for (dim_t i = 0; i < job.n_tokens * parts; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 128 avg = 64
        key_beats.write(keys[first + i]);
        value_beats.write(values[first + i]);
        ROUTER_COUNT(BYTES_TOKENS, 2 * sizeof(beat_t));
    }
READ_SCALES:
    for (dim_t i = 0; i < job.n_tokens; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 64 avg = 64
        const head_row_t key = key_rows[job.first_token + i];
        const head_row_t value = value_rows[job.first_token + i];
        out.write({key.m, key.e, value.m, value.e});
        ROUTER_COUNT(BYTES_TOKENS, 2 * sizeof(head_row_t));
    }
}

/// Read what each job needs, in the order of jobs.
inline void load(const beat_t* keys, const beat_t* values, const head_row_t* key_rows,
                 const head_row_t* value_rows, const job_t* jobs, const beat_t* sources,
                 hls::stream<job_t>& to_pack, hls::stream<beat_t>& source_beats,
                 hls::stream<beat_t>& key_beats, hls::stream<beat_t>& value_beats,
                 hls::stream<token_scales_t>& token_scales, dim_t n_jobs, dim_t d) {
LOAD_JOB:
    for (dim_t j = 0; j < n_jobs; ++j) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 64
        const job_t job = jobs[j];
        ROUTER_COUNT(BYTES_TOKENS, sizeof(job_t));
        to_pack.write(job);
        const bool is_copied = job.kept > 0 && job.kept < PAGE;
        read_source(sources, source_beats, place_of(job.source, d), is_copied ? page_beats(d) : 0);
        read_tokens(keys, values, key_rows, value_rows, key_beats, value_beats, token_scales, job,
                    token_beats(d));
    }
}

// ---- pack -----------------------------------------------------------------------------------

/// Scales of a page, the rows in the order of memory.
using page_rows_t = value_t[PAGE_ROWS][PAGE];

/// Which chunks the next beat of codes holds.
struct place_t {
    dim_t p8;
    dim_t c8;
};

template <order O>
void step_on(place_t& place, dim_t d) {
#pragma HLS INLINE
    dim_t& inner = O == KEYS ? place.c8 : place.p8;
    dim_t& outer = O == KEYS ? place.p8 : place.c8;
    if (++inner == (O == KEYS ? d / ARRAY_LANES : PAGE / ARRAY_LANES)) {
        inner = 0;
        ++outer;
    }
}

/// The codes of the page that is copied.
template <order O>
void copy_codes(hls::stream<beat_t>& in, chunks_t chunks, dim_t d) {
    place_t place = {0, 0};
COPY_CODES:
    for (dim_t i = 0; i < d; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 32 max = 128 avg = 128
        put_beat<O>(chunks, in.read(), place.p8, place.c8);
        step_on<O>(place, d);
        ROUTER_COUNT(COPY_CYCLES, 1);
    }
}

inline void copy_rows(hls::stream<beat_t>& in, page_rows_t rows) {
COPY_ROWS:
    for (int i = 0; i < SCALE_BEATS; ++i) {
#pragma HLS PIPELINE II = 1
        const beat_t beat = in.read();
        for (int k = 0; k < BEAT_INTS; ++k) {
#pragma HLS UNROLL
            rows[i / ROW_BEATS][i % ROW_BEATS * BEAT_INTS + k] = int_of(beat, k);
        }
        ROUTER_COUNT(COPY_CYCLES, 1);
    }
}

inline beat_t zeros() {
#pragma HLS INLINE
    beat_t beat;
    for (int i = 0; i < BEAT; ++i) {
#pragma HLS UNROLL
        beat.value[i] = 0;
    }
    return beat;
}

/// Codes of the new tokens behind those that were kept, then zeros.
inline void take_codes(hls::stream<beat_t>& keys, hls::stream<beat_t>& values, chunks_t key_chunks,
                       chunks_t value_chunks, const job_t& job, dim_t parts) {
    const dim_t end = (job.kept + job.n_tokens) * parts;
TAKE_CODES:
    for (dim_t i = job.kept * parts; i < PAGE * parts; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 128 avg = 64
        const dim_t position = parts == 2 ? i >> 1 : i;
        const dim_t part = parts == 2 ? i & 1 : 0;
        put_codes(key_chunks, i < end ? keys.read() : zeros(), position, part);
        put_codes(value_chunks, i < end ? values.read() : zeros(), position, part);
        ROUTER_COUNT(ROW_CYCLES, 1);
    }
}

/// Their scales.
inline void take_scales(hls::stream<token_scales_t>& in, page_rows_t rows, const job_t& job) {
    const dim_t end = job.kept + job.n_tokens;
TAKE_SCALES:
    for (dim_t i = job.kept; i < PAGE; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 64 avg = 64
        token_scales_t scales = {0, 0, 0, 0};
        if (i < end) scales = in.read();
        rows[0][i] = scales.key_m;
        rows[1][i] = scales.key_e;
        rows[2][i] = scales.value_m >> 16;
        rows[3][i] = scales.value_e;
    }
}

template <order O>
void emit_codes(const chunks_t chunks, hls::stream<beat_t>& out, dim_t d) {
    place_t place = {0, 0};
EMIT_CODES:
    for (dim_t i = 0; i < d; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 32 max = 128 avg = 128
        out.write(beat_of<O>(chunks, place.p8, place.c8));
        step_on<O>(place, d);
        ROUTER_COUNT(EMIT_CYCLES, 1);
    }
}

inline void emit_rows(const page_rows_t rows, hls::stream<beat_t>& out) {
EMIT_ROWS:
    for (int i = 0; i < SCALE_BEATS; ++i) {
#pragma HLS PIPELINE II = 1
        beat_t beat;
        for (int k = 0; k < BEAT_INTS; ++k) {
#pragma HLS UNROLL
            put_int(beat, k, rows[i / ROW_BEATS][i % ROW_BEATS * BEAT_INTS + k]);
        }
        out.write(beat);
        ROUTER_COUNT(EMIT_CYCLES, 1);
    }
}

/// Make each page that is written: what is kept, the new tokens, zeros.
inline void pack(hls::stream<job_t>& jobs, hls::stream<beat_t>& source_beats,
                 hls::stream<beat_t>& key_beats, hls::stream<beat_t>& value_beats,
                 hls::stream<token_scales_t>& token_scales, hls::stream<job_t>& to_store,
                 hls::stream<beat_t>& page, dim_t n_jobs, dim_t d) {
    ECORL_BUFFER chunks_t keys;
    ECORL_BUFFER chunks_t values;
    ECORL_BUFFER page_rows_t rows;
#pragma HLS BIND_STORAGE variable = keys type = ram_2p impl = lutram
#pragma HLS BIND_STORAGE variable = values type = ram_2p impl = lutram
#pragma HLS BIND_STORAGE variable = rows type = ram_2p impl = lutram
#pragma HLS ARRAY_PARTITION variable = keys complete dim = 1
#pragma HLS ARRAY_PARTITION variable = keys cyclic factor = 8 dim = 2
#pragma HLS ARRAY_PARTITION variable = values complete dim = 1
#pragma HLS ARRAY_PARTITION variable = values cyclic factor = 8 dim = 2
#pragma HLS ARRAY_PARTITION variable = rows complete dim = 1
#pragma HLS ARRAY_PARTITION variable = rows cyclic factor = 16 dim = 2
#pragma HLS AGGREGATE variable = keys
#pragma HLS AGGREGATE variable = values
PACK_JOB:
    for (dim_t j = 0; j < n_jobs; ++j) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 64
        const job_t job = jobs.read();
        to_store.write(job);
        if (job.kept == PAGE) {
            ROUTER_COUNT(PAGES_SHARED, 1);
            continue;
        }
        if (job.kept > 0) {
            copy_codes<KEYS>(source_beats, keys, d);
            copy_codes<VALUES>(source_beats, values, d);
            copy_rows(source_beats, rows);
            ROUTER_COUNT(PAGES_COPIED, 1);
        }
        take_codes(key_beats, value_beats, keys, values, job, token_beats(d));
        take_scales(token_scales, rows, job);
        emit_codes<KEYS>(keys, page, d);
        emit_codes<VALUES>(values, page, d);
        emit_rows(rows, page);
        ROUTER_COUNT(PAGES_WRITTEN, 1);
    }
}

// ---- store ----------------------------------------------------------------------------------

inline void store(hls::stream<job_t>& jobs, hls::stream<beat_t>& in, beat_t* pages,
                  std::int32_t* table, dim_t n_jobs, dim_t d) {
STORE_JOB:
    for (dim_t j = 0; j < n_jobs; ++j) {
#pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 64
        const job_t job = jobs.read();
        const bool is_shared = job.kept == PAGE;
        const std::int64_t first = place_of(job.destination, d);
        const dim_t beats = is_shared ? 0 : page_beats(d);
    STORE:
        for (dim_t i = 0; i < beats; ++i) {
#pragma HLS PIPELINE II = 1
#pragma HLS LOOP_TRIPCOUNT min = 0 max = 272 avg = 276
            pages[first + i] = in.read();
            ROUTER_COUNT(BYTES_WRITTEN, sizeof(beat_t));
        }
        table[job.entry] = is_shared ? job.source : job.destination;
        ROUTER_COUNT(BYTES_WRITTEN, sizeof(std::int32_t));
    }
}

/// Load, pack and store as processes of one dataflow region.
inline void route(const beat_t* keys, const beat_t* values, const head_row_t* key_rows,
                  const head_row_t* value_rows, const job_t* jobs, const beat_t* sources,
                  beat_t* pages, std::int32_t* table, dim_t n_jobs, dim_t d) {
#pragma HLS DATAFLOW
    hls::stream<job_t, 4> to_pack("to_pack");
    hls::stream<job_t, 4> to_store("to_store");
    hls::stream<beat_t, 512> source_beats("source_beats");
    hls::stream<beat_t, 128> key_beats("key_beats");
    hls::stream<beat_t, 128> value_beats("value_beats");
    hls::stream<token_scales_t, 64> token_scales("token_scales");
    hls::stream<beat_t, 512> page("page");
#pragma HLS BIND_STORAGE variable = to_pack type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = to_store type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = source_beats type = fifo impl = bram
#pragma HLS BIND_STORAGE variable = key_beats type = fifo impl = bram
#pragma HLS BIND_STORAGE variable = value_beats type = fifo impl = bram
#pragma HLS BIND_STORAGE variable = token_scales type = fifo impl = srl
#pragma HLS BIND_STORAGE variable = page type = fifo impl = bram
    ECORL_REGION(kv_cache_router);
    ECORL_PROCESS(load(keys, values, key_rows, value_rows, jobs, sources, to_pack, source_beats,
                       key_beats, value_beats, token_scales, n_jobs, d));
    ECORL_PROCESS(pack(to_pack, source_beats, key_beats, value_beats, token_scales, to_store, page,
                       n_jobs, d));
    ECORL_PROCESS(store(to_store, page, pages, table, n_jobs, d));
    ECORL_RUN(kv_cache_router);
}

}  // namespace router
}  // namespace ecorl

extern "C" void kv_cache_router_krnl(const ecorl::beat_t* keys, const ecorl::beat_t* values,
                                     const ecorl::head_row_t* key_rows,
                                     const ecorl::head_row_t* value_rows,
                                     const ecorl::router::job_t* jobs, const ecorl::beat_t* sources,
                                     ecorl::beat_t* pages, std::int32_t* table, std::int32_t n_jobs,
                                     std::int32_t d) {
#pragma HLS INTERFACE m_axi port = keys bundle = gmem_k max_read_burst_length = 256 offset = slave
#pragma HLS INTERFACE m_axi port = values bundle = gmem_v max_read_burst_length = 256 offset = slave
#pragma HLS INTERFACE m_axi port = key_rows bundle = gmem_r max_read_burst_length = 256 offset = \
    slave
#pragma HLS INTERFACE m_axi port = value_rows bundle = gmem_s max_read_burst_length = 256 offset = \
    slave
#pragma HLS INTERFACE m_axi port = jobs bundle = gmem_j max_read_burst_length = 256 offset = slave
#pragma HLS INTERFACE m_axi port = sources bundle = gmem_p max_read_burst_length = 256 offset = \
    slave
#pragma HLS INTERFACE m_axi port = pages bundle = gmem_p max_write_burst_length = 256 offset = slave
#pragma HLS INTERFACE m_axi port = table bundle = gmem_t max_write_burst_length = 256 offset = slave
#pragma HLS INTERFACE s_axilite port = n_jobs
#pragma HLS INTERFACE s_axilite port = d
#pragma HLS INTERFACE s_axilite port = return
#pragma HLS AGGREGATE variable = keys compact = bit
#pragma HLS AGGREGATE variable = values compact = bit
#pragma HLS AGGREGATE variable = key_rows compact = bit
#pragma HLS AGGREGATE variable = value_rows compact = bit
#pragma HLS AGGREGATE variable = jobs compact = bit
#pragma HLS AGGREGATE variable = sources compact = bit
#pragma HLS AGGREGATE variable = pages compact = bit
    using namespace ecorl::router;
    ROUTER_COUNT(CALLS, 1);
    route(keys, values, key_rows, value_rows, jobs, sources, pages, table, n_jobs, d);
}

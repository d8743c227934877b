#include "kv_cache_router.hpp"

#include "arrange.hpp"
#include "memory.hpp"

namespace ecorl {
namespace router {

constexpr int CODE_BEATS = PAGE * MAX_HEAD / BEAT;  ///< of the keys of a page, or its values

/// Load, arrange and store as processes of one dataflow region.
inline void router_dataflow(const beat_t* keys, const beat_t* values, const head_row_t* key_rows,
                            const head_row_t* value_rows, const job_t* jobs, const beat_t* sources,
                            beat_t* pages, std::int32_t* table, dim_t n_jobs, dim_t d) {
#pragma HLS DATAFLOW
    hls::stream<job_t, 16> source_jobs("source_jobs");
    hls::stream<job_t, 16> key_jobs("key_jobs");
    hls::stream<job_t, 16> value_jobs("value_jobs");
    hls::stream<job_t, 16> scale_jobs("scale_jobs");
    hls::stream<job_t, 16> page_jobs("page_jobs");
    hls::stream<job_t, 16> table_jobs("table_jobs");
    hls::stream<job_t, 2> loaded_keys("loaded_keys");
    hls::stream<job_t, 2> loaded_values("loaded_values");
    hls::stream<job_t, 2> loaded_scales("loaded_scales");
    hls::stream<beat_t, 32> source_keys("source_keys");
    hls::stream<beat_t, 32> source_values("source_values");
    hls::stream<beat_t, 32> source_scales("source_scales");
    hls::stream<beat_t, CODE_BEATS> key_beats("key_beats");
    hls::stream<beat_t, CODE_BEATS> value_beats("value_beats");
    hls::stream<token_scales_t, PAGE> token_scales("token_scales");
    hls::stream<beat_t, CODE_BEATS> page_keys("page_keys");
    hls::stream<beat_t, CODE_BEATS> page_values("page_values");
    hls::stream<beat_t, SCALE_BEATS> page_scales("page_scales");
#pragma HLS BIND_STORAGE variable = key_beats type = fifo impl = bram
#pragma HLS BIND_STORAGE variable = value_beats type = fifo impl = bram
#pragma HLS BIND_STORAGE variable = page_keys type = fifo impl = bram
#pragma HLS BIND_STORAGE variable = page_values type = fifo impl = bram
    ECORL_REGION(kv_cache_router);
    ECORL_PROCESS(load_jobs(jobs, source_jobs, key_jobs, value_jobs, scale_jobs, page_jobs,
                            table_jobs, n_jobs));
    ECORL_PROCESS(
        load_source(sources, source_jobs, source_keys, source_values, source_scales, n_jobs, d));
    ECORL_PROCESS(load_codes(keys, key_jobs, loaded_keys, key_beats, n_jobs, d));
    ECORL_PROCESS(load_codes(values, value_jobs, loaded_values, value_beats, n_jobs, d));
    ECORL_PROCESS(
        load_scales(key_rows, value_rows, scale_jobs, loaded_scales, token_scales, n_jobs));
    ECORL_PROCESS(arrange_codes<KEYS>(loaded_keys, source_keys, key_beats, page_keys, n_jobs, d));
    ECORL_PROCESS(
        arrange_codes<VALUES>(loaded_values, source_values, value_beats, page_values, n_jobs, d));
    ECORL_PROCESS(arrange_scales(loaded_scales, source_scales, token_scales, page_scales, n_jobs));
    ECORL_PROCESS(store_pages(page_jobs, page_keys, page_values, page_scales, pages, n_jobs, d));
    ECORL_PROCESS(store_entries(table_jobs, table, n_jobs));
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
#pragma HLS INTERFACE m_axi port = keys bundle = gmem_k max_read_burst_length = \
    64 num_read_outstanding = 4 offset = slave
#pragma HLS INTERFACE m_axi port = values bundle = gmem_v max_read_burst_length = \
    64 num_read_outstanding = 4 offset = slave
#pragma HLS INTERFACE m_axi port = key_rows bundle = gmem_r max_read_burst_length = \
    64 num_read_outstanding = 8 offset = slave
#pragma HLS INTERFACE m_axi port = value_rows bundle = gmem_s max_read_burst_length = \
    64 num_read_outstanding = 8 offset = slave
#pragma HLS INTERFACE m_axi port = jobs bundle = gmem_j max_read_burst_length = \
    128 num_read_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = sources bundle = gmem_p max_read_burst_length = \
    64 num_read_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = pages bundle = gmem_p max_write_burst_length = \
    64 num_write_outstanding = 2 offset = slave
#pragma HLS INTERFACE m_axi port = table bundle = gmem_t max_write_burst_length = \
    16 num_write_outstanding = 16 offset = slave
#pragma HLS INTERFACE s_axilite port = n_jobs
#pragma HLS INTERFACE s_axilite port = d
#pragma HLS INTERFACE s_axilite port = return
#pragma HLS AGGREGATE variable = keys
#pragma HLS AGGREGATE variable = values
#pragma HLS AGGREGATE variable = key_rows
#pragma HLS AGGREGATE variable = value_rows
#pragma HLS AGGREGATE variable = jobs
#pragma HLS AGGREGATE variable = sources
#pragma HLS AGGREGATE variable = pages
    using namespace ecorl::router;
    ROUTER_COUNT(CALLS, 1);
    router_dataflow(keys, values, key_rows, value_rows, jobs, sources, pages, table, n_jobs, d);
}

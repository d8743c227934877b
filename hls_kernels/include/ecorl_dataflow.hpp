// How a dataflow region is written, so that Vitis sees a canonical one and the C-simulation runs
// its processes side by side:
//
//     void example_dataflow(const word_t* in, word_t* out, dim_t n) {
//     #pragma HLS DATAFLOW
//         hls::stream<word_t, 64> words("words");
//         ECORL_REGION(example);
//         ECORL_PROCESS(load(in, words, n));
//         ECORL_PROCESS(store(words, out, n));
//         ECORL_RUN(example);
//     }
//
// Vitis and a bench that stands alone see the plain calls. In the C-simulation each process has a
// stack of its own and its FIFOs hold what their type declares; see sim/dataflow.hpp.
#pragma once

#ifdef ECORL_CSIM
#include "dataflow.hpp"

#define ECORL_REGION(name)                         \
    ::ecorl::dataflow::Region ecorl_region(#name); \
    ::ecorl::dataflow::Region& ecorl_region_##name = ecorl_region
#define ECORL_PROCESS(...) ecorl_region.add(#__VA_ARGS__, [&] { __VA_ARGS__; })
#define ECORL_RUN(name) ecorl_region_##name.run()
#else
#define ECORL_REGION(name)
#define ECORL_PROCESS(...) __VA_ARGS__
#define ECORL_RUN(name)
#endif

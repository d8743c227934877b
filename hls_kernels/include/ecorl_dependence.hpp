// What a DEPENDENCE pragma states, said again where the C-simulation can watch it. Vitis believes
// the pragma: where it is untrue the hardware reads an element before it is written, in silence.
//
//     ECORL_BUFFER watched<word_t> block[WORDS];
//     LOOP:
//     for (dim_t i = 0; i < steps; ++i) {
//     #pragma HLS DEPENDENCE variable = block type = inter direction = RAW distance = 4 true
//         ECORL_WATCH(block, LOOP, RAW, 4, i, rows, words);
//
// RAW: an element that one iteration writes is read `distance` iterations later at the earliest.
// NEVER: no later one reads it. ALL: nor writes it, nor does one write what an earlier one reads.
// `i` counts the iterations from 0 each time that the loop is entered: Vitis empties a pipeline
// before it enters it again, so iterations of two entries do not meet. What follows is the shape, a
// number or more; a report gives it. Of two loops, one in the other, that watch an array both are
// held. The strict build watches, see sim/dataflow_dependence.hpp; elsewhere a watched array is a
// plain one.
//
// Not seen are: iterations of a loop whose counter stays 0, each of which begins an entry of its
// own; an access that stands before the watch in the loop's body; memcpy out of the array.
#pragma once

#ifdef ECORL_STRICT
#include "dataflow_dependence.hpp"

#define ECORL_WATCH(array, loop, direction, distance, iteration, ...)                          \
    static_assert(::ecorl::dependence::is_watched<decltype(array)>, #array " is not watched"); \
    static thread_local ::ecorl::dependence::Entry ecorl_entry_##array;                        \
    const ::ecorl::dependence::Watch ecorl_watch_##array(                                      \
        ecorl_entry_##array,                                                                   \
        {#array, #loop, ::ecorl::dependence::direction, distance, &(array), sizeof(array),     \
         #__VA_ARGS__},                                                                        \
        iteration, {__VA_ARGS__})

namespace ecorl {
using dependence::NEVER;
using dependence::watched;
}  // namespace ecorl
#else
#define ECORL_WATCH(...)

namespace ecorl {
/// An element of an array under a DEPENDENCE pragma.
template <class T>
using watched = T;
}  // namespace ecorl
#endif

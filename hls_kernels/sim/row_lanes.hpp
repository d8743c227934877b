// Lanes of the host's row functions: one exact integer in the strict build, a register of sixteen
// in the fast build. Vitis never sees this file.
//
// A row policy is what a lane is for lane_functions.hpp, and how a row in memory is taken apart:
// STEP values at a time, the last step of a row perhaps with fewer, where missing ones are 0.
#pragma once

#include "../include/lane_functions.hpp"

#ifdef ECORL_NATIVE
#include "wide_lanes.hpp"
#endif

namespace ecorl {

/// One value at a time.
struct one_lane : exact {
    static constexpr dim_t STEP = 1;
    static value load(const value_t* p, dim_t) { return *p; }
#ifndef ECORL_NATIVE
    static value load(const std::int32_t* p, dim_t) { return value(*p); }
#endif
    static value load(const sint<16>* p, dim_t) { return value(*p); }
    static void store(value_t* p, value v, dim_t) { *p = v; }
    static void store(code_t* p, value v, dim_t) { *p = code_t(v); }
    static value numbers() { return value(0); }
    static value_t largest(value v) { return v; }
    static value_t total(value v) { return v; }
    static value_t any_bit(value v) { return v; }
    static std::int64_t wide_total(value v) { return static_cast<std::int64_t>(v); }
};

}  // namespace ecorl

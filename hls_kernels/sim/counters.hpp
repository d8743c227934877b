// Loop counts of a kernel in the C-simulation. Vitis never sees this file.
#pragma once

#include <atomic>
#include <cstdint>

namespace ecorl {

/// N counts of the kernel that Tag names: each thread has its own until it adds them to the totals.
template <typename Tag, int N>
struct counters {
    static thread_local std::int64_t local[N];
    static std::atomic<std::int64_t> totals[N];

    static void add(int slot, std::int64_t amount) { local[slot] += amount; }
    static void add_to_totals() {
        for (int i = 0; i < N; ++i) {
            totals[i].fetch_add(local[i], std::memory_order_relaxed);
            local[i] = 0;
        }
    }
    static void read(std::int64_t* out) {
        for (int i = 0; i < N; ++i) out[i] = totals[i].load(std::memory_order_relaxed);
    }
    static void reset() {
        for (auto& total : totals) total.store(0, std::memory_order_relaxed);
    }
};

template <typename Tag, int N>
thread_local std::int64_t counters<Tag, N>::local[N] = {};
template <typename Tag, int N>
std::atomic<std::int64_t> counters<Tag, N>::totals[N] = {};

}  // namespace ecorl

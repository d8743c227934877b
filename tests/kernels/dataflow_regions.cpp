// Regions for test_dataflow.py. As a program it calls all of them from two host threads at once.
#include <hls_stream.h>

#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "ecorl_dataflow.hpp"

namespace {

constexpr int BLOCK = 8;

/// Counts itself while it lives, as an object on the stack of a process.
struct counted_t {
    static std::int32_t& alive() {
        static thread_local std::int32_t count = 0;
        return count;
    }
    counted_t() { ++alive(); }
    ~counted_t() { --alive(); }
    counted_t(const counted_t&) = delete;
    counted_t& operator=(const counted_t&) = delete;
};

using ints = hls::stream<int>;

/// All of a block goes left before any of it goes right.
void split(ints& left, ints& right, int n, int block) {
    const counted_t counted;
    for (int first = 0; first < n; first += block) {
        for (int i = 0; i < block; ++i) left.write(first + i);
        for (int i = 0; i < block; ++i) right.write(3 * (first + i));
    }
}

void join(ints& left, ints& right, std::int32_t* out, int n) {
    const counted_t counted;
    for (int i = 0; i < n; ++i) out[i] = left.read() + right.read();
}

template <int DEPTH>
void split_and_join(std::int32_t* out, int n, int block) {
#pragma HLS DATAFLOW
    hls::stream<int, DEPTH> left("left");
    hls::stream<int, 2> right("right");
    ECORL_REGION(pairs);
    ECORL_PROCESS(split(left, right, n, block));
    ECORL_PROCESS(join(left, right, out, n));
    ECORL_RUN(pairs);
}

void source(ints& out, int n) {
    for (int i = 0; i < n; ++i) out.write(i);
}

void copy(ints& in, ints& out, int n) {
    const counted_t counted;
    for (int i = 0; i < n; ++i) out.write(in.read());
}

/// Reads the FIFO of the region around it.
void twice(ints& in, ints& out, int n) {
    for (int i = 0; i < n; ++i) out.write(2 * in.read());
}

void sink(ints& in, std::int32_t* out, int n) {
    const counted_t counted;
    for (int i = 0; i < n; ++i) out[i] = in.read();
}

/// A region within a process, once for each block. `missing` items of the last block never come.
void blocks(ints& in, ints& out, int n, int missing) {
    const counted_t counted;
    for (int first = 0; first < n; first += BLOCK) {
        const int more = first + BLOCK < n ? 0 : missing;
        hls::stream<int, 1> doubled("doubled");
        ECORL_REGION(block);
        ECORL_PROCESS(twice(in, doubled, BLOCK));
        ECORL_PROCESS(copy(doubled, out, BLOCK + more));
        ECORL_RUN(block);
    }
}

void nest(std::int32_t* out, int n, int missing) {
    hls::stream<int, 3> before("before");
    hls::stream<int, 2> after("after");
    ECORL_REGION(nest);
    ECORL_PROCESS(source(before, n));
    ECORL_PROCESS(blocks(before, after, n, missing));
    ECORL_PROCESS(sink(after, out, n));
    ECORL_RUN(nest);
}

void give_up(ints& in, int after) {
    const counted_t counted;
    for (int i = 0; i < after; ++i) in.read();
    throw std::runtime_error("gave up after " + std::to_string(after));
}

void give_up_within(ints& in, int after) {
    hls::stream<int, 1> inner("inner");
    ECORL_REGION(within);
    ECORL_PROCESS(twice(in, inner, after + 1));
    ECORL_PROCESS(give_up(inner, after));
    ECORL_RUN(within);
}

void idle(ints& in) {
    const counted_t counted;
    in.read();
}

}  // namespace

extern "C" {

std::int32_t pairs_6(std::int32_t* out, std::int32_t n) {
    return ecorl::dataflow::guarded([&] { split_and_join<BLOCK - 2>(out, n, BLOCK); });
}

std::int32_t pairs_7(std::int32_t* out, std::int32_t n) {
    return ecorl::dataflow::guarded([&] { split_and_join<BLOCK - 1>(out, n, BLOCK); });
}

/// The depth is that of dataflow_set_depth.
std::int32_t pairs(std::int32_t* out, std::int32_t n, std::int32_t block) {
    return ecorl::dataflow::guarded([&] { split_and_join<1024>(out, n, block); });
}

std::int32_t nested(std::int32_t* out, std::int32_t n, std::int32_t missing) {
    return ecorl::dataflow::guarded([&] { nest(out, n, missing); });
}

/// A process throws while others wait; `within` a region in a region. 0 when the exception comes
/// out as it was thrown.
std::int32_t throws(std::int32_t after, std::int32_t within) {
    hls::stream<int, 2> items("items");
    hls::stream<int, 2> nothing("nothing");
    try {
        ECORL_REGION(throwing);
        ECORL_PROCESS(idle(nothing));
        ECORL_PROCESS(source(items, 1000));
        ECORL_PROCESS(within != 0 ? give_up_within(items, after) : give_up(items, after));
        ECORL_RUN(throwing);
    } catch (const std::runtime_error& error) {
        return error.what() == "gave up after " + std::to_string(after) ? 0 : 1;
    }
    return 2;
}

/// More is written than read.
std::int32_t leaves_items(std::int32_t* out, std::int32_t n, std::int32_t more) {
    return ecorl::dataflow::guarded([&] {
        hls::stream<int, 16> items("items");
        ECORL_REGION(leaving);
        ECORL_PROCESS(source(items, n + more));
        ECORL_PROCESS(sink(items, out, n));
        ECORL_RUN(leaving);
    });
}

/// Two processes read the same FIFO.
std::int32_t reads_twice(std::int32_t* out) {
    hls::stream<int, 2> items("shared");
    try {
        ECORL_REGION(sharing);
        ECORL_PROCESS(sink(items, out, 1));
        ECORL_PROCESS(sink(items, out + 1, 1));
        ECORL_PROCESS(source(items, 2));
        ECORL_RUN(sharing);
    } catch (const std::logic_error&) {
        return 1;
    }
    return 0;
}

/// Processes called alone, as a bench may: no limit, and an error on a read of an empty stream.
std::int32_t alone(std::int32_t* out, std::int32_t n) {
    hls::stream<int, 2> items("items");
    source(items, n);
    if (items.empty()) return 1;
    sink(items, out, n);
    try {
        items.read();
    } catch (const std::underflow_error& error) {
        return error.what() == std::string("read of empty stream items") ? 0 : 2;
    }
    return 3;
}

/// A stream of the caller, with items in it, is none of the region's FIFOs.
std::int32_t beside_another(std::int32_t* out, std::int32_t n) {
    hls::stream<int, 2> others("others");
    source(others, 3);
    const std::int32_t code = pairs_7(out, n);
    return code != 0 ? code : others.read();
}

std::int32_t objects_alive() {
    return counted_t::alive();
}
}

namespace {

std::int32_t all_of_them() {
    std::int32_t wrong = 0;
    std::vector<std::int32_t> out(4096);
    for (int round = 0; round < 50; ++round) {
        wrong += pairs_7(out.data(), 800) != 0;
        wrong += out[799] != 4 * 799;
        wrong += pairs_6(out.data(), 800) != ecorl::dataflow::FAULT;
        wrong += nested(out.data(), 80, 0) != 0;
        wrong += nested(out.data(), 80, 1) != ecorl::dataflow::FAULT;
        wrong += throws(round, 0) != 0;
        wrong += throws(round, 1) != 0;
        wrong += leaves_items(out.data(), 40, 3) != ecorl::dataflow::FAULT;
        wrong += reads_twice(out.data()) != 1;
        wrong += alone(out.data(), 100) != 0;
        wrong += beside_another(out.data(), 80) != 0;
        wrong += objects_alive() != 0;
    }
    return wrong;
}

}  // namespace

int main() {
    std::int32_t wrong[2] = {};
    std::thread other([&] { wrong[1] = all_of_them(); });
    wrong[0] = all_of_them();
    other.join();
    std::printf("%s: %d and %d wrong, %lld deadlocks\n", wrong[0] + wrong[1] == 0 ? "PASS" : "FAIL",
                wrong[0], wrong[1], static_cast<long long>(dataflow_deadlocks()));
    return wrong[0] + wrong[1] == 0 ? 0 : 1;
}

// Bench of what moves words and counts trips: FIFOs, memories, delays and the control of a loop.
#include <deque>

#include "Vbank.h"
#include "Vcontrol.h"
#include "Vfifo.h"
#include "Vmove.h"
#include "Vskew.h"
#include "harness.hpp"

namespace {

using bench::clock_edge;
using bench::dice;

/// What a bench of this file counts: comparisons, those that failed, and the least cycles seen.
struct tally {
    int vectors = 0;
    int mismatches = 0;
    int latency = 1 << 20;

    void compare(bool right) {
        ++vectors;
        mismatches += !right;
    }

    bool print(const char* name) const {
        std::printf("{\"name\": \"%s\", \"latency\": %d, \"vectors\": %d, \"mismatches\": %d}\n",
                    name, latency, vectors, mismatches);
        return mismatches == 0;
    }
};

/// A word on its way through FIFOs.
struct passing_t {
    std::uint32_t word;
    int since;
};

template <class Model>
void reset(Model& top) {
    top.rst = 1;
    for (int i = 0; i < 8; ++i) clock_edge(top);
    top.rst = 0;
}

/// Words in and out at random: all come out, in order. The latency is that of a word that finds
/// nothing in its way, from where it is offered to where it has been read.
bool run_fifo(const bench::options& with) {
    constexpr std::size_t DEPTH = 16;
    VerilatedContext context;
    context.randReset(2);
    Vfifo top(&context);
    dice draw(with.seed);
    tally found;
    std::deque<passing_t> held;
    reset(top);
    bool popped = false;
    passing_t expected = {};
    for (int now = 0; found.vectors < with.vectors; ++now) {
        const bool busy = now / 1000 % 2 != 0;  // times of many words, times of few
        const std::uint32_t word = static_cast<std::uint32_t>(draw.bits());
        if (popped) {
            found.compare(top.word == expected.word);
            found.latency = std::min(found.latency, now - expected.since);
        }
        top.in_valid = !draw.one_in(busy ? 5 : 2);
        top.in_word = word;
        top.eval();
        found.mismatches += top.in_ready != (held.size() < DEPTH) || top.empty != held.empty();
        popped = !top.empty && !draw.one_in(busy ? 2 : 5);
        top.pop = popped;
        if (popped) {
            expected = held.front();
            held.pop_front();
        }
        if (top.in_valid && top.in_ready) held.push_back({word, now});
        clock_edge(top);
    }
    return found.print("fifo");
}

/// Words through both FIFOs: all come out, in order. The latency is from where the first FIFO is
/// read to where the word may be read from the second.
bool run_move(const bench::options& with) {
    VerilatedContext context;
    context.randReset(2);
    Vmove top(&context);
    dice draw(with.seed);
    tally found;
    std::deque<std::uint32_t> before;
    std::deque<passing_t> moving;
    reset(top);
    top.pop = 0;
    bool popped = false;
    std::uint32_t expected = 0;
    for (int now = 0; found.vectors < with.vectors; ++now) {
        const bool busy = now / 1000 % 2 != 0;
        const std::uint32_t word = static_cast<std::uint32_t>(draw.bits());
        if (popped) found.compare(top.word == expected);
        top.in_valid = !draw.one_in(busy ? 5 : 2);
        top.in_word = word;
        top.pop = 0;
        top.eval();
        popped = !top.out_empty && !draw.one_in(busy ? 2 : 5);
        top.pop = popped;
        top.eval();
        if (!top.out_empty) found.latency = std::min(found.latency, now - moving.front().since);
        if (popped) {
            expected = moving.front().word;
            moving.pop_front();
        }
        if (top.taken) {
            moving.push_back({before.front(), now});
            before.pop_front();
        }
        if (top.in_valid && top.in_ready) before.push_back(word);
        clock_edge(top);
    }
    return found.print("move");
}

/// Both halves of a bank: one is read while the other is filled. `act` packs a pair of rows.
struct bank_case {
    using model = Vbank;
    using outputs = std::array<std::int64_t, 4>;
    static constexpr int STEPS = 64, TILE_K = 4;
    std::array<std::array<std::uint64_t, STEPS>, 2> words = {};
    bool filled = false;

    void fill(model& top, int half, int step, std::uint64_t word) {
        top.fill_enable = 1;
        top.fill_half = half;
        top.fill_step = step;
        top.fill_pair = word;
        words[half][step] = word;
    }

    outputs play(model& top, dice& draw) {
        for (int place = 0; !filled && place < 2 * STEPS; ++place) {
            fill(top, place / STEPS, place % STEPS, draw.bits());
            clock_edge(top);
        }
        filled = true;
        const int read = draw.count(0, 1), read_step = draw.count(0, STEPS - 1);
        top.read_enable = 1;
        top.read_half = read;
        top.read_step = read_step;
        const std::uint64_t pair = words[read][read_step];
        fill(top, 1 - read, draw.count(0, STEPS - 1), draw.bits());
        outputs packed = {};
        for (int t = 0; t < TILE_K; ++t) {
            const auto low = static_cast<std::int8_t>(pair >> (8 * t));
            const auto high = static_cast<std::int8_t>(pair >> (8 * (TILE_K + t)));
            packed[t] = high * (1 << 18) + low;
        }
        return packed;
    }

    static outputs seen(const model& top) {
        outputs packed = {};
        for (int t = 0; t < TILE_K; ++t) {
            const int bit = 27 * t, shift = bit % 32;
            const std::uint64_t upper = bit / 32 < 3 ? top.act[bit / 32 + 1] : 0;
            packed[t] = bench::signed_of((upper << 32 | top.act[bit / 32]) >> shift, 27);
        }
        return packed;
    }
};

/// The last of four lanes, which waits longest.
struct skew_case {
    using model = Vskew;
    using outputs = std::array<std::int64_t, 1>;
    static outputs play(model& top, dice& draw) {
        const auto word = static_cast<std::uint32_t>(draw.bits());
        top.in = word;
        return {word >> 24};
    }
    static outputs seen(const model& top) { return {top.out >> 24}; }
};

/// Loops one after the other, each started as soon as the one before has ended. The latency is what
/// a loop takes beyond a cycle a trip.
bool run_control(const bench::options& with) {
    VerilatedContext context;
    context.randReset(2);
    Vcontrol top(&context);
    dice draw(with.seed);
    tally found;
    reset(top);
    top.start = 0;
    while (found.vectors < with.vectors) {
        const int trips = draw.count(1, 1 << draw.count(0, 6));
        int cycles = 0, begun = 0, last_at = 0;
        top.start = 1;
        top.trips = trips;
        top.eval();
        do {
            clock_edge(top);
            ++cycles;
            top.start = 0;
            begun += top.trip;
            if (top.trip && top.last) last_at = begun;
        } while (!top.idle && cycles < (1 << 20));
        found.compare(begun == trips && last_at == trips);
        found.mismatches += cycles - trips > found.latency;
        found.latency = std::min(found.latency, cycles - trips);
        for (int wait = draw.one_in(2) ? 0 : draw.count(1, 5); wait > 0; --wait) {
            clock_edge(top);
            found.mismatches += top.trip;
        }
    }
    return found.print("control");
}

}  // namespace

int main(int argc, char** argv) {
    const bench::options with = bench::read_options(argc, argv);
    bool right = true;
    right &= run_move(with);
    right &= run_fifo(with);
    right &= bench::run<bank_case>("bank", with);
    right &= bench::run<skew_case>("skew", with);
    right &= run_control(with);
    return right ? 0 : 1;
}

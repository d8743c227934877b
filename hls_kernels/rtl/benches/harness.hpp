// Plays random operands through a pipeline, compares what comes out with the reference, and
// measures how many cycles it took.
//
// A case names its Verilator model and has two functions: `play` draws operands, drives the model's
// inputs and returns what must come of them; `seen` reads the outputs. Operands come in random
// cycles; between them the inputs hold others whose results nobody looks at. The latency is not
// assumed: it is the one number of cycles after which all results of the first operands are right.
#pragma once

#include <verilated.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

namespace bench {

/// Random operands that are often at the ends of their ranges.
class dice {
  public:
    explicit dice(std::uint64_t seed) : state_(seed * 2 + 1) {}

    std::uint64_t bits() {  // splitmix64
        std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return z ^ (z >> 31);
    }

    bool one_in(int n) { return bits() % static_cast<std::uint64_t>(n) == 0; }

    std::int64_t uniform(std::int64_t least, std::int64_t most) {
        const std::uint64_t n = static_cast<std::uint64_t>(most - least) + 1;
        return least + static_cast<std::int64_t>(n == 0 ? bits() : bits() % n);
    }

    /// From 0 to `most`: an end, a power of two or its neighbour, of a random size, or any.
    std::int64_t natural(std::int64_t most) {
        switch (bits() % 8) {
            case 0:
                return one_in(2) ? most : 0;
            case 1:
                return std::clamp<std::int64_t>(
                    (std::int64_t{1} << uniform(0, 62)) + uniform(-1, 1), 0, most);
            case 2:
            case 3:
                return uniform(0, most >> uniform(0, 40));
            default:
                return uniform(0, most);
        }
    }

    /// Of either sign, up to `most` in magnitude.
    std::int32_t within(std::int64_t most) {
        const std::int64_t v = natural(most);
        return static_cast<std::int32_t>(one_in(2) ? v : -v);
    }

    /// Any 32-bit number.
    std::int32_t value() { return one_in(64) ? INT32_MIN : within(INT32_MAX); }

    int count(int least, int most) { return static_cast<int>(uniform(least, most)); }

    /// The mantissa of a scale.
    std::int32_t mantissa() {
        return static_cast<std::int32_t>((1 << 30) + natural((1 << 30) - 1));
    }

  private:
    std::uint64_t state_;
};

template <class Model>
void clock_edge(Model& top) {
    top.clk = 0;
    top.eval();
    top.clk = 1;
    top.eval();
}

struct options {
    int vectors;
    std::uint64_t seed;
};

/// The one distance at which the results of the first operands are right, plus one: a register more
/// is what takes the result. 0 where there is none, or more than one.
template <std::size_t N>
int latency_of(const std::vector<std::array<std::int64_t, N>>& expected,
               const std::vector<std::array<std::int64_t, N>>& seen,
               const std::vector<bool>& checked) {
    constexpr std::size_t MOST = 256, FIRST = 1000;
    int found = 0;
    for (std::size_t apart = 0; apart < MOST; ++apart) {
        bool right = true;
        for (std::size_t t = 0; right && t < FIRST; ++t) {
            right = !checked[t] || seen[t + apart] == expected[t];
        }
        if (right && found != 0) return 0;
        if (right) found = static_cast<int>(apart) + 1;
    }
    return found;
}

template <class Case>
bool run(const char* name, const options& with) {
    constexpr int TAIL = 256;
    VerilatedContext context;
    context.randReset(2);
    context.randSeed(static_cast<int>(with.seed % 1000000) + 1);
    const auto top = std::make_unique<typename Case::model>(&context);
    using outputs = decltype(Case::seen(*top));
    dice draw(with.seed);
    Case pipeline;
    std::vector<outputs> expected, seen;
    std::vector<bool> checked;
    int vectors = 0;
    for (int after = 0; after < TAIL; after += vectors == with.vectors) {
        expected.push_back(pipeline.play(*top, draw));
        checked.push_back(vectors < with.vectors && !draw.one_in(4));
        vectors += checked.back();
        clock_edge(*top);
        seen.push_back(Case::seen(*top));
    }
    const int latency = latency_of(expected, seen, checked);
    int mismatches = 0;
    for (std::size_t t = 0; t < expected.size(); ++t) {
        const bool right = latency > 0 && seen[t + (checked[t] ? latency - 1 : 0)] == expected[t];
        mismatches += checked[t] && !right;
    }
    std::printf("{\"name\": \"%s\", \"latency\": %d, \"vectors\": %d, \"mismatches\": %d}\n", name,
                latency, vectors, mismatches);
    return latency > 0 && mismatches == 0;
}

/// Arguments of a bench: how many operands, and the seed.
inline options read_options(int argc, char** argv) {
    if (argc != 3) {
        std::fprintf(stderr, "usage: %s VECTORS SEED\n", argv[0]);
        std::exit(2);
    }
    const options with = {std::atoi(argv[1]), std::strtoull(argv[2], nullptr, 10)};
    if (with.vectors < 2000) {
        std::fprintf(stderr, "at least 2000 vectors are needed\n");
        std::exit(2);
    }
    return with;
}

/// A wide port of 32-bit words.
template <class Port, class Word>
void drive_word(Port& port, const Word& word) {
    for (int i = 0; i < 16; ++i) port[i] = static_cast<std::uint32_t>(word.lane[i]);
}

inline std::int64_t signed_32(std::uint32_t v) {
    return static_cast<std::int32_t>(v);
}

inline std::int64_t signed_of(std::uint64_t v, int bits) {
    return static_cast<std::int64_t>(v << (64 - bits)) >> (64 - bits);
}

}  // namespace bench

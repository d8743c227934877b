// Loops for test_dependences.py: some of its own, and some of the kernels on shapes that it gives.
#include <cstdint>
#include <stdexcept>

#include "dataflow.hpp"
#include "ecorl_dependence.hpp"
#include "mha_int8/softmax.hpp"
#include "vector_ops/chain.hpp"

using namespace ecorl;

namespace {

constexpr int PLACES = 8;

/// Writes a place in each iteration and reads the one that was written `distance` iterations ago.
int read_back(watched<int> (&ring)[PLACES], int n, int distance) {
    int sum = 0;
    for (int i = 0; i < n; ++i) {
        ECORL_WATCH(ring, LOOP, RAW, 4, i, n, distance);
        ring[i % PLACES] = i;
        if (i >= distance) sum += ring[(i - distance) % PLACES];
    }
    return sum;
}

/// Reads each place in two iterations and writes it in the second, which also reads it.
int read_ahead_raw(watched<int> (&ring)[PLACES]) {
    int sum = 0;
    for (int i = 0; i + 1 < PLACES; ++i) {
        ECORL_WATCH(ring, LOOP, RAW, NEVER, i, PLACES);
        sum += ring[i] + ring[i + 1];
        ring[i] = sum;
    }
    return sum;
}

int read_ahead_all(watched<int> (&ring)[PLACES]) {
    int sum = 0;
    for (int i = 0; i + 1 < PLACES; ++i) {
        ECORL_WATCH(ring, LOOP, ALL, NEVER, i, PLACES);
        sum += ring[i] + ring[i + 1];
        ring[i] = sum;
    }
    return sum;
}

void write_twice(watched<int> (&ring)[PLACES]) {
    for (int i = 0; i < PLACES; ++i) {
        ECORL_WATCH(ring, LOOP, ALL, NEVER, i, PLACES);
        ring[i / 2] = i;
    }
}

/// Each entry meets each place once.
void add_once(watched<int> (&ring)[PLACES]) {
    for (int i = 0; i < PLACES; ++i) {
        ECORL_WATCH(ring, LOOP, ALL, NEVER, i, PLACES);
        ring[i] = ring[i] + i;
    }
}

/// Writes a place in each outer iteration and reads it `distance` outer iterations later, or in the
/// next inner one.
int read_across(watched<int> (&ring)[PLACES], int distance, bool is_inner) {
    int sum = 0;
    for (int i = 0; i < PLACES; ++i) {
        ECORL_WATCH(ring, OUTER, RAW, 2, i, distance);
        for (int j = 0; j < 2; ++j) {
            ECORL_WATCH(ring, INNER, RAW, NEVER, j, i);
            const int before = is_inner ? i : i - distance;
            if (j == 1 && before >= 0) sum += ring[before];
            if (j == 0) ring[i] = i;
        }
    }
    return sum;
}

struct uncounted {
    static void arrange_cycle() {}
};

}  // namespace

extern "C" {

std::int32_t reads_back(std::int32_t n, std::int32_t distance) {
    return dataflow::guarded([&] {
        watched<int> ring[PLACES];
        read_back(ring, n, distance);
    });
}

std::int32_t reads_ahead(std::int32_t is_all) {
    return dataflow::guarded([&] {
        watched<int> ring[PLACES];
        for (int i = 0; i < PLACES; ++i) ring[i] = i;
        is_all != 0 ? read_ahead_all(ring) : read_ahead_raw(ring);
    });
}

std::int32_t writes_twice() {
    return dataflow::guarded([] {
        watched<int> ring[PLACES];
        write_twice(ring);
    });
}

std::int32_t reads_across(std::int32_t distance, std::int32_t is_inner) {
    return dataflow::guarded([&] {
        watched<int> ring[PLACES];
        read_across(ring, distance, is_inner != 0);
    });
}

/// The sum of all places; what stands between the entries is no iteration.
std::int32_t enters_thrice() {
    watched<int> ring[PLACES];
    for (int i = 0; i < PLACES; ++i) ring[i] = 0;
    for (int entry = 0; entry < 3; ++entry) {
        add_once(ring);
        ring[0] = ring[PLACES - 1];
    }
    std::int32_t sum = 0;
    for (int i = 0; i < PLACES; ++i) sum += ring[i];
    return sum;
}

/// Whether a counter that goes up by 2 is refused.
std::int32_t refuses_counter() {
    watched<int> ring[PLACES];
    try {
        for (int i = 0; i < PLACES; i += 2) {
            ECORL_WATCH(ring, LOOP, RAW, NEVER, i, PLACES);
            ring[i] = i;
        }
    } catch (const std::logic_error&) {
        return 1;
    }
    return 0;
}

/// The buffer of products, on `heads` heads of `unit` words, or on rows of `words` words.
std::int32_t arranges(std::int32_t m, std::int32_t words, std::int32_t heads, std::int32_t unit) {
    return dataflow::guarded([&] {
        hls::stream<word_t> in("in"), out("out");
        for (int i = 0; i < m * words; ++i) in.write(all_lanes(i));
        arrange_rows<4096, uncounted>(in, out, {m, words, 1, heads, unit, m, words, 1});
        for (int i = 0; i < m * words; ++i) out.read();
    });
}

/// RoPE's partners, in heads of `unit` words.
std::int32_t pairs(std::int32_t m, std::int32_t heads, std::int32_t unit) {
    return dataflow::guarded([&] {
        const int words = m * heads * unit;
        vector::call_t call = {};
        call.task.m = m;
        call.heads = heads;
        call.unit = unit;
        hls::stream<word_t> in("in"), values("values"), seconds("seconds");
        for (int i = 0; i < words; ++i) in.write(all_lanes(i));
        vector::pair_heads(in, values, seconds, call);
        for (int i = 0; i < words; ++i) {
            const int first = i / unit * unit, half = 2 * (i - first);
            const word_t partner = seconds.read();
            for (int lane = 0; lane < LANES; ++lane) {
                const int other = (half + lane / 8 + unit) % (2 * unit);
                if (partner.lane[lane] != first + other / 2) throw std::logic_error("no partner");
            }
            values.read();
        }
    });
}

/// The softmax's first look at `rows` rows of one page.
std::int32_t looks(std::int32_t rows) {
    return dataflow::guarded([&] {
        using namespace mha;
        const int quads = quads_of(rows);
        hls::stream<turn_t> turns("turns");
        hls::stream<query_row_t> queries("queries");
        hls::stream<beat_t> scales("scales"), value_scales("value_scales");
        hls::stream<sum_word_t> sums("sums");
        hls::stream<word_t> scores("scores");
        hls::stream<quad_look_t> found("found");
        hls::stream<moves_t> moves("moves");
        turn_t turn = {};
        turn.softmax_rows = rows;
        turns.write(turn);
        for (int i = 0; i < rows; ++i) queries.write({{1 << 30, -38}, i});
        for (int i = 0; i < SCALE_BEATS; ++i) scales.write(beat_t{});
        for (int i = 0; i < quads * PAGE_STEPS; ++i) sums.write(sum_word_t{});
        look_at_scores(turns, queries, scales, sums, scores, found, moves, value_scales, 64);
        for (int i = 0; i < SCALE_BEATS / 2; ++i) value_scales.read();
        for (int i = 0; i < quads * PAGE_STEPS; ++i) scores.read();
        for (int i = 0; i < quads; ++i) {
            found.read();
            moves.read();
        }
    });
}
}

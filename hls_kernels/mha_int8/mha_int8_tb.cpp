// Test bench of mha_int8: the kernel against the host's row functions, bit for bit, and
// against attention in double precision, closely.
//
// It lays out pages itself, as include/kv_pages.hpp says. Under ECORL_CSIM it goes on to the C API.
// Exit code 0 means that all agreed.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "../sim/attention_rows.hpp"
#include "../sim/row_lanes.hpp"
#include "mha_int8.hpp"

using namespace ecorl;
using namespace ecorl::mha;

namespace {

enum class fill { RANDOM, ALL_MIN, LARGEST, MANY_ZEROS, TOO_LARGE };

std::mt19937 source(20240229);

int draw(int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(source);
}

struct token_t {
    std::vector<code_t> codes;
    scale_t scale;
};

token_t make_token(dim_t d, fill how, int exponent) {
    token_t token{{}, {draw(1 << 30, INT32_MAX), exponent + draw(-2, 2)}};
    for (dim_t c = 0; c < d; ++c) {
        const int any = draw(-127, 127);
        token.codes.push_back(code_t(how == fill::ALL_MIN   ? -128
                                     : how == fill::LARGEST ? (any < 0 ? -127 : 127)
                                                            : any));
    }
    if (how == fill::MANY_ZEROS && draw(0, 2) > 0) {
        token.scale = {0, 0};
        for (code_t& code : token.codes) code = 0;
    }
    if (how == fill::LARGEST) token.scale.m = INT32_MAX;
    return token;
}

/// Keys and values of one head, and where its pages lie.
struct sequence_t {
    std::vector<token_t> keys, values;
    std::vector<std::int32_t> table;
    dim_t pages() const { return ceil_div(static_cast<int>(keys.size()), PAGE); }
};

sequence_t make_sequence(int n, dim_t d, fill how) {
    sequence_t s;
    for (int i = 0; i < n; ++i) {
        s.keys.push_back(make_token(d, how, -38));
        s.values.push_back(make_token(d, how, -36));
    }
    return s;
}

/// The memory of pages: sequences in scattered places, garbage between.
struct memory_t {
    dim_t d;
    std::vector<beat_t> beats;
    dim_t n_pages = 0;

    memory_t(dim_t head, dim_t pages) : d(head), beats(std::size_t(pages) * page_beats(head)) {
        for (beat_t& beat : beats) {
            for (code_t& code : beat.value) code = code_t(draw(-128, 127));
        }
    }

    void put(sequence_t& s) {
        for (dim_t b = 0; b < s.pages(); ++b) s.table.push_back(n_pages + b);
        std::shuffle(s.table.begin(), s.table.end(), source);
        n_pages += s.pages();
        for (int t = 0; t < s.pages() * PAGE; ++t) put_token(s, t);
    }

    void put_token(const sequence_t& s, int t) {
        beat_t* const page = beats.data() + std::int64_t{s.table[t / PAGE]} * page_beats(d);
        const int at = t % PAGE;
        const bool is_there = t < static_cast<int>(s.keys.size());
        for (dim_t c = 0; c < d; ++c) {
            page[at / 8 * (d / 8) + c / 8].value[c / 4 % 2 * 32 + at % 8 * 4 + c % 4] =
                is_there ? s.keys[t].codes[c] : code_t(0);
            page[d + c / 8 * 8 + at / 8].value[at / 4 % 2 * 32 + c % 8 * 4 + at % 4] =
                is_there ? s.values[t].codes[c] : code_t(0);
        }
        if (!is_there) return;  // scales of no token are never read
        const scale_t key = s.keys[t].scale, value = s.values[t].scale;
        const std::int32_t rows[] = {key.m, key.e, value.m >> 16, value.e};
        for (int row = 0; row < PAGE_ROWS; ++row) {
            beat_t& beat = page[2 * d + 4 * row + at / 16];
            for (int b = 0; b < 4; ++b) {
                beat.value[at % 16 * 4 + b] =
                    code_t(static_cast<std::int8_t>(rows[row] >> (8 * b)));
            }
        }
    }
};

struct asked_t {
    const sequence_t* sequence;
    token_t query;
    std::int32_t position;
};

struct answer_t {
    std::vector<std::int32_t> context;
    head_result_t result;
};

std::int64_t dot(const std::vector<code_t>& a, const std::vector<code_t>& b) {
    std::int64_t sum = 0;
    for (std::size_t c = 0; c < a.size(); ++c) {
        sum += static_cast<int>(a[c]) * static_cast<int>(b[c]);
    }
    return sum;
}

/// Attention of one query by the row functions on plain arrays.
answer_t by_rows(const asked_t& asked, dim_t d, scale_t score) {
    const sequence_t& s = *asked.sequence;
    const scale_t scale = times(asked.query.scale, score);
    std::vector<value_t> context(d, value_t(0)), upper(d, value_t(0)), lower(d, value_t(0));
    softmax_t state = NOTHING_SEEN;
    value_t mark = 0;
    for (int first = 0; first <= asked.position; first += PAGE) {
        const int live = std::min(PAGE, asked.position - first + 1);
        value_t acc[PAGE], rows[4][PAGE];
        code_t codes[2][PAGE];
        for (int j = 0; j < PAGE; ++j) {
            const bool is_there = j < live;
            const scale_t key = is_there ? s.keys[first + j].scale : scale_t{0, 0};
            const scale_t value = is_there ? s.values[first + j].scale : scale_t{0, 0};
            rows[0][j] = key.m;
            rows[1][j] = key.e;
            rows[2][j] = value.m >> 16;
            rows[3][j] = value.e;
            acc[j] =
                is_there
                    ? static_cast<std::int32_t>(dot(asked.query.codes, s.keys[first + j].codes))
                    : 0;
        }
        const page_scales_t by = {rows[0], rows[1], rows[2], rows[3]};
        const int down = attention_rows<one_lane>::softmax(acc, by, scale, live, state, codes[0],
                                                           codes[1], mark);
        for (dim_t c = 0; c < d; ++c) {
            std::int32_t sums[2] = {0, 0};
            for (int j = 0; j < live; ++j) {
                const int value = static_cast<int>(s.values[first + j].codes[c]);
                sums[0] += static_cast<int>(codes[0][j]) * value;
                sums[1] += static_cast<int>(codes[1][j]) * value;
            }
            upper[c] = sums[0];
            lower[c] = sums[1];
        }
        attention_rows<one_lane>::accumulate(context.data(), upper.data(), lower.data(), down, d);
    }
    answer_t answer{{}, {0, mark != 0 ? 1 : 0}};
    attention_rows<one_lane>::finish(context.data(), state, answer.result.exponent, d);
    for (const value_t& v : context) answer.context.push_back(static_cast<std::int32_t>(v));
    return answer;
}

double real(scale_t s) {
    return std::ldexp(static_cast<double>(s.m), s.e);
}

/// Whether a context is close to that of attention in double precision.
bool is_close(const asked_t& asked, const answer_t& got, dim_t d, scale_t score) {
    const sequence_t& s = *asked.sequence;
    std::vector<double> z, wanted(d, 0.0);
    double top = -1e300, sum = 0.0, peak = 0.0;
    for (int t = 0; t <= asked.position; ++t) {
        z.push_back(dot(asked.query.codes, s.keys[t].codes) * real(asked.query.scale) *
                    real(score) * real(s.keys[t].scale));
        top = std::max(top, z.back());
        peak = std::max(peak, 127 * real(s.values[t].scale));
    }
    for (int t = 0; t <= asked.position; ++t) {
        const double weight = std::exp2(z[t] - top);
        sum += weight;
        for (dim_t c = 0; c < d; ++c) {
            wanted[c] += weight * static_cast<int>(s.values[t].codes[c]) * real(s.values[t].scale);
        }
    }
    for (dim_t c = 0; c < d; ++c) {
        const double value = std::ldexp(static_cast<double>(got.context[c]), got.result.exponent);
        if (std::fabs(value - wanted[c] / sum) > 5e-3 * peak) return false;
    }
    return true;
}

/// What the kernel makes of rows, `cuts` being the first row of each block and the end.
std::vector<answer_t> by_kernel(const memory_t& memory, const std::vector<asked_t>& asked,
                                const std::vector<std::int32_t>& cuts, scale_t score) {
    const dim_t d = memory.d, parts = token_beats(d), width = words_of(d);
    const std::size_t m = asked.size();
    std::vector<beat_t> queries(m * parts);
    std::vector<word_t> context(m * width);
    std::vector<head_row_t> rows;
    std::vector<head_result_t> results(m);
    for (std::size_t r = 0; r < m; ++r) {
        for (dim_t c = 0; c < parts * BEAT; ++c) {
            queries[r * parts + c / BEAT].value[c % BEAT] =
                c < d ? asked[r].query.codes[c] : code_t(0);
        }
        rows.push_back({asked[r].query.scale.m, asked[r].query.scale.e, asked[r].position, 0});
    }
    std::vector<query_block_t> blocks;
    std::vector<std::int32_t> table;
    for (std::size_t b = 0; b + 1 < cuts.size(); ++b) {
        const std::vector<std::int32_t>& own = asked[cuts[b]].sequence->table;
        std::int32_t last = 0;
        for (std::int32_t r = cuts[b]; r < cuts[b + 1]; ++r)
            last = std::max(last, asked[r].position);
        blocks.push_back({cuts[b], cuts[b + 1] - cuts[b], static_cast<std::int32_t>(table.size()),
                          last / PAGE + 1});
        table.insert(table.end(), own.begin(), own.end());
    }
    mha_int8_krnl(blocks.data(), rows.data(), queries.data(), table.data(), memory.beats.data(),
                  context.data(), results.data(), static_cast<std::int32_t>(blocks.size()), d,
                  score.m, score.e);
    std::vector<answer_t> answers;
    for (std::size_t r = 0; r < m; ++r) {
        answers.push_back({{}, results[r]});
        for (dim_t c = 0; c < d; ++c) {
            const value_t value = context[r * width + c / LANES].lane[c % LANES];
            answers[r].context.push_back(static_cast<std::int32_t>(value));
        }
    }
    return answers;
}

bool same(const answer_t& a, const answer_t& b) {
    return a.context == b.context && a.result.exponent == b.result.exponent &&
           a.result.mark == b.result.mark;
}

int runs = 0;

int compare(const std::vector<asked_t>& asked, const std::vector<answer_t>& got, dim_t d,
            scale_t score, bool is_gentle) {
    int wrong = 0;
    for (std::size_t r = 0; r < asked.size(); ++r) {
        const bool is_same = same(got[r], by_rows(asked[r], d, score));
        const bool is_near = !is_gentle || is_close(asked[r], got[r], d, score);
        if ((!is_same || !is_near) && wrong++ == 0) {
            std::printf("FAIL d = %d, row %d of %d at position %d: %s\n", static_cast<int>(d),
                        static_cast<int>(r), static_cast<int>(asked.size()), asked[r].position,
                        is_same ? "far from attention in doubles" : "other bits than by rows");
        }
    }
    ++runs;
    return wrong;
}

scale_t score_of(dim_t d) {
    int exponent = 0;
    const double mantissa = std::frexp(1.4426950408889634 / std::sqrt(d), &exponent);
    return {static_cast<std::int32_t>(std::ldexp(mantissa, 31)), exponent - 31};
}

/// `heads` queries at each of the last `m` positions of two sequences of n and n + 5 tokens, in
/// one call; with it blocks that begin and end anywhere.
int check(int n, dim_t d, int m, int heads, fill how) {
    sequence_t sequences[] = {make_sequence(n, d, how), make_sequence(n + 5, d, how)};
    memory_t memory(d, sequences[0].pages() + sequences[1].pages());
    std::vector<asked_t> asked;
    std::vector<std::int32_t> cuts = {0};
    for (sequence_t& s : sequences) {
        memory.put(s);
        const int length = static_cast<int>(s.keys.size()), first = std::max(0, length - m);
        for (int h = 0; h < heads; ++h) {
            for (int t = first; t < length; ++t) {
                asked.push_back({&s, make_token(d, how, how == fill::TOO_LARGE ? -8 : -38), t});
            }
        }
        const auto end = static_cast<std::int32_t>(asked.size());
        while (cuts.back() < end) {
            const int size = draw(0, 1) == 0 ? QUERY_ROWS : draw(1, QUERY_ROWS);
            cuts.push_back(std::min(cuts.back() + size, end));
        }
    }
    const scale_t score = score_of(d);
    const bool is_gentle = how == fill::RANDOM || how == fill::MANY_ZEROS;
    const std::vector<answer_t> got = by_kernel(memory, asked, cuts, score);
    const bool is_marked =
        std::any_of(got.begin(), got.end(), [](const answer_t& a) { return a.result.mark != 0; });
    if (is_marked != (how == fill::TOO_LARGE)) {
        std::printf("FAIL d = %d: marks\n", static_cast<int>(d));
        return 1;
    }
    return compare(asked, got, d, score, is_gentle);
}

#ifdef ECORL_CSIM
/// The C API takes any head size: row-major arrays of exact sizes, so that under AddressSanitizer
/// a step beyond an end is an error.
int check_c_api(int n, dim_t head_dim) {
    const dim_t d = ceil_div(head_dim, HEAD_UNIT) * HEAD_UNIT;
    sequence_t s = make_sequence(n, d, fill::RANDOM);
    for (std::vector<token_t>* tokens : {&s.keys, &s.values}) {
        for (token_t& token : *tokens)
            std::fill(token.codes.begin() + head_dim, token.codes.end(), 0);
    }
    memory_t memory(d, s.pages());
    memory.put(s);
    std::vector<asked_t> asked;
    std::vector<std::int8_t> queries;
    std::vector<std::int32_t> scales, positions;
    for (int t = 0; t < n; ++t) {
        asked.push_back({&s, make_token(d, fill::RANDOM, -38), t});
        std::vector<code_t>& codes = asked.back().query.codes;
        std::fill(codes.begin() + head_dim, codes.end(), 0);
        for (dim_t c = 0; c < head_dim; ++c) queries.push_back(static_cast<std::int8_t>(codes[c]));
        scales.push_back(asked.back().query.scale.m);
        scales.push_back(asked.back().query.scale.e);
        positions.push_back(t);
    }
    const scale_t score = score_of(head_dim);
    const std::size_t rows = asked.size();
    std::vector<std::int32_t> context(rows * head_dim), exponents(rows), marks(rows);
    mha_int8(queries.data(), scales.data(), positions.data(), n, head_dim, score.m, score.e,
             memory.beats.data(), s.table.data(), context.data(), exponents.data(), marks.data());
    std::vector<answer_t> got;
    for (std::size_t r = 0; r < rows; ++r) {
        got.push_back({{}, {exponents[r], marks[r]}});
        for (dim_t c = 0; c < d; ++c) {
            got[r].context.push_back(c < head_dim ? context[r * head_dim + c] : 0);
        }
    }
    return compare(asked, got, d, score, true);
}
#endif

}  // namespace

int main() {
    int wrong = 0;
    const fill fills[] = {fill::RANDOM, fill::ALL_MIN, fill::LARGEST, fill::MANY_ZEROS,
                          fill::TOO_LARGE};
    for (dim_t d = 32; d <= MAX_HEAD; d += HEAD_UNIT) {
        for (const int n : {1, 63, 64, 130}) wrong += check(n, d, 7, 1, fill::RANDOM);
    }
    for (const fill how : fills) {
        wrong += check(70, 32, 70, 1, how);
        wrong += check(70, 16, 3, 4, how);
    }
    wrong += check(1100, 32, 2, 1, fill::RANDOM);
#ifdef ECORL_CSIM
    for (const dim_t d : {2, 20, 80, 128}) wrong += check_c_api(67, d);
#endif
    std::printf("%s mha_int8: %d problems, %d wrong rows\n", wrong == 0 ? "PASS" : "FAIL", runs,
                wrong);
    return wrong == 0 ? 0 : 1;
}

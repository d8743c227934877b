// Test bench of vector_ops: the kernel against the row functions on plain arrays, and against
// sums in 64 bits where these are easy to write. Exit code 0 means that all agreed.
#include "bench.hpp"

#include <algorithm>
#include <cstring>

#include "../sim/row_functions.hpp"

using namespace bench;
namespace v = ecorl::vector;

namespace {

using values = std::vector<value_t>;
using codes = std::vector<code_t>;
using direct = ecorl::row_functions<ecorl::one_lane>;

std::int32_t mark_of(value_t clip) {
    return clip != 0 ? 1 : 0;
}

int check_embed(std::int32_t m, std::int32_t n, fill how) {
    constexpr std::int32_t VOCABULARY = 5;
    card c(v::EMBED, m, n);
    c.task.fraction_bits = FRACTION_BITS;
    const std::int32_t words = 1 + ceil_div(n, TABLE_LANES);
    c.table.resize(VOCABULARY * words);
    for (table_word_t& word : c.table) {
        for (auto& lane : word.lane) lane = how == fill::LARGEST ? 32767 : draw(-32767, 32767);
    }
    // Two tokens are too large for the residual stream: one is clipped, one is lost altogether.
    constexpr int EXPONENTS[VOCABULARY] = {-14, -18, 1, 3, -31};
    for (int t = 0; t < VOCABULARY; ++t) c.table[t * words].lane[0] = EXPONENTS[t];
    for (row_t& row : c.rows) row.token = draw(0, VOCABULARY - 1);
    c.x = row_order(values(std::size_t(m) * n, value_t(0)), n);
    c.run();
    tally t{"EMBED", m, n};
    for (std::int32_t r = 0; r < m; ++r) {
        const table_word_t* const entry = c.table.data() + c.rows[r].token * words;
        const int exponent = static_cast<int>(entry[0].lane[0]);
        const int right = -(exponent + FRACTION_BITS);
        bool clipped = false;
        for (std::int32_t j = 0; j < n; ++j) {
            const auto code =
                static_cast<std::int64_t>(entry[1 + j / TABLE_LANES].lane[j % TABLE_LANES]);
            std::int64_t want =
                right > 0 ? (code + (std::int64_t{1} << right >> 1)) >> right : code << -right;
            if (right < 0) {
                const std::int64_t most_code = -right > 16 ? 0 : ((1 << 30) - 1) >> -right;
                const std::int64_t kept = code > most_code    ? most_code
                                          : code < -most_code ? -most_code
                                                              : code;
                clipped = clipped || kept != code;
                want = kept << -right;
            }
            t.same("x", r, j, static_cast<std::int64_t>(value_at(c.x, r, n, j)), want);
        }
        t.same("mark", r, 0, c.rows[r].mark, clipped ? 1 : 0);
    }
    return t.wrong;
}

int check_norm(std::int32_t m, std::int32_t n, fill how) {
    card c(v::NORM, m, n);
    const scale_t eps = {1099511628 & INT32_MAX, -47};
    c.task.fraction_bits = FRACTION_BITS;
    c.task.exponent = -30;
    c.task.eps_m = eps.m;
    c.task.eps_e = eps.e;
    values x = draw_values(std::int64_t{m} * n, how);
    for (std::int32_t j = 0; j < n; ++j) x[std::size_t(m / 2) * n + j] = 0;  // a row of zeros
    const values weight = draw_values(n, fill::LARGEST);
    c.x = row_order(x, n);
    c.side = row_order(weight, n);
    c.codes.resize(std::size_t(ceil_div(m, BLOCK_ROWS)) * ceil_div(n, STEP_CODES));
    c.run();
    tally t{"NORM", m, n};
    values scratch(n, value_t(0));
    codes want(n, code_t(0));
    for (std::int32_t r = 0; r < m; ++r) {
        const scale_t s = direct::rmsnorm(x.data() + std::size_t(r) * n, weight.data(), -30, eps,
                                          FRACTION_BITS, scratch.data(), want.data(), n);
        t.same_scale(r, 0, c.scale(r), s);
        for (std::int32_t j = 0; j < n; ++j)
            t.same("code", r, j, code_at(c.codes.data(), r, n, j), want[j]);
    }
    t.same("padding", m, n, padding(c.codes.data(), m, n), 0);
    return t.wrong;
}

int check_residual(std::int32_t m, std::int32_t n, fill how, std::int32_t parts, bool has_bias) {
    card c(v::RESIDUAL, m, n);
    c.task.parts = parts;
    c.task.fraction_bits = FRACTION_BITS;
    // With the largest values the sum leaves the residual stream's format.
    c.task.exponent = how == fill::LARGEST ? 10 : -2;
    const channels by(n, how);
    const values sums = draw_sums(parts, m, n, how), acc = whole(sums, parts);
    values x = draw_values(std::int64_t{m} * n, how);
    c.acc = c_order(sums, parts, m, n);
    c.x = row_order(x, n);
    add_channels(c.side, by, 0, n, has_bias);
    c.run();
    tally t{"RESIDUAL", m, n};
    for (std::int32_t r = 0; r < m; ++r) {
        value_t mark = 0;
        const std::size_t at = std::size_t(r) * n;
        direct::residual(acc.data() + at, by.at(0), c.task.exponent, c.scale(r), FRACTION_BITS,
                         has_bias ? by.bias.data() : nullptr, x.data() + at, n, mark);
        for (std::int32_t j = 0; j < n; ++j) t.same("x", r, j, value_at(c.x, r, n, j), x[at + j]);
        t.same("mark", r, 0, c.rows[r].mark, mark_of(mark));
    }
    return t.wrong;
}

int check_fixed(std::int32_t m, std::int32_t n, fill how, bool has_bias) {
    card c(v::FIXED, m, n);
    c.task.fraction_bits = SCORE_BITS;
    c.task.exponent = 4;
    const channels by(n, how);
    const values acc = draw_sums(1, m, n, how);
    c.acc = c_order(acc, 1, m, n);
    add_channels(c.side, by, 0, n, has_bias);
    c.x = row_order(values(acc.size(), value_t(0)), n);
    c.run();
    tally t{"FIXED", m, n};
    values want(n, value_t(0));
    for (std::int32_t r = 0; r < m; ++r) {
        value_t mark = 0;
        direct::fixed(acc.data() + std::size_t(r) * n, by.at(0), c.task.exponent, c.scale(r),
                      SCORE_BITS, has_bias ? by.bias.data() : nullptr, want.data(), n, mark);
        for (std::int32_t j = 0; j < n; ++j) t.same("value", r, j, value_at(c.x, r, n, j), want[j]);
        t.same("mark", r, 0, c.rows[r].mark, mark_of(mark));
    }
    return t.wrong;
}

int check_head(std::int32_t m, std::int32_t heads, std::int32_t d, fill how, bool has_bias) {
    const std::int32_t n = heads * d;
    const channels by(n, how);
    const values acc = draw_sums(1, m, n, how);
    card c = head_card(m, heads, d, acc, by, has_bias);
    c.run();
    tally t{"HEAD", m, n};
    values scratch(2 * d, value_t(0)), marks(m, value_t(0));
    codes want(d, code_t(0));
    for (std::int32_t i = 0; i < heads * c.task.stride; ++i) {
        const std::int32_t r = i % c.task.stride, h = i / c.task.stride;
        if (r >= m) {
            check_unused(t, c, h, r);
            continue;
        }
        const std::int32_t position = c.rows[r].position;
        const auto* const angles = c.table[position * v::ROPE_WORDS].lane;
        const scale_t s =
            direct::head(acc.data() + std::size_t(r) * n + h * d, by.at(h * d), head_exponent(h),
                         c.scale(r), FRACTION_BITS, has_bias ? by.bias.data() + h * d : nullptr,
                         h < c.task.rotated ? angles : nullptr, angles + v::MAX_HEAD / 2,
                         scratch.data(), want.data(), d, marks[r]);
        const value_t* const record = c.scales[i / 4].lane + i % 4 * 4;
        const std::int32_t fields[] = {s.m, s.e, position, 0};
        for (int k = 0; k < 4; ++k)
            t.same("scale", r, h, static_cast<std::int32_t>(record[k]), fields[k]);
        for (std::int32_t j = 0; j < BEAT * token_beats(d); ++j)
            t.same("code", r, j, head_code(c.codes, i, d, j),
                   j < d ? static_cast<int>(want[j]) : 0);
    }
    for (std::int32_t r = 0; r < m; ++r) t.same("mark", r, 0, c.rows[r].mark, mark_of(marks[r]));
    return t.wrong;
}

/// What the row functions make of a row of gate and up: codes, their scale and the mark.
scale_t gate_directly(const value_t* acc, const channels& by, const v::task_t& task, std::int32_t n,
                      scale_t s, codes& out, std::int32_t& mark) {
    values gate(n, value_t(0)), up(n, value_t(0));
    const value_t peak_gate = direct::dequantise(acc, by.at(0), gate.data(), n);
    const value_t peak_up = direct::dequantise(acc + n, by.at(n), up.data(), n);
    out.assign(n, code_t(0));
    mark = 0;
    if (peak_gate == 0 || peak_up == 0) return {0, 0};
    const gate_t gated = make_gate(peak_gate, peak_up, task.exponent, s);
    value_t clip = 0;
    const value_t peak = direct::gate(gate.data(), up.data(), gated, n, clip);
    mark = mark_of(clip);
    const int exponent = gated_exponent(gated, task.exponent, task.exponent_up);
    const quantiser_t q = make_quantiser(peak, exponent);
    direct::codes(gate.data(), q, out.data(), n);
    return times(times(q.scale, s), s);
}

int check_gate(std::int32_t m, std::int32_t n, fill how, std::int32_t n_cards) {
    const std::int32_t share = n / n_cards;
    const std::int64_t blocks = ceil_div(m, BLOCK_ROWS);
    const channels by(2 * n, how);
    values acc = draw_sums(1, m, 2 * n, how);
    for (std::int32_t j = 0; j < n; ++j) acc[std::size_t(m / 2) * 2 * n + j] = 0;  // gates of zeros
    std::vector<card> cards(n_cards, card(v::GATE, m, share));
    const std::vector<row_t> rows = cards[0].rows;
    for (std::int32_t i = 0; i < n_cards; ++i) {
        card& c = cards[i];
        c.task.exponent = how == fill::LARGEST ? 34 : 4;  // 34: no gate fits its units
        c.task.exponent_up = 5;
        c.acc = c_order(columns_of(acc, n, i * share, share), 1, m, 2 * share);
        add_channels(c.side, by, i * share, share, false);
        add_channels(c.side, by, n + i * share, share, false);
        c.codes.resize(blocks * ceil_div(share, STEP_CODES));
    }
    run_stages(cards, draw_calls(n_cards));
    tally t{"GATE", m, n};
    codes want;
    std::int32_t mark = 0;
    for (std::int32_t r = 0; r < m; ++r) {
        const scale_t s = gate_directly(acc.data() + std::size_t(r) * 2 * n, by, cards[0].task, n,
                                        {rows[r].scale_m, rows[r].scale_e}, want, mark);
        for (const card& c : cards) {
            t.same_scale(r, 0, c.scale(r), s);
            t.same("mark", r, 0, c.rows[r].mark, mark);
        }
        for (std::int32_t j = 0; j < n; ++j) {
            const std::int32_t k = j % share, first = k / v::MAX_SLICE * v::MAX_SLICE;
            const code_word_t* const slice =
                cards[j / share].codes.data() + first / STEP_CODES * blocks;
            const std::int32_t width = least(v::MAX_SLICE, share - first);
            t.same("code", r, j, code_at(slice, r, width, k - first), want[j]);
        }
    }
    return t.wrong;
}

/// A row of attention's outputs: aligned to the largest exponent, then codes and their scale.
scale_t context_directly(value_t* row, const std::vector<std::int32_t>& exponents, std::int32_t d,
                         codes& out) {
    std::int32_t exponent = NO_EXPONENT;
    value_t peak = 0;
    for (const std::int32_t e : exponents) exponent = most(exponent, e);
    for (std::size_t h = 0; h < exponents.size(); ++h) {
        const std::int32_t right = least(exponent - exponents[h], 31);
        peak = larger(peak, direct::align(row + h * d, right, d));
    }
    const quantiser_t q = make_quantiser(peak, exponent);
    direct::codes(row, q, out.data(), static_cast<dim_t>(out.size()));
    return q.scale;
}

int check_context(std::int32_t m, std::int32_t heads, std::int32_t d, fill how,
                  std::int32_t n_cards, const std::vector<std::int32_t>& first) {
    const std::int32_t n = heads * d, share = heads / n_cards;
    const std::int64_t blocks = ceil_div(m, BLOCK_ROWS);
    values acc = draw_values(std::int64_t{m} * n, how);
    std::vector<std::int32_t> exponents, marked;
    for (std::int32_t i = 0; i < m * heads; ++i) {
        const bool is_zero = draw(0, 7) == 0;
        exponents.push_back(is_zero ? NO_EXPONENT : draw(-60, -20));
        marked.push_back(draw(0, 15) == 0);
        for (std::int32_t j = 0; is_zero && j < d; ++j) acc[std::size_t(i) * d + j] = 0;
    }
    std::vector<card> cards(n_cards, card(v::CONTEXT, m, share * d));
    for (std::int32_t i = 0; i < n_cards; ++i) {
        card& c = cards[i];
        c.task.head = d;
        c.task.stride = draw_stride(m);
        c.acc = head_order(columns_of(acc, n, i * share * d, share * d), m, d, c.task.stride);
        c.side.assign(share * c.task.stride / 8, empty_word());
        for (std::int32_t r = 0; r < m; ++r) {
            for (std::int32_t h = 0; h < share; ++h) {
                const std::int32_t at = r * heads + i * share + h;
                put_result(c.side, h * c.task.stride + r, exponents[at], marked[at]);
            }
        }
        c.codes.resize(blocks * ceil_div(share * d, STEP_CODES));
    }
    run_stages(cards, first);
    tally t{"CONTEXT", m, n};
    codes want(n, code_t(0));
    for (std::int32_t r = 0; r < m; ++r) {
        const auto first = exponents.begin() + std::size_t(r) * heads;
        const scale_t s =
            context_directly(acc.data() + std::size_t(r) * n, {first, first + heads}, d, want);
        const auto own = marked.begin() + std::size_t(r) * heads;
        for (const card& c : cards) {
            t.same_scale(r, 0, c.scale(r), s);
            t.same("mark", r, 0, c.rows[r].mark, *std::max_element(own, own + heads));
        }
        for (std::int32_t j = 0; j < n; ++j) {
            const code_word_t* const a = cards[j / (share * d)].codes.data();
            t.same("code", r, j, code_at(a, r, share * d, j % (share * d)), want[j]);
        }
    }
    return t.wrong;
}

/// Every operation on one shape.
int check_all(std::int32_t m, std::int32_t n, fill how) {
    const std::int32_t inner = ceil_div(n, 2 * LANES) * 2 * LANES;
    int wrong = check_embed(m, n, how) + check_norm(m, n, how);
    for (const bool has_bias : {false, true}) {
        wrong += check_residual(m, n, how, has_bias ? 3 : 1, has_bias);
        wrong += check_fixed(m, least(n, 64), how, has_bias);
        wrong += check_head(m, 3, 16, how, has_bias);
        wrong += check_head(m, 4, 48, how, has_bias);  // halves of 24 values
        wrong += check_head(m, 2, 96, how, has_bias);
    }
    wrong += check_gate(m, inner, how, 1) + check_gate(m, inner, how, 2);
    wrong += check_context(m, 4, 32, how, 1, draw_calls(1)) +
             check_context(m, 4, 32, how, 2, draw_calls(2));
    return wrong;
}

/// The largest of everything, and heads of every kind of half.
int check_maxima() {
    const fill how = fill::RANDOM;
    int wrong = check_embed(2, v::MAX_COLUMNS, how) + check_norm(1, v::MAX_COLUMNS, how);
    wrong += check_residual(2, v::MAX_COLUMNS, how, 2, true);
    wrong += check_head(2, 80, v::MAX_HEAD, how, true) + check_head(17, 66, 16, how, false);
    wrong += check_gate(1, v::MAX_INNER, how, 1);
    wrong += check_gate(17, v::MAX_SLICE + 16, how, 1);
    for (const std::int32_t d : {16, 32, 48, 64, 80, 96, 112, 128}) {
        wrong += check_head(1, 1, d, how, false) + check_head(16, 2, d, how, true);
        wrong += check_head(35, 7, d, how, true) + check_context(35, 5, d, how, 1, draw_calls(1));
    }
    wrong += check_context(2, 64, v::MAX_HEAD, how, 1, draw_calls(1));
    wrong += check_context(17, v::HEADER_HEADS + 2, 16, how, 2, draw_calls(2));
    return wrong;
}

/// The rows of a decoder with `inner` channels of gates, and a reward of each.
int check_model(std::int32_t m, std::int32_t heads, std::int32_t kv_heads, std::int32_t d,
                std::int32_t inner) {
    const fill how = fill::RANDOM;
    const std::int32_t hidden = heads * d;
    int wrong = check_embed(m, hidden, how) + check_norm(m, hidden, how);
    wrong += check_residual(m, hidden, how, 1, false) + check_fixed(m, 1, how, false);
    wrong += check_head(m, heads + 2 * kv_heads, d, how, false) + check_gate(m, inner, how, 1);
    return wrong + check_context(m, heads, d, how, 1, draw_calls(1));
}

#ifdef ECORL_CSIM
/// The counters against closed forms: one RESIDUAL of two parts.
int check_counters() {
    constexpr std::int64_t M = 35, N = 40, WORDS = 3, PARTS = 2;
    vector_ops_counters_reset();
    int wrong = check_residual(M, N, fill::RANDOM, PARTS, true);
    std::int64_t counts[v::N_COUNTERS];
    vector_ops_counters(counts);
    const std::int64_t want[v::N_COUNTERS] = {
        1, M, PARTS * M * WORDS,
        // two whole blocks, each in where the one before leaves; 3 rows in, then out
        3 * 16 * WORDS + 2 * 3 * WORDS, 3 * WORDS, 2 * M, M * WORDS, 0, M, 0, 0, 0, 0,
        64 * (1 + M + PARTS * M * WORDS + M * WORDS + 3 * WORDS), 64 * (M + M * WORDS)};
    tally t{"counters", M, N};
    for (int i = 0; i < v::N_COUNTERS; ++i) t.same("counter", 0, i, counts[i], want[i]);
    vector_ops_counters_reset();
    wrong += check_context(M, 2, 32, fill::RANDOM, 1, {0});
    vector_ops_counters(counts);  // all three stages read the products once
    t.same("loads of CONTEXT", 0, 0, counts[v::LOAD_CYCLES], M * 4);
    t.same("openings of CONTEXT", 0, 0, counts[v::OPEN_CYCLES], M + 2 * M);
    t.same("steps of CONTEXT's codes", 0, 0, counts[v::CODE_CYCLES],
           std::int64_t{64 + 64 + 16 + 16});
    t.same("codes of CONTEXT", 0, 0, counts[v::STORE_CYCLES], std::int64_t{3 * 16});
    return wrong + t.wrong;
}
#endif

}  // namespace

int main() {
    const std::int32_t shapes[][2] = {{1, 1}, {1, 64}, {2, 31}, {16, 48}, {17, 70}, {35, 33}};
    int wrong = 0;
    int runs = 0;
    for (const auto& s : shapes) {
        for (const fill how : {fill::RANDOM, fill::LARGEST, fill::ZERO}) {
            wrong += check_all(s[0], s[1], how);
            ++runs;
        }
    }
    wrong += check_maxima();
    for (const std::int32_t m : {1, 17, 18, 19}) {
        wrong += check_model(m, 4, 2, 16, 176);
        wrong += check_model(m, 9, 3, 64, 1536);  // SmolLM-135M
    }
    wrong += check_model(1, 32, 32, 128, 11008);  // Llama-2-7B
#ifdef ECORL_CSIM
    wrong += check_counters();
#endif
    std::printf("%s vector_ops: %d shapes and the maxima, %d wrong results\n",
                wrong == 0 ? "PASS" : "FAIL", runs, wrong);
    return wrong == 0 ? 0 : 1;
}

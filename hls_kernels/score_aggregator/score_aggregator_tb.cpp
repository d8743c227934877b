// Test bench of score_aggregator: the kernel against the row functions on plain arrays, and gated
// rewards against sums of their own. Exit code 0 means that all agreed.
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>

#include "score_aggregator.hpp"

#include "../sim/score_rows.hpp"

using namespace ecorl;
namespace s = ecorl::score;

namespace {

enum class fill { RANDOM, LARGEST, ZERO };

using values = std::vector<value_t>;
using direct = score_rows<one_lane>;

constexpr int INPUT_SHIFT = 6;  // of sums over k = 1,024
constexpr int LARGEST_SUM = 1024 * 127 * 127;
constexpr scale_t FACTOR = {1549082005, -30};  // temperature 1

std::mt19937 source(20240229);

int draw(int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(source);
}

/// Rows of a product and the constants of its channels.
struct product_t {
    std::int32_t m, n, parts, exponent;
    values sums;            ///< [m][n] whole sums
    values mantissa, bias;  ///< bias: empty where there is none
    std::vector<std::int32_t> shift;
    std::vector<word_t> acc, side;

    product_t(std::int32_t rows, std::int32_t columns, std::int32_t n_parts, fill how);
    channels_t channels() const { return {mantissa.data(), shift.data(), INPUT_SHIFT}; }
};

product_t::product_t(std::int32_t rows, std::int32_t columns, std::int32_t n_parts, fill how)
    : m(rows), n(columns), parts(n_parts), exponent(how == fill::LARGEST ? 12 : 5) {
    const std::int64_t groups = words_of(n);
    word_t empty;
    for (value_t& lane : empty.lane) lane = 0;
    acc.assign(parts * groups * m, empty);
    side.assign(groups * CHANNEL_WORDS, empty);
    for (std::int32_t j = 0; j < n; ++j) {
        mantissa.push_back(how == fill::LARGEST ? INT32_MAX
                           : draw(0, 15)        ? draw(1 << 30, INT32_MAX)
                                                : 0);
        shift.push_back(how == fill::LARGEST ? 0 : draw(0, draw(0, 3) ? 6 : 31));
        side[j / LANES * CHANNEL_WORDS].lane[j % LANES] = mantissa[j];
        side[j / LANES * CHANNEL_WORDS + 1].lane[j % LANES] = shift[j];
    }
    for (std::int64_t i = 0; i < std::int64_t{m} * n; ++i) {
        int sum = how == fill::ZERO ? 0 : draw(-LARGEST_SUM, LARGEST_SUM);
        if (how == fill::LARGEST) sum = draw(0, 1) ? LARGEST_SUM : -LARGEST_SUM;
        sums.push_back(sum);
        for (std::int64_t p = parts - 1; p >= 0; --p) {
            const int part = p > 0 ? draw(-LARGEST_SUM, LARGEST_SUM) : sum;
            const std::int64_t at = p * groups * m + product_at(i / n, i % n / LANES, m, groups);
            acc[at].lane[i % n % LANES] = part;
            sum -= part;
        }
    }
}

/// Biases of gates: small ones, or those at the end of their format.
void add_bias(product_t& p, fill how) {
    const int most = how == fill::RANDOM ? 1 << 22 : (1 << VALUE_LIMIT) - 1;
    for (std::int32_t j = 0; j < p.n; ++j) {
        p.bias.push_back(how == fill::LARGEST && draw(0, 3) ? (draw(0, 1) ? most : -most)
                                                            : draw(-most, most));
        p.side[j / LANES * CHANNEL_WORDS + 2].lane[j % LANES] = p.bias[j];
    }
}

std::vector<row_t> draw_rows(std::int32_t m, fill how) {
    std::vector<row_t> rows(m);
    for (row_t& row : rows) {
        row = {};
        row.scale_m = draw(1 << 30, INT32_MAX);
        row.scale_e = how == fill::LARGEST ? -40 : -54 - draw(0, 4);
        row.n_outputs = draw(0, 3);
    }
    rows[0].n_outputs = 1;
    return rows;
}

std::int32_t outputs_of(const std::vector<row_t>& rows) {
    std::int32_t n = 0;
    for (const row_t& row : rows) n += row.n_outputs;
    return n;
}

s::task_t task_of(std::int32_t op, const product_t& p, const std::vector<row_t>& rows) {
    s::task_t task = {};
    task.op = op;
    task.m = p.m;
    task.n = p.n;
    task.parts = p.parts;
    task.input_shift = INPUT_SHIFT;
    task.exponent = p.exponent;
    task.factor_m = FACTOR.m;
    task.factor_e = FACTOR.e;
    task.n_outputs = outputs_of(rows);
    return task;
}

scale_t scale_of(const row_t& row) {
    return times({row.scale_m, row.scale_e}, FACTOR);
}

/// Counts what differs, and prints the first of it.
struct tally {
    const char* what;
    std::int64_t m, n;
    int wrong = 0;

    void same(const char* field, std::int64_t at, std::int64_t got, std::int64_t want) {
        if (got == want || wrong++ > 0) return;
        std::printf("FAIL %s %lld x %lld: %s %lld is %lld, want %lld\n", what,
                    static_cast<long long>(m), static_cast<long long>(n), field,
                    static_cast<long long>(at), static_cast<long long>(got),
                    static_cast<long long>(want));
    }
};

struct target_t {
    std::int32_t token;
    value_t z;
};

/// Rows and their targets, what the kernel and what the row functions have of them.
struct scores_t {
    std::int32_t m, n_outputs;
    std::vector<row_t> rows;
    std::vector<s::output_word_t> outputs;
    std::vector<target_t> targets;
    std::vector<s::partial_word_t> partials;
    std::vector<std::vector<partial_t>> parts;  ///< [m][blocks of the vocabulary]
    values marks;

    scores_t(std::int32_t rows_, std::int32_t n_blocks, std::int32_t vocabulary, fill how)
        : m(rows_), rows(draw_rows(rows_, how)), marks(rows_, value_t(0)) {
        n_outputs = outputs_of(rows);
        outputs.resize(ceil_div(n_outputs, s::WORD_OUTPUTS));
        for (std::int32_t i = 0; i < n_outputs; ++i) {
            targets.push_back({i == 0 ? vocabulary - 1 : draw(0, vocabulary - 1), 0});
            output(i) = {targets[i].token, -1, -1, 0};
        }
        partials.resize(std::size_t(n_blocks) * ceil_div(m, BLOCK_ROWS) * s::BLOCK_PARTIALS);
        parts.assign(m, std::vector<partial_t>(n_blocks));
    }
    s::output_t& output(std::int32_t i) {
        return outputs[i / s::WORD_OUTPUTS].output[i % s::WORD_OUTPUTS];
    }
    void run(const s::task_t& task, const word_t* acc, const word_t* side) {
        score_aggregator_krnl(&task, acc, side, nullptr, rows.data(), outputs.data(),
                              partials.data(), rows.data(), outputs.data(), partials.data());
    }
};

/// One block of logits by the kernel, and by the row functions.
void add_block(scores_t& scores, product_t& p, std::int32_t block, std::int32_t first) {
    s::task_t task = task_of(s::LOGITS, p, scores.rows);
    task.first_token = first;
    task.block = block;
    scores.run(task, p.acc.data(), p.side.data());
    for (std::int32_t r = 0, i = 0; r < p.m; ++r) {
        value_t* const z = p.sums.data() + std::size_t(r) * p.n;
        scores.parts[r][block] = direct::logits(z, p.channels(), p.exponent,
                                                scale_of(scores.rows[r]), p.n, scores.marks[r]);
        for (std::int32_t k = 0; k < scores.rows[r].n_outputs; ++k, ++i) {
            const std::int32_t at = scores.targets[i].token - first;
            if (at >= 0 && at < p.n) scores.targets[i].z = z[at];
        }
    }
}

/// Log-probs over a vocabulary in blocks of these sizes; the blocks come in any order.
int check_logprobs(std::int32_t m, const std::vector<std::int32_t>& sizes, fill how) {
    const auto n_blocks = static_cast<std::int32_t>(sizes.size());
    std::vector<std::int32_t> first = {0};
    for (const std::int32_t n : sizes) first.push_back(first.back() + n);
    scores_t scores(m, n_blocks, first.back(), how);
    for (std::int32_t i = 0; i < n_blocks; ++i) {
        const std::int32_t b = m % 2 == 0 ? i : n_blocks - 1 - i;
        product_t p(m, sizes[b], b % 2 + 1, how);
        add_block(scores, p, b, first[b]);
    }
    s::task_t task = {};
    task.op = s::FINISH;
    task.m = m;
    task.n_outputs = scores.n_outputs;
    task.n_blocks = n_blocks;
    scores.run(task, nullptr, nullptr);
    tally t{"log-probs", m, first.back()};
    for (std::int32_t r = 0, i = 0; r < m; ++r) {
        const std::int64_t sum = log_sum(scores.parts[r].data(), n_blocks);
        t.same("mark of row", r, scores.rows[r].mark, scores.marks[r] != 0);
        for (std::int32_t k = 0; k < scores.rows[r].n_outputs; ++k, ++i) {
            value_t mark = scores.marks[r];
            t.same("log-prob", i, scores.output(i).value, log_prob(scores.targets[i].z, sum, mark));
            t.same("mark", i, scores.output(i).mark, mark != 0);
            t.same("target", i, scores.output(i).target, scores.targets[i].token);
        }
    }
    return t.wrong;
}

/// 2^15 * 2^(-f / 2^16), as NUMERICS.md has it.
std::int64_t exp2_of(std::int64_t f) {
    std::int64_t y = 224;
    for (const std::int64_t c : {-1744, 7846, -22708, 32768}) y = c + ((y * (f >> 1)) >> 15);
    return y;
}

/// The mean of rewards by 2^z, with weights of its own.
std::int64_t mean_reward(const value_t* z, const value_t* rewards, std::int32_t n) {
    std::int64_t top = INT64_MIN, weights = 0, sum = 0;
    for (std::int32_t j = 0; j < n; ++j) top = std::int64_t{z[j]} > top ? std::int64_t{z[j]} : top;
    top = (top + 65535) >> 16;
    for (std::int32_t j = 0; j < n; ++j) {
        const std::int64_t d = (top << 16) - std::int64_t{z[j]};
        const std::int64_t right = d >> 16 < 31 ? d >> 16 : 31;
        const std::int64_t p = exp2_of(d & 65535) >> right;
        weights += p;
        sum += p * std::int64_t{rewards[j]};
    }
    return sum / weights;
}

/// Gates z[n] of a row's sums: fixed point with the bias, then within SCORE_LIMIT; the mark.
value_t gates_of(const product_t& p, std::int32_t r, const row_t& row, value_t* z) {
    const value_t* const acc = p.sums.data() + std::size_t(r) * p.n;
    const value_t most = (1 << SCORE_LIMIT) - 1;
    value_t mark = 0;
    row_functions<one_lane>::fixed(acc, p.channels(), p.exponent, scale_of(row), SCORE_BITS,
                                   p.bias.empty() ? nullptr : p.bias.data(), z, p.n, mark);
    for (std::int32_t j = 0; j < p.n; ++j) {
        const value_t kept = larger(smaller(z[j], most), value_t(-most));
        if (kept != z[j]) mark |= 1;
        z[j] = kept;
    }
    return mark;
}

int check_rewards(std::int32_t m, std::int32_t n, fill how, bool has_bias) {
    product_t p(m, n, 1, how);
    if (has_bias) add_bias(p, how);
    std::vector<row_t> rows = draw_rows(m, how);
    const std::int32_t n_outputs = outputs_of(rows);
    word_t empty;
    for (value_t& lane : empty.lane) lane = 0;
    std::vector<word_t> words(std::size_t(m) * words_of(n), empty);
    values rewards;
    for (std::int32_t i = 0; i < m * n; ++i) {
        const int most_reward = how == fill::RANDOM ? 1 << 20 : (1 << 30) - 1;
        rewards.push_back(draw(-most_reward, most_reward));
        words[std::size_t(i / n) * words_of(n) + i % n / LANES].lane[i % n % LANES] = rewards[i];
    }
    std::vector<s::output_word_t> outputs(ceil_div(n_outputs, s::WORD_OUTPUTS));
    const s::task_t task = task_of(s::REWARDS, p, rows);
    score_aggregator_krnl(&task, p.acc.data(), p.side.data(), words.data(), rows.data(),
                          outputs.data(), nullptr, rows.data(), outputs.data(), nullptr);
    tally t{has_bias ? "gated rewards with a bias" : "gated rewards", m, n};
    values z(n);
    for (std::int32_t r = 0, i = 0; r < m; ++r) {
        const value_t mark = gates_of(p, r, rows[r], z.data());
        const value_t* const own = rewards.data() + std::size_t(r) * n;
        const std::int64_t want = mean_reward(z.data(), own, n);
        t.same("row function", r, std::int64_t{direct::gated_reward(own, z.data(), n)}, want);
        for (std::int32_t k = 0; k < rows[r].n_outputs; ++k, ++i) {
            const s::output_t& output = outputs[i / s::WORD_OUTPUTS].output[i % s::WORD_OUTPUTS];
            t.same("reward", i, output.value, want);
            t.same("mark", i, output.mark, mark != 0);
        }
    }
    return t.wrong;
}

#ifdef ECORL_CSIM
/// The counters of REWARDS against closed forms.
int check_reward_counters() {
    constexpr std::int64_t M = 18, N = 19, WORDS = 2;
    score_aggregator_counters_reset();
    int wrong = check_rewards(M, N, fill::RANDOM, true);
    std::int64_t counts[s::N_COUNTERS];
    score_aggregator_counters(counts);
    const std::int64_t n_outputs = counts[s::OUTPUTS], output_words = (n_outputs + 3) / 4;
    const std::int64_t want[s::N_COUNTERS] = {
        1, M, n_outputs, M * WORDS,
        // two tiles enter one buffer, the first of 16 rows, the last of 2, and each leaves; the
        // last is so small that a step passes in between
        2 * 32 + 2 * 4 + 1, 3 * WORDS, M * WORDS, M * WORDS, 0, 0,
        64 * (1 + M + M * WORDS + 3 * WORDS + M * WORDS + output_words), 64 * (M + output_words)};
    tally t{"counters of rewards", M, N};
    for (int i = 0; i < s::N_COUNTERS; ++i) t.same("counter", i, counts[i], want[i]);
    return wrong + t.wrong;
}

/// The counters against closed forms, for one block of logits and FINISH.
int check_counters() {
    constexpr std::int64_t M = 18, N = 50, WORDS = 4;
    source.seed(5);
    score_aggregator_counters_reset();
    int wrong = check_logprobs(M, {N}, fill::RANDOM);
    std::int64_t counts[s::N_COUNTERS];
    score_aggregator_counters(counts);
    const std::int64_t n_outputs = counts[s::OUTPUTS] / 2, output_words = (n_outputs + 3) / 4;
    const std::int64_t want[s::N_COUNTERS] = {
        2,
        2 * M,
        2 * n_outputs,
        M * WORDS,
        2 * 64 + 2 * 8,
        3 * WORDS,
        M * WORDS,
        M * WORDS,
        M * 2,
        16,
        64 * (2 + 2 * M + M * WORDS + 3 * WORDS + 2 * output_words + 8),
        64 * (2 * M + 2 * output_words + 8)};
    tally t{"counters", M, N};
    for (int i = 0; i < s::N_COUNTERS; ++i) t.same("counter", i, counts[i], want[i]);
    return wrong + t.wrong;
}
#endif

}  // namespace

int main() {
    int wrong = 0;
    int runs = 0;
    for (const fill how : {fill::RANDOM, fill::LARGEST, fill::ZERO}) {
        for (const std::int32_t m : {1, 5, 16, 33}) {
            wrong += check_logprobs(m, {1}, how) + check_logprobs(m, {37, 16, 70}, how);
            for (const bool has_bias : {false, true}) {
                wrong += check_rewards(m, 1, how, has_bias) + check_rewards(m, 19, how, has_bias);
            }
            runs += 6;
        }
        wrong += check_rewards(2, MAX_OBJECTIVES, how, false);
        wrong += check_rewards(2, MAX_OBJECTIVES, how, true);
        wrong += check_logprobs(2, {s::MAX_COLUMNS, s::MAX_COLUMNS, 5}, how);
        runs += 3;
    }
    wrong += check_logprobs(17, std::vector<std::int32_t>(s::MAX_BLOCKS, 3), fill::RANDOM);
#ifdef ECORL_CSIM
    wrong += check_counters() + check_reward_counters();
#endif
    std::printf("%s score_aggregator: %d problems and the maxima, %d wrong results\n",
                wrong == 0 ? "PASS" : "FAIL", runs, wrong);
    return wrong == 0 ? 0 : 1;
}

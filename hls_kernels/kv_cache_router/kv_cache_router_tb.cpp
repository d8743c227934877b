// Test bench of kv_cache_router: the pages of sequences that share a beginning and grow, against
// pages laid out position by position, as include/kv_pages.hpp says.
//
// Under ECORL_CSIM it goes on to the C API and the counters. Exit code 0 means that all agreed.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "kv_cache_router.hpp"

using namespace ecorl;
using namespace ecorl::router;

namespace {

enum class fill { RANDOM, ALL_MIN, MANY_ZEROS };

std::mt19937 source(20240229);

int draw(int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(source);
}

struct token_t {
    std::vector<std::int8_t> key, value;
    head_row_t key_row, value_row;
};

token_t make_token(dim_t d, fill how) {
    token_t token;
    for (dim_t c = 0; c < d; ++c) {
        token.key.push_back(
            static_cast<std::int8_t>(how == fill::ALL_MIN ? -128 : draw(-128, 127)));
        token.value.push_back(
            static_cast<std::int8_t>(how == fill::ALL_MIN ? -128 : draw(-128, 127)));
    }
    token.key_row = {draw(1 << 30, INT32_MAX), draw(-80, 20), draw(0, 99), draw(0, 99)};
    token.value_row = {draw(1 << 30, INT32_MAX), draw(-80, 20), draw(0, 99), draw(0, 99)};
    if (how == fill::MANY_ZEROS && draw(0, 3) > 0) token.value_row.m = token.value_row.e = 0;
    return token;
}

struct sequence_t {
    std::vector<token_t> tokens;
    std::int32_t entry;  ///< first one in the page table
    int written = 0;     ///< tokens that are in pages
};

/// The card's memory, and who owns which page.
struct card_t {
    dim_t d;
    std::vector<beat_t> pages;
    std::vector<std::int32_t> table, free;

    card_t(dim_t head, int n_pages) : d(head), pages(std::size_t(n_pages) * page_beats(head)) {
        for (beat_t& beat : pages) {
            for (code_t& code : beat.value) code = code_t(draw(-128, 127));
        }
        table.assign(1024, -1);
        for (int p = 0; p < n_pages; ++p) free.push_back(p);
        std::shuffle(free.begin(), free.end(), source);
    }
    std::int32_t new_page() {
        const std::int32_t page = free.back();
        free.pop_back();
        return page;
    }
};

/// Tokens and jobs of one call.
struct call_t {
    std::vector<token_t> tokens;
    std::vector<job_t> jobs;
};

/// Go on with a sequence up to `end` tokens. `parent` is that from which it takes its beginning
/// when nothing of its own is written; else null.
void extend(call_t& call, card_t& card, sequence_t& s, const sequence_t* parent, int end) {
    const int begin = parent != nullptr ? static_cast<int>(parent->tokens.size()) : s.written;
    const std::int32_t from = parent != nullptr ? parent->entry : s.entry;
    // A new sequence lists all pages; one that goes on only those that change.
    const int first = parent != nullptr ? 0 : begin / PAGE;
    for (int page = first; page * PAGE < end; ++page) {
        const int kept = std::min(std::max(begin - page * PAGE, 0), PAGE);
        const int n = std::min(end - page * PAGE, PAGE) - kept;
        job_t job = {
            -1, kept, static_cast<std::int32_t>(call.tokens.size()), n, -1, s.entry + page, {0, 0}};
        if (kept > 0) job.source = card.table[from + page];
        if (kept < PAGE) {  // what is already its own is written again in place
            const bool is_own = parent == nullptr && kept > 0;
            job.destination = is_own ? job.source : card.new_page();
        }
        call.jobs.push_back(job);
        for (int i = 0; i < n; ++i) call.tokens.push_back(s.tokens[page * PAGE + kept + i]);
    }
    s.written = end;
}

void run(const call_t& call, card_t& card) {
    const dim_t parts = token_beats(card.d);
    std::vector<beat_t> codes[2];
    std::vector<head_row_t> key_rows, value_rows;
    for (const token_t& token : call.tokens) {
        key_rows.push_back(token.key_row);
        value_rows.push_back(token.value_row);
        for (int which = 0; which < 2; ++which) {
            const std::vector<std::int8_t>& row = which == 0 ? token.key : token.value;
            for (dim_t part = 0; part < parts; ++part) {
                beat_t beat;
                for (int i = 0; i < BEAT; ++i) {
                    const dim_t c = part * BEAT + i;
                    beat.value[i] = c < card.d ? code_t(row[c]) : code_t(0);
                }
                codes[which].push_back(beat);
            }
        }
    }
    kv_cache_router_krnl(codes[0].data(), codes[1].data(), key_rows.data(), value_rows.data(),
                         call.jobs.data(), card.pages.data(), card.pages.data(), card.table.data(),
                         static_cast<std::int32_t>(call.jobs.size()), card.d);
}

/// A page of a sequence as bytes, position by position.
std::vector<std::int8_t> wanted_page(const sequence_t& s, int page, dim_t d) {
    std::vector<std::int8_t> bytes(std::size_t(page_beats(d)) * BEAT, 0);
    for (int t = page * PAGE; t < (page + 1) * PAGE; ++t) {
        const bool is_there = t < s.written;
        const head_row_t none = {0, 0, 0, 0};
        const head_row_t key = is_there ? s.tokens[t].key_row : none;
        const head_row_t value = is_there ? s.tokens[t].value_row : none;
        const int at = t - page * PAGE;
        for (dim_t c = 0; c < d && is_there; ++c) {
            const dim_t key_beat = at / 8 * (d / 8) + c / 8, value_beat = d + c / 8 * 8 + at / 8;
            bytes[key_beat * 64 + c / 4 % 2 * 32 + at % 8 * 4 + c % 4] = s.tokens[t].key[c];
            bytes[value_beat * 64 + at / 4 % 2 * 32 + c % 8 * 4 + at % 4] = s.tokens[t].value[c];
        }
        const std::int32_t rows[] = {key.m, key.e, value.m >> 16, value.e};
        for (int row = 0; row < PAGE_ROWS; ++row) {
            std::memcpy(bytes.data() + (2 * d + 4 * row) * 64 + 4 * at, &rows[row], 4);
        }
    }
    return bytes;
}

/// Number of wrong pages of a sequence.
int compare(const sequence_t& s, const card_t& card, const char* who) {
    int wrong = 0;
    for (int page = 0; page * PAGE < s.written; ++page) {
        const std::int32_t place = card.table[s.entry + page];
        const auto* got = reinterpret_cast<const std::int8_t*>(
            card.pages.data() + std::int64_t{place} * page_beats(card.d));
        const std::vector<std::int8_t> want = wanted_page(s, page, card.d);
        const auto differs = std::mismatch(want.begin(), want.end(), got);
        if (differs.first != want.end() && wrong++ == 0) {
            std::printf("FAIL %s, d = %d: page %d at byte %d\n", who, static_cast<int>(card.d),
                        page, static_cast<int>(differs.first - want.begin()));
        }
    }
    return wrong;
}

int runs = 0;

/// A prompt, completions that go on from it, and one that goes on from its own end.
int check(dim_t d, int n_prompt, int n_completions, fill how) {
    card_t card(d, 64);
    sequence_t prompt = {{}, 0};
    for (int t = 0; t < n_prompt; ++t) prompt.tokens.push_back(make_token(d, how));
    sequence_t other = {{}, 16 * (n_completions + 1)};
    for (int t = 0; t < 5; ++t) other.tokens.push_back(make_token(d, how));
    call_t first, second, third;
    extend(first, card, prompt, nullptr, n_prompt);
    extend(first, card, other, nullptr, 5);
    run(first, card);
    int wrong = compare(prompt, card, "prompt") + compare(other, card, "another prompt");
    std::vector<sequence_t> completions;
    for (int i = 0; i < n_completions; ++i) {
        completions.push_back({prompt.tokens, 16 * (i + 1)});
        const int n = n_prompt + draw(1, 70);
        for (int t = n_prompt; t < n; ++t) completions[i].tokens.push_back(make_token(d, how));
        extend(second, card, completions[i], &prompt, n);
    }
    run(second, card);
    for (sequence_t& s : completions) wrong += compare(s, card, "completion");
    for (sequence_t& s : completions) {  // one at least is at the end of a page
        const int n = (s.written + PAGE - 1) / PAGE * PAGE + draw(0, 1) * draw(1, 70);
        for (int t = s.written; t < n; ++t) s.tokens.push_back(make_token(d, how));
        if (n > s.written) extend(third, card, s, nullptr, n);
    }
    if (!third.jobs.empty()) run(third, card);
    for (sequence_t& s : completions) {
        const int n = s.written + draw(1, 70);
        for (int t = s.written; t < n; ++t) s.tokens.push_back(make_token(d, how));
        call_t last;
        extend(last, card, s, nullptr, n);
        run(last, card);
        wrong += compare(s, card, "completion that goes on");
    }
    wrong += compare(prompt, card, "prompt after all");
    ++runs;
    return wrong;
}

#ifdef ECORL_CSIM
/// The C API takes any head size; it counts what it moves.
int check_c_api(dim_t head_dim, int n) {
    const dim_t d = ceil_div(head_dim, HEAD_UNIT) * HEAD_UNIT;
    const int n_pages = ceil_div(n, PAGE);
    sequence_t s = {{}, 0};
    std::vector<std::int8_t> keys, values;
    std::vector<std::int32_t> key_scales, value_scales, jobs;
    for (int t = 0; t < n; ++t) {
        s.tokens.push_back(make_token(d, fill::RANDOM));
        token_t& token = s.tokens.back();
        std::fill(token.key.begin() + head_dim, token.key.end(), 0);
        std::fill(token.value.begin() + head_dim, token.value.end(), 0);
        keys.insert(keys.end(), token.key.begin(), token.key.begin() + head_dim);
        values.insert(values.end(), token.value.begin(), token.value.begin() + head_dim);
        key_scales.insert(key_scales.end(), {token.key_row.m, token.key_row.e});
        value_scales.insert(value_scales.end(), {token.value_row.m, token.value_row.e});
    }
    for (int page = 0; page < n_pages; ++page) {
        const int first = page * PAGE;
        jobs.insert(jobs.end(), {-1, 0, first, std::min(PAGE, n - first), page, page, 0, 0});
    }
    card_t card(d, n_pages);
    s.written = n;
    for (int call = 0; call < 2; ++call) {  // the first takes along what direct calls have counted
        kv_cache_router_counters_reset();
        kv_cache_router(keys.data(), key_scales.data(), values.data(), value_scales.data(), n,
                        head_dim, jobs.data(), n_pages, card.pages.data(), card.table.data());
    }
    std::int64_t counts[N_COUNTERS];
    kv_cache_router_counters(counts);
    ++runs;
    const std::int64_t bytes = n_pages * (kv_cache_router_page_bytes(head_dim) + 4);
    const bool is_counted = counts[CALLS] == 1 && counts[PAGES_WRITTEN] == n_pages &&
                            counts[BYTES_WRITTEN] == bytes && counts[BYTES_READ] == 0;
    if (!is_counted) std::printf("FAIL counters, head of %d\n", static_cast<int>(head_dim));
    return compare(s, card, "C API") + (is_counted ? 0 : 1);
}
#endif

}  // namespace

int main() {
    int wrong = 0;
    for (const dim_t d : {16, 32, 64, 96, 128}) {
        for (const int n : {1, 63, 64, 65, 130}) wrong += check(d, n, 2, fill::RANDOM);
    }
    wrong += check(32, 70, 8, fill::ALL_MIN);
    wrong += check(32, 130, 8, fill::MANY_ZEROS);
#ifdef ECORL_CSIM
    for (const dim_t head_dim : {2, 20, 80, 128}) wrong += check_c_api(head_dim, 100);
#endif
    std::printf("%s kv_cache_router: %d problems, %d wrong pages\n", wrong == 0 ? "PASS" : "FAIL",
                runs, wrong);
    return wrong == 0 ? 0 : 1;
}

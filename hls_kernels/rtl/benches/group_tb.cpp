// Bench of the chain of vector_ops: its two looks, lane by lane, and the sixteen lanes with rows of
// words, one after the other. Words come in random cycles; in the others the inputs hold anything.
// A latency is from a word to its result; peaks, marks and sums must come once a row, and be right.
#include <deque>

#include "Vfirst_look.h"
#include "Vlane_group.h"
#include "Vsecond_look.h"
#include "harness.hpp"
#include "operands.hpp"

namespace {

using bench::clock_edge;
using bench::dice;
using bench::signed_32;
using ecorl::LANES;
using ecorl::word_t;

// ---- one lane ---------------------------------------------------------------------------------

struct first_look_case {
    using model = Vfirst_look;
    using outputs = std::array<std::int64_t, 2>;
    static outputs play(model& top, dice& draw) {
        const bench::first_row_t row = bench::any_first_row(draw);
        const ecorl::vector::first_lane_t in = bench::any_first_lane(draw, row);
        const bool live = !draw.one_in(9);
        top.op = row.task.op;
        top.has_bias = row.task.has_bias;
        top.input_shift = row.task.input_shift;
        top.context_right = row.opening.right;
        top.fixed_mantissa = row.opening.fixed.mantissa;
        bench::drive_shifter(top, row.opening.fixed.by);
        top.product_sum = in.product;
        top.other = in.other;
        top.mantissa = in.mantissa;
        top.bias = in.bias;
        top.down = in.shift;
        top.live = live;
        const auto result = reference::first_look(row.task, row.opening, in);
        if (!live) return {0, 0};
        return {result.value, result.changed};
    }
    static outputs seen(const model& top) { return {signed_32(top.out), top.changed}; }
};

/// The value and its mark; the square comes sooner, and is looked at in the group.
struct second_look_case {
    using model = Vsecond_look;
    using outputs = std::array<std::int64_t, 2>;
    static outputs play(model& top, dice& draw) {
        const bench::second_row_t row = bench::any_second_row(draw, draw.count(0, 6));
        const std::int32_t own = draw.within(row.own_peak), second = draw.within(row.second_peak);
        const std::int32_t factor = bench::any_factor(draw, row);
        const reference::transform_t& by = row.transform;
        top.op = row.task.op;
        top.own = own;
        top.second = second;
        top.factor = factor;
        top.room = by.room;
        top.is_zero = by.is_zero;
        top.is_rotated = by.is_rotated;
        top.lost = by.gate.lost;
        top.room_gate = by.gate.room_gate;
        top.room_up = by.gate.room_up;
        top.mantissa = by.gate.fixed.mantissa;
        bench::drive_shifter(top, by.gate.fixed.by);
        const auto result = reference::second_look(row.task, by, own, second, factor);
        return {result.value, result.changed};
    }
    static outputs seen(const model& top) { return {signed_32(top.out), top.changed}; }
};

// ---- what must come out of the group ------------------------------------------------------------

/// What must come out of a part, in order, and when it went in.
template <class Item>
class waiting {
  public:
    explicit waiting(const char* name) : name_(name) {}

    void push(const Item& item, int now) { items_.push_back({item, now}); }

    /// Compare what came out in the cycle `now` with the oldest; `same` says whether it is equal.
    template <class Same>
    void take(int now, const Same& same) {
        ++seen_;
        if (items_.empty()) {
            ++mismatches_;
            return;
        }
        const auto [item, since] = items_.front();
        items_.pop_front();
        mismatches_ += !same(item);
        const int cycles = now - since + 1;
        mismatches_ += latency_ != 0 && cycles != latency_;
        latency_ = cycles;
    }

    int seen() const { return seen_; }

    bool print() const {
        const int all = mismatches_ + static_cast<int>(items_.size());
        std::printf("{\"name\": \"%s\", \"latency\": %d, \"vectors\": %d, \"mismatches\": %d}\n",
                    name_, latency_, seen_, all);
        return all == 0;
    }

  private:
    const char* name_;
    std::deque<std::pair<Item, int>> items_;
    int seen_ = 0, mismatches_ = 0, latency_ = 0;
};

template <class Port>
bool same_word(const Port& port, const word_t& word) {
    for (int i = 0; i < LANES; ++i) {
        if (static_cast<std::int32_t>(port[i]) != word.lane[i]) return false;
    }
    return true;
}

/// The words, peaks and marks that rows of one look give.
class row_results {
  public:
    row_results(const char* words, const char* peaks, const char* marks)
        : words_(words), peaks_(peaks), marks_(marks) {}

    void begin() {
        peak_ = 0;
        mark_ = false;
    }

    void push(const word_t& word, bool changed, bool ends, int now) {
        words_.push(word, now);
        for (const auto lane : word.lane) peak_ = std::max(peak_, reference::magnitude(lane));
        mark_ = mark_ || changed;
        if (!ends) return;
        peaks_.push(peak_, now);
        marks_.push(mark_, now);
    }

    template <class Port>
    void check_word(bool valid, const Port& port, int now) {
        if (!valid) return;
        words_.take(now, [&](const word_t& word) { return same_word(port, word); });
    }
    void check_peak(bool valid, std::uint32_t port, int now) {
        if (!valid) return;
        peaks_.take(now, [&](std::int32_t peak) { return signed_32(port) == peak; });
    }
    void check_mark(bool valid, bool port, int now) {
        if (!valid) return;
        marks_.take(now, [&](bool mark) { return port == mark; });
    }

    int seen() const { return words_.seen(); }
    bool print() const { return words_.print() & peaks_.print() & marks_.print(); }

  private:
    waiting<word_t> words_;
    waiting<std::int32_t> peaks_;
    waiting<bool> marks_;
    std::int32_t peak_ = 0;
    bool mark_ = false;
};

// ---- what goes in -------------------------------------------------------------------------------

/// Whether a word goes in now, and where in its row it stands.
class row_place {
  public:
    bool valid = false, begins = false, ends = false;

    void next(dice& draw) {
        valid = !draw.one_in(4);
        begins = valid ? left_ == 0 : draw.one_in(2);
        if (valid && begins) left_ = draw.count(1, 12);
        ends = valid ? --left_ == 0 : draw.one_in(2);
    }

  private:
    int left_ = 0;
};

/// Lane `lane` of a port of narrow fields, `bits` each.
template <class Port>
void drive_field(Port& port, int lane, int bits, std::uint32_t value) {
    for (int i = 0; i < bits; ++i) {
        const int bit = bits * lane + i;
        const std::uint32_t mask = std::uint32_t{1} << (bit % 32);
        port[bit / 32] = (value >> i & 1u) ? port[bit / 32] | mask : port[bit / 32] & ~mask;
    }
}

class first_words {
  public:
    /// Rows of another task; what was begun of a row is left.
    void begin_task(const reference::task_t& task) {
        row_.task = task;
        place_ = {};
    }

    void drive(Vlane_group& top, dice& draw, int now) {
        place_.next(draw);
        if (place_.valid && place_.begins) {
            row_.opening = bench::any_first_row(draw).opening;
            found_.begin();
        }
        top.first_valid = place_.valid;
        top.first_begins = place_.begins;
        top.first_ends = place_.ends;
        top.context_right = row_.opening.right;
        const ecorl::fixed_t& fixed = row_.opening.fixed;
        top.fixed_mantissa = fixed.mantissa;
        top.fixed_limit = fixed.by.limit;
        top.fixed_half = fixed.by.half;
        top.fixed_right = fixed.by.right;
        top.fixed_left = fixed.by.left;
        top.fixed_keep = fixed.by.keep & 1;
        const int live = place_.ends ? draw.count(1, LANES) : LANES;
        top.live = (1u << live) - 1;
        word_t value = {};
        bool changed = false;
        for (int i = 0; i < LANES; ++i) {
            const auto in = bench::any_first_lane(draw, row_);
            top.product_sums[i] = static_cast<std::uint32_t>(in.product);
            top.others[i] = static_cast<std::uint32_t>(in.other);
            top.mantissas[i] = static_cast<std::uint32_t>(in.mantissa);
            top.biases[i] = static_cast<std::uint32_t>(in.bias);
            drive_field(top.downs, i, 5, static_cast<std::uint32_t>(in.shift));
            if (i >= live) continue;
            const auto result = reference::first_look(row_.task, row_.opening, in);
            value.lane[i] = result.value;
            changed = changed || result.changed;
        }
        if (place_.valid) found_.push(value, changed, place_.ends, now);
    }

    void check(const Vlane_group& top, int now) {
        found_.check_word(top.value_valid, top.values, now);
        found_.check_peak(top.value_peak_valid, top.value_peak, now);
        found_.check_mark(top.value_mark_valid, top.value_mark, now);
    }

    bool print() const { return found_.print(); }

  private:
    row_place place_;
    bench::first_row_t row_ = {};
    row_results found_{"group_values", "group_value_peak", "group_value_mark"};
};

class second_words {
  public:
    void begin_task(const reference::task_t& task) {
        row_ = {task, {}, 1, 1};
        place_ = {};
    }

    void drive(Vlane_group& top, dice& draw, int now) {
        place_.next(draw);
        if (place_.valid && place_.begins) {
            row_ = bench::any_second_row(draw, row_.task.op);
            found_.begin();
            squares_ = 0;
        }
        const reference::transform_t& by = row_.transform;
        top.second_valid = place_.valid;
        top.second_begins = place_.begins;
        top.second_ends = place_.ends;
        top.room = by.room;
        top.is_zero = by.is_zero;
        top.is_rotated = by.is_rotated;
        top.lost = by.gate.lost;
        top.room_gate = by.gate.room_gate;
        top.room_up = by.gate.room_up;
        top.gate_mantissa = by.gate.fixed.mantissa;
        top.gate_limit = by.gate.fixed.by.limit;
        top.gate_half = by.gate.fixed.by.half;
        top.gate_right = by.gate.fixed.by.right;
        top.gate_left = by.gate.fixed.by.left;
        top.gate_keep = by.gate.fixed.by.keep & 1;
        word_t value = {};
        bool changed = false;
        for (int i = 0; i < LANES; ++i) {
            const std::int32_t own = draw.within(row_.own_peak);
            const std::int32_t second = draw.within(row_.second_peak);
            const std::int32_t factor = bench::any_factor(draw, row_);
            top.owns[i] = static_cast<std::uint32_t>(own);
            top.seconds[i] = static_cast<std::uint32_t>(second);
            top.factors[i] = static_cast<std::uint32_t>(factor);
            const auto result = reference::second_look(row_.task, by, own, second, factor);
            value.lane[i] = result.value;
            changed = changed || result.changed;
            if (place_.valid) squares_ += result.square;
        }
        if (!place_.valid) return;
        found_.push(value, changed, place_.ends, now);
        if (place_.ends) totals_.push(squares_, now);
    }

    void check(const Vlane_group& top, int now) {
        found_.check_word(top.result_valid, top.results, now);
        found_.check_peak(top.result_peak_valid, top.result_peak, now);
        found_.check_mark(top.result_mark_valid, top.result_mark, now);
        if (!top.squares_valid) return;
        totals_.take(
            now, [&](std::int64_t sum) { return static_cast<std::int64_t>(top.squares) == sum; });
    }

    bool print() const { return found_.print() & totals_.print(); }

  private:
    row_place place_;
    bench::second_row_t row_ = {{}, {}, 1, 1};
    std::int64_t squares_ = 0;
    row_results found_{"group_results", "group_result_peak", "group_result_mark"};
    waiting<std::int64_t> totals_{"group_squares"};
};

class code_words {
  public:
    void drive(Vlane_group& top, dice& draw, int now) {
        place_.next(draw);
        if (place_.valid && place_.begins) {
            peak_ = bench::any_peak(draw);
            by_ = reference::quantiser(peak_, 0);
        }
        top.code_in_valid = place_.valid;
        top.code_room = by_.room;
        top.code_factor = by_.factor;
        std::array<std::int8_t, LANES> found = {};
        for (int i = 0; i < LANES; ++i) {
            const std::int32_t value = draw.within(peak_);
            top.code_in[i] = static_cast<std::uint32_t>(value);
            found[i] = static_cast<std::int8_t>(reference::quantise(value, by_));
        }
        if (place_.valid) words_.push(found, now);
    }

    void check(const Vlane_group& top, int now) {
        if (!top.code_valid) return;
        words_.take(now, [&](const auto& expected) {
            for (int i = 0; i < LANES; ++i) {
                const auto code = static_cast<std::int8_t>(top.codes[i / 4] >> (8 * (i % 4)));
                if (code != expected[i]) return false;
            }
            return true;
        });
    }

    int seen() const { return words_.seen(); }
    bool print() const { return words_.print(); }

  private:
    row_place place_;
    std::int32_t peak_ = 1;
    ecorl::quantiser_t by_ = {};
    waiting<std::array<std::int8_t, LANES>> words_{"group_codes"};
};

/// All operations, each with rows of its own.
class group_bench {
  public:
    explicit group_bench(const bench::options& with) : draw_(with.seed), words_(with.vectors) {
        context_.randReset(2);
        context_.randSeed(static_cast<int>(with.seed % 1000000) + 1);
        top_ = std::make_unique<Vlane_group>(&context_);
    }

    bool run() {
        drain();
        for (int op = ecorl::vector::EMBED; op <= ecorl::vector::FIXED; ++op) {
            reference::task_t task = bench::any_first_row(draw_).task;
            task.op = op;
            top_->op = op;
            top_->has_bias = task.has_bias;
            top_->input_shift = task.input_shift;
            first_.begin_task(task);
            second_.begin_task(task);
            const int enough = codes_.seen() + words_ / LANES / (ecorl::vector::FIXED + 1);
            while (codes_.seen() < enough) cycle();
            drain();
        }
        return first_.print() & second_.print() & codes_.print();
    }

  private:
    void cycle() {
        first_.drive(*top_, draw_, now_);
        second_.drive(*top_, draw_, now_);
        codes_.drive(*top_, draw_, now_);
        look();
    }

    /// Until nothing is left in the pipelines.
    void drain() {
        constexpr int LONGEST = 256;
        top_->first_valid = top_->second_valid = top_->code_in_valid = 0;
        for (int i = 0; i < LONGEST; ++i) {
            if (now_ > 0) {
                look();
            } else {
                clock_edge(*top_);
            }
        }
        ++now_;
    }

    void look() {
        clock_edge(*top_);
        first_.check(*top_, now_);
        second_.check(*top_, now_);
        codes_.check(*top_, now_);
        ++now_;
    }

    VerilatedContext context_;
    std::unique_ptr<Vlane_group> top_;
    dice draw_;
    first_words first_;
    second_words second_;
    code_words codes_;
    int words_;
    int now_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
    const bench::options with = bench::read_options(argc, argv);
    bool right = true;
    right &= bench::run<first_look_case>("first_look", with);
    right &= bench::run<second_look_case>("second_look", with);
    right &= group_bench(with).run();
    return right ? 0 : 1;
}

// Bench of the lane group: rows of words, one after the other, through each of its three parts.
// Words come in random cycles; in the others the inputs hold anything. A part's latency is from a
// word to its result; peaks and marks of a row must come once each, and be right.
#include <deque>

#include "Vlane_group.h"
#include "harness.hpp"
#include "operands.hpp"

namespace {

using bench::clock_edge;
using bench::dice;
constexpr int LANES = ecorl::LANES;

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

/// Whether a word goes in now, and where in its row it stands.
class row_place {
  public:
    bool valid = false, first = false, last = false;

    void next(dice& draw) {
        valid = !draw.one_in(4);
        if (!valid) {
            first = draw.one_in(2);
            last = draw.one_in(2);
            return;
        }
        first = left_ == 0;
        if (first) left_ = draw.count(1, 12);
        last = --left_ == 0;
    }

  private:
    int left_ = 0;
};

template <class Port>
bool same_word(const Port& port, const ecorl::word_t& word) {
    for (int i = 0; i < LANES; ++i) {
        if (static_cast<std::int32_t>(port[i]) != word.lane[i]) return false;
    }
    return true;
}

ecorl::word_t any_within(dice& draw, std::int32_t most) {
    ecorl::word_t word = {};
    for (auto& lane : word.lane) lane = draw.within(most);
    return word;
}

std::int32_t peak_of(const ecorl::word_t& word, std::int32_t so_far) {
    for (const auto lane : word.lane) so_far = std::max(so_far, reference::magnitude(lane));
    return so_far;
}

/// A port of narrow fields, `bits` each.
template <class Port>
void drive_field(Port& port, int lane, int bits, std::uint32_t value) {
    for (int i = 0; i < bits; ++i) {
        const int bit = bits * lane + i;
        const std::uint32_t mask = std::uint32_t{1} << (bit % 32);
        port[bit / 32] = (value >> i & 1u) ? port[bit / 32] | mask : port[bit / 32] & ~mask;
    }
}

class products {
  public:
    void drive(Vlane_group& top, dice& draw, int now) {
        place_.next(draw);
        if (place_.valid && place_.first) {
            input_shift_ = draw.count(0, 16);
            peak_ = 0;
        }
        top.product_valid = place_.valid;
        top.product_first = place_.first;
        top.product_last = place_.last;
        top.input_shift = input_shift_;
        ecorl::word_t value = {};
        for (int i = 0; i < LANES; ++i) {
            const std::int32_t acc = draw.within((1 << 29) >> input_shift_);
            const std::int32_t mantissa = draw.one_in(9) ? 0 : draw.mantissa();
            const int down = draw.count(0, 31);
            top.acc[i] = static_cast<std::uint32_t>(acc);
            top.mantissa[i] = static_cast<std::uint32_t>(mantissa);
            drive_field(top.down, i, 5, static_cast<std::uint32_t>(down));
            value.lane[i] = reference::dequantise(acc, mantissa, down, input_shift_);
        }
        if (!place_.valid) return;
        values_.push(value, now);
        peak_ = peak_of(value, peak_);
        if (place_.last) peaks_.push(peak_, now);
    }

    void check(const Vlane_group& top, int now) {
        if (top.value_valid) {
            values_.take(now, [&](const auto& word) { return same_word(top.values, word); });
        }
        if (top.value_peak_valid) {
            peaks_.take(now, [&](std::int32_t peak) {
                return static_cast<std::int32_t>(top.value_peak) == peak;
            });
        }
    }

    bool print() const { return values_.print() & peaks_.print(); }

  private:
    row_place place_;
    int input_shift_ = 0;
    std::int32_t peak_ = 0;
    waiting<ecorl::word_t> values_{"group_dequantise"};
    waiting<std::int32_t> peaks_{"group_value_peak"};
};

class gates {
  public:
    void drive(Vlane_group& top, dice& draw, int now) {
        place_.next(draw);
        if (place_.valid && place_.first) begin_row(draw);
        top.gate_valid = place_.valid;
        top.gate_first = place_.first;
        top.gate_last = place_.last;
        top.room_gate = by_.room_gate;
        top.room_up = by_.room_up;
        top.log2_mantissa = by_.fixed.mantissa;
        bench::drive_shifter(top, by_.fixed.by);
        const ecorl::word_t gate = any_within(draw, peak_gate_), up = any_within(draw, peak_up_);
        bench::drive_word(top.gates, gate);
        bench::drive_word(top.ups, up);
        if (!place_.valid) return;
        ecorl::word_t gated = {};
        for (int i = 0; i < LANES; ++i) {
            const auto result = reference::gate(gate.lane[i], up.lane[i], by_);
            gated.lane[i] = result.value;
            changed_ = changed_ || result.changed;
        }
        words_.push(gated, now);
        peak_ = peak_of(gated, peak_);
        if (!place_.last) return;
        peaks_.push(peak_, now);
        marks_.push(changed_, now);
    }

    void check(const Vlane_group& top, int now) {
        if (top.gated_valid) {
            words_.take(now, [&](const auto& word) { return same_word(top.gated, word); });
        }
        if (top.gated_peak_valid) {
            peaks_.take(now, [&](std::int32_t peak) {
                return static_cast<std::int32_t>(top.gated_peak) == peak;
            });
        }
        if (top.changed_valid) {
            marks_.take(now, [&](bool changed) { return (top.changed != 0) == changed; });
        }
    }

    bool print() const { return words_.print() & peaks_.print() & marks_.print(); }

  private:
    void begin_row(dice& draw) {
        peak_gate_ = bench::any_peak(draw);
        peak_up_ = bench::any_peak(draw);
        by_ = reference::make_gate(peak_gate_, peak_up_, 0, bench::any_scale(draw, 0));
        by_.fixed = bench::any_fixed(draw);
        peak_ = 0;
        changed_ = false;
    }

    row_place place_;
    ecorl::gate_t by_ = {};
    std::int32_t peak_gate_ = 1, peak_up_ = 1, peak_ = 0;
    bool changed_ = false;
    waiting<ecorl::word_t> words_{"group_gate"};
    waiting<std::int32_t> peaks_{"group_gated_peak"};
    waiting<bool> marks_{"group_mark"};
};

class codes {
  public:
    void drive(Vlane_group& top, dice& draw, int now) {
        place_.next(draw);
        if (place_.valid && place_.first) {
            peak_ = bench::any_peak(draw);
            by_ = reference::quantiser(peak_, 0);
        }
        top.gated_in_valid = place_.valid;
        top.room = by_.room;
        top.factor = by_.factor;
        const ecorl::word_t values = any_within(draw, peak_);
        bench::drive_word(top.gated_in, values);
        if (!place_.valid) return;
        std::array<std::int8_t, LANES> found = {};
        for (int i = 0; i < LANES; ++i) {
            found[i] = static_cast<std::int8_t>(reference::quantise(values.lane[i], by_));
        }
        words_.push(found, now);
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
    waiting<std::array<std::int8_t, LANES>> words_{"group_quantise"};
};

}  // namespace

int main(int argc, char** argv) {
    constexpr int LONGEST = 256;  // cycles until nothing is left in the pipelines
    const bench::options with = bench::read_options(argc, argv);
    VerilatedContext context;
    context.randReset(2);
    context.randSeed(static_cast<int>(with.seed % 1000000) + 1);
    const auto top = std::make_unique<Vlane_group>(&context);
    dice draw(with.seed);
    products first;
    gates second;
    codes third;
    top->product_valid = top->gate_valid = top->gated_in_valid = 0;
    for (int i = 0; i < LONGEST; ++i) clock_edge(*top);
    int now = 0;
    for (; third.seen() < with.vectors / LANES; ++now) {
        first.drive(*top, draw, now);
        second.drive(*top, draw, now);
        third.drive(*top, draw, now);
        clock_edge(*top);
        first.check(*top, now);
        second.check(*top, now);
        third.check(*top, now);
    }
    top->product_valid = top->gate_valid = top->gated_in_valid = 0;
    for (int i = 0; i < LONGEST; ++i, ++now) {
        clock_edge(*top);
        first.check(*top, now);
        second.check(*top, now);
        third.check(*top, now);
    }
    return first.print() & second.print() & third.print() ? 0 : 1;
}

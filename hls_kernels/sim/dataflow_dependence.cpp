#include "dataflow_dependence.hpp"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "dataflow.hpp"

namespace ecorl {
namespace dependence {

namespace {

std::atomic<std::int64_t> n_violations{0}, n_entries{0};

/// Iterations that are under way: those of several processes take turns on a host thread.
std::vector<const Watch*>& under_way() {
    static thread_local std::vector<const Watch*> own;
    return own;
}

/// The loop's counter begins at 0 with each entry, and goes up by 1.
stamp_t next(Entry& entry, const claim_t& claim, std::int64_t iteration) {
    if (iteration == 0) {
        entry.now = {n_entries.fetch_add(1, std::memory_order_relaxed) + 1, 0};
    } else if (iteration != ++entry.now.iteration) {
        throw std::logic_error(std::string(claim.loop) + ": the iterations of " + claim.array +
                               "'s watch are not counted from 0 by 1");
    }
    return entry.now;
}

}  // namespace

Watch::Watch(Entry& entry, const claim_t& claim, std::int64_t iteration,
             std::initializer_list<std::int64_t> shape)
    : claim_(claim), now_(next(entry, claim, iteration)), shape_(), n_shape_(shape.size()) {
    if (n_shape_ > MAX_SHAPE) throw std::logic_error("a shape of too many numbers");
    std::copy(shape.begin(), shape.end(), shape_.begin());
    under_way().push_back(this);
}

Watch::~Watch() {
    std::vector<const Watch*>& all = under_way();
    all.erase(std::find(all.begin(), all.end(), this));
}

void Watch::check(const stamp_t& earlier, direction_t direction, const char* what,
                  const void* element, std::size_t size) const {
    if (claim_.direction == RAW && direction != RAW) return;
    const std::int64_t distance = now_.iteration - earlier.iteration;
    if (earlier.entry != now_.entry || distance == 0 || distance >= claim_.distance) return;
    const auto at = static_cast<const char*>(element) - static_cast<const char*>(claim_.memory);
    std::string text = std::string(claim_.loop) + ": " + claim_.array + ", element " +
                       std::to_string(at / static_cast<std::ptrdiff_t>(size)) + ", " + what + ", " +
                       "distance " + std::to_string(distance) + "; stated: ";
    text += claim_.distance == NEVER ? "never" : std::to_string(claim_.distance);
    text += std::string("; shape (") + claim_.shape_names + ") = (";
    for (std::size_t i = 0; i < n_shape_; ++i) {
        text += (i > 0 ? ", " : "") + std::to_string(shape_[i]);
    }
    dataflow::throw_fault(n_violations, text + ")");
}

nest_t watches_over(const void* element) {
    nest_t nest = {};
    std::size_t n = 0;
    for (const Watch* const watch : under_way()) {
        const auto first = reinterpret_cast<std::uintptr_t>(watch->claim().memory);
        const auto at = reinterpret_cast<std::uintptr_t>(element);
        if (at < first || at - first >= watch->claim().bytes) continue;
        if (n == MAX_NEST) throw std::logic_error("an array is watched by too many loops at once");
        nest[n++] = watch;
    }
    return nest;
}

}  // namespace dependence
}  // namespace ecorl

extern "C" {

std::int64_t dependence_violations() {
    return ecorl::dependence::n_violations.load(std::memory_order_relaxed);
}
}

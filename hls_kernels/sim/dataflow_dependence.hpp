// Dependences between iterations of a pipelined loop, as the strict C-simulation sees them. Vitis
// never sees this file; kernels state dependences with include/ecorl_dependence.hpp.
//
// Each element of a watched array remembers the iterations that wrote and read it last. Where an
// iteration comes closer to an earlier one than the array's DEPENDENCE pragma says, the access
// throws `dataflow::fault`. What is held is what ran: the shapes of that run, and no others.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

namespace ecorl {
namespace dependence {

/// An iteration of one entry of a loop; entries are numbered from 1 on, in all loops together.
struct stamp_t {
    std::int64_t entry = 0, iteration = 0;
    bool operator==(const stamp_t& other) const {
        return entry == other.entry && iteration == other.iteration;
    }
};

/// Entries of a loop by one host thread.
struct Entry {
    stamp_t now;
};

enum direction_t { RAW, ALL };

/// In place of a distance: no dependence at all.
constexpr std::int64_t NEVER = INT64_MAX;

/// What a pragma states of an array in a loop, and where the array lies.
struct claim_t {
    const char* array;
    const char* loop;
    direction_t direction;
    std::int64_t distance;
    const void* memory;
    std::size_t bytes;
    const char* shape_names;
};

/// Begins an iteration of a loop that accesses a watched array, and ends it with its own life.
class Watch {
  public:
    static constexpr std::size_t MAX_SHAPE = 4;

    Watch(Entry& entry, const claim_t& claim, std::int64_t iteration,
          std::initializer_list<std::int64_t> shape);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

    const claim_t& claim() const { return claim_; }
    const stamp_t& now() const { return now_; }
    /// Throws where `earlier` is an iteration of this entry that is too close. `what` is said of
    /// the element: read after it was written, or the like.
    void check(const stamp_t& earlier, direction_t direction, const char* what, const void* element,
               std::size_t size) const;

  private:
    const claim_t claim_;
    const stamp_t now_;
    std::array<std::int64_t, MAX_SHAPE> shape_;
    std::size_t n_shape_;
};

/// Loops one in another that may watch the same array.
constexpr std::size_t MAX_NEST = 2;
using nest_t = std::array<const Watch*, MAX_NEST>;

/// The watches of this host thread over what lies at `element`, the outer loop's first, then
/// nullptr: only that where its array is accessed outside of the loops.
nest_t watches_over(const void* element);

/// The iterations of one loop that met an element last.
class Meetings {
  public:
    void write(const Watch& watch, const void* element, std::size_t size) {
        watch.check(written_, ALL, "is written after it was written", element, size);
        const bool is_read_now = read_ == watch.now();
        watch.check(is_read_now ? read_before_ : read_, ALL, "is written after it was read",
                    element, size);
        written_ = watch.now();
    }
    void read(const Watch& watch, const void* element, std::size_t size) {
        watch.check(written_, RAW, "is read after it was written", element, size);
        if (!(read_ == watch.now())) {
            read_before_ = read_;
            read_ = watch.now();
        }
    }

  private:
    stamp_t written_, read_, read_before_;  ///< the last iteration that read it, and that before
};

/// An element of an array under a DEPENDENCE pragma.
template <class T>
class watched {
  public:
    watched() = default;
    watched(const watched&) = delete;

    watched& operator=(const T& value) {
        const nest_t nest = watches_over(this);
        for (std::size_t i = 0; i < MAX_NEST && nest[i] != nullptr; ++i) {
            meetings_[i].write(*nest[i], this, sizeof(*this));
        }
        value_ = value;
        return *this;
    }
    watched& operator=(const watched& other) { return *this = static_cast<T>(other); }

    operator T() const {
        const nest_t nest = watches_over(this);
        for (std::size_t i = 0; i < MAX_NEST && nest[i] != nullptr; ++i) {
            meetings_[i].read(*nest[i], this, sizeof(*this));
        }
        return value_;
    }

  private:
    T value_;
    mutable std::array<Meetings, MAX_NEST> meetings_;  ///< as `nest_t` has the loops
};

template <class T>
struct is_watched_element : std::false_type {};
template <class T>
struct is_watched_element<watched<T>> : std::true_type {};

/// Whether an array has watched elements, and its size is known: a pointer's is not.
template <class Array, class Plain = std::remove_reference_t<Array>>
constexpr bool is_watched =
    std::is_array<Plain>::value && is_watched_element<std::remove_all_extents_t<Plain>>::value;

}  // namespace dependence
}  // namespace ecorl

extern "C" {

/// Dependences of all threads that were closer than stated, since the library was loaded.
std::int64_t dependence_violations();
}

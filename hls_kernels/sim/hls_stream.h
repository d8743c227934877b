// hls::stream for C-simulation with g++. Vitis brings its own; this folder is never on its path.
//
// In a process of a dataflow region of the C-simulation (dataflow.hpp) a stream is a FIFO of its
// declared depth. Elsewhere, where a process is called alone, it has no limit and a read of an
// empty stream throws std::underflow_error: on the card it would hang for ever.
#pragma once

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#ifdef ECORL_CSIM
#include "dataflow.hpp"
#endif

namespace hls {

#ifdef ECORL_CSIM
using stream_base = ecorl::dataflow::Fifo;
#else
/// A stream outside of any region.
class stream_base {
  public:
    stream_base(const stream_base&) = delete;
    stream_base& operator=(const stream_base&) = delete;

  protected:
    stream_base(const char* name, std::size_t depth) : name_(name), depth_(depth) {}

    void await_item() { throw std::underflow_error(std::string("read of empty stream ") + name_); }
    void await_room() {}
    void item_added() { ++items_; }
    void item_removed() { --items_; }
    bool is_empty() const { return items_ == 0; }
    bool is_full() const { return items_ >= depth_; }
    std::size_t items() const { return items_; }
    std::size_t depth() const { return depth_; }

  private:
    const char* const name_;
    const std::size_t depth_;
    std::size_t items_ = 0;
};
#endif

template <typename T, int DEPTH = 0>
class stream;

/// A stream as processes take it: any depth, 2 where none is declared, as in Vitis.
template <typename T>
class stream<T, 0> : public stream_base {
  public:
    explicit stream(const char* name = "(unnamed)") : stream(name, 2) {}

    bool empty() const { return this->is_empty(); }

    void write(T item) {
        if (this->is_full()) this->await_room();
        if (this->items() == capacity_) grow();
        ring_[at(this->items())] = std::move(item);
        this->item_added();
    }

    T read() {
        if (this->is_empty()) this->await_item();
        T item = std::move(ring_[first_]);
        first_ = at(1);
        this->item_removed();
        return item;
    }

  protected:
    stream(const char* name, std::size_t depth) : stream_base(name, depth) {}

  private:
    /// Place of the i-th item, 0 <= i < capacity_.
    std::size_t at(std::size_t i) const {
        const std::size_t place = first_ + i;
        return place < capacity_ ? place : place - capacity_;
    }

    void grow() {
        const std::size_t wanted = capacity_ == 0 ? this->depth() : 2 * capacity_;
        std::unique_ptr<T[]> larger(new T[wanted]);
        for (std::size_t i = 0; i < this->items(); ++i) larger[i] = std::move(ring_[at(i)]);
        ring_ = std::move(larger);
        capacity_ = wanted;
        first_ = 0;
    }

    std::unique_ptr<T[]> ring_;
    std::size_t capacity_ = 0;
    std::size_t first_ = 0;  ///< place of the oldest item
};

/// A stream with its depth.
template <typename T, int DEPTH>
class stream : public stream<T, 0> {
    static_assert(DEPTH > 0, "a FIFO holds something");

  public:
    explicit stream(const char* name = "(unnamed)") : stream<T, 0>(name, DEPTH) {}
};

}  // namespace hls

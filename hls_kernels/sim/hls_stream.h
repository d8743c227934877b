// hls::stream for C-simulation with g++. Vitis brings its own; this folder is never on its path.
#pragma once

#include <deque>
#include <stdexcept>
#include <string>
#include <utility>

namespace hls {

/// An unbounded FIFO: processes of a DATAFLOW region run one after the other in C-simulation.
template <typename T, int Depth = 0>
class stream {
  public:
    stream() = default;
    explicit stream(const char* name) : name_(name) {}
    stream(const stream&) = delete;
    stream& operator=(const stream&) = delete;

    bool empty() const { return items_.empty(); }
    void write(T item) { items_.push_back(std::move(item)); }

    /// Throws std::underflow_error on an empty stream: on the card this read would hang for ever.
    T read() {
        if (items_.empty())
            throw std::underflow_error(std::string("read of empty stream ") + name_);
        T item = std::move(items_.front());
        items_.pop_front();
        return item;
    }

  private:
    std::deque<T> items_;
    const char* name_ = "(unnamed)";
};

}  // namespace hls

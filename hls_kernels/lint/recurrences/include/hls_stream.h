// hls::stream for the recurrence analysis: reads and writes are calls that the optimiser can
// neither see into nor leave out. Only the recurrence analysis has this folder on its path.
#pragma once

extern "C" {
void ecorl_fifo_read(const void* fifo, void* item);
void ecorl_fifo_write(const void* fifo, const void* item);
bool ecorl_fifo_empty(const void* fifo);
}

namespace hls {

template <typename T, int DEPTH = 0>
class stream;

template <typename T>
class stream<T, 0> {
  public:
    explicit stream(const char* = "") {}

    bool empty() const { return ecorl_fifo_empty(this); }
    void write(const T& item) {
        const T kept = item;
        ecorl_fifo_write(this, &kept);
    }
    T read() {
        T item;
        ecorl_fifo_read(this, &item);
        const T kept = item;
        return kept;
    }

  private:
    char place_ = 0;
};

template <typename T, int DEPTH>
class stream : public stream<T, 0> {
  public:
    using stream<T, 0>::stream;
};

}  // namespace hls

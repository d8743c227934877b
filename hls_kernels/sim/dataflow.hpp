// Dataflow regions of the C-simulation: processes side by side, FIFOs of the declared depth. Vitis
// never sees this file; kernels write a region with the macros of include/ecorl_dataflow.hpp.
//
// A process is a fibre: it runs until it would read an empty FIFO or write a full one, and then
// another one of the same host thread goes on. What a process computes and the order in which it
// reads and writes do not depend on the others, so whether a region comes to a standstill does not
// depend on who runs when: a region that runs through here has FIFOs deep enough for the order of
// its reads and writes. It says nothing of the cycles that shallow FIFOs cost, nor of a pipeline
// that stalls with items in it.
//
// A region that stands still, or leaves items in a FIFO, throws `fault` with a report. Processes of
// a region share the host thread and so its `static thread_local` buffers (ECORL_BUFFER): two
// processes of one region must not be the same function or the same instance of a template where
// that has such a buffer. Arrays that a process hands to another are no FIFOs: a region of which
// all channels are arrays is written without the macros, its processes run one after the other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace ecorl {
namespace dataflow {

class Process;
class Region;
struct fifo_list;

/// A region could not go on, left items in a FIFO, or depended on itself as no pragma says.
class fault : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

/// Count a fault, keep its text for the border of the library, and throw it.
[[noreturn]] void throw_fault(std::atomic<std::int64_t>& count, const std::string& text);

/// What a region knows of a FIFO; hls::stream derives from it.
class Fifo {
  public:
    const char* name() const { return name_; }
    std::size_t items() const { return items_; }
    std::size_t depth() const { return depth_; }
    Fifo(const Fifo&) = delete;
    Fifo& operator=(const Fifo&) = delete;

  protected:
    Fifo(const char* name, std::size_t depth);
    ~Fifo();

    /// In a process: pause until there is an item. Elsewhere throws std::underflow_error.
    void await_item();
    /// In a process: pause until the FIFO is not full. Elsewhere a FIFO has no limit.
    void await_room();
    void item_added() {
        ++items_;
        if (reader_ != nullptr) wake(reader_);
    }
    void item_removed() {
        --items_;
        if (writer_ != nullptr) wake(writer_);
    }
    bool is_empty() const { return items_ == 0; }
    bool is_full() const { return items_ >= depth_; }

  private:
    friend class Region;
    friend struct fifo_list;
    static void wake(Process*& waiting);

    const char* const name_;
    const std::size_t depth_;
    std::size_t items_ = 0;
    Process* reader_ = nullptr;  ///< that waits for an item
    Process* writer_ = nullptr;  ///< that waits for room
    fifo_list* home_ = nullptr;
};

/// FIFOs of a process, of a region, or of a host thread outside of processes.
struct fifo_list {
    std::vector<Fifo*> fifos;

    void add(Fifo& fifo);
    void remove(Fifo& fifo);
    ~fifo_list();
};

/// Processes that run side by side. Made, filled and run by the macros of ecorl_dataflow.hpp.
class Region {
  public:
    explicit Region(const char* name);
    ~Region();
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;

    /// `call` is the text of a process; its name is what stands before the arguments.
    void add(const char* call, std::function<void()> body);
    /// Run all processes to their ends. Throws what a process threw, or `fault`.
    void run();

  private:
    friend class Process;
    void ended();
    void run_all();
    void cancel();
    void check_leftovers() const;
    bool is_over() const { return n_ended_ == processes_.size() || error_ != nullptr; }
    std::string standstill() const;
    void describe(std::string& text, int level) const;

    const char* const name_;
    std::vector<std::unique_ptr<Process>> processes_;
    fifo_list fifos_;
    std::size_t n_ended_ = 0;
    std::exception_ptr error_;    ///< of the first process that threw
    Process* waiting_ = nullptr;  ///< the process that runs this region within another one
};

/// Code of the C API's calls when a region could not go on; 0 is success.
constexpr std::int32_t FAULT = 3;

/// Text of the last fault, for the border of the library.
std::string last_report();

/// At the border of the library: make the call; FAULT where a region could not go on.
template <class Call>
std::int32_t guarded(const Call& call) {
    try {
        call();
    } catch (const fault&) {
        return FAULT;
    }
    return 0;
}

/// Within the library: the code of a guarded call, thrown again.
inline void check(std::int32_t code) {
    if (code == FAULT) throw fault(last_report());
}

}  // namespace dataflow
}  // namespace ecorl

extern "C" {

/// Regions of all threads that came to a standstill since the library was loaded.
std::int64_t dataflow_deadlocks();

/// Regions of all threads that left items in a FIFO.
std::int64_t dataflow_leftovers();

/// FIFOs of all threads made from now on hold at most `n` items, as if their types said so; 0: what
/// they declare. Results do not depend on it while regions run through.
void dataflow_set_depth(std::int64_t n);

/// Text of the last such fault, cut to `size` bytes with the 0 at its end; its whole length.
std::int64_t dataflow_report(char* out, std::int64_t size);
}

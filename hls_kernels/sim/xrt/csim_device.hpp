// A card without a card: real XRT on its noop driver does the host's side, the C-simulation
// computes.
//
// XRT's noop driver takes buffers, transfers and kernel starts, checks them, and reports COMPLETED
// without having computed. Here each start goes on to a worker thread, as a card would work beside
// the host: it waits until XRT reports the command as completed and then calls the kernel's top
// function from the shared library in the container's BITSTREAM section.
//
// Memory of the card is apart from the host's: a transfer that the host forgot shows in the result.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "experimental/xrt_xclbin.h"
#include "xrt/xrt_bo.h"
#include "xrt/xrt_device.h"
#include "xrt/xrt_kernel.h"

namespace ecorl {
namespace xrt_csim {

constexpr std::int32_t MAX_ARGUMENTS = 16;

/// The shared library of a container. It stays loaded until the process ends.
class Library {
  public:
    /// That of a container, loaded once in a process. Throws std::runtime_error where the container
    /// holds no library or lacks a kernel in it.
    static std::shared_ptr<const Library> of(const xrt::xclbin& xclbin);
    void* function(const std::string& kernel) const { return functions_.at(kernel); }

  private:
    explicit Library(const xrt::xclbin& xclbin);
    std::map<std::string, void*> functions_;
};

/// One start of a kernel on its way. `state` is guarded by the queue's lock.
struct Command {
    xrt::run run;
    void* function = nullptr;
    std::uint64_t arguments[MAX_ARGUMENTS] = {};
    std::shared_ptr<void> held[MAX_ARGUMENTS];  ///< memory of the buffers
    ert_cmd_state state = ERT_CMD_STATE_NEW;
};

/// Starts in order, one at a time, on a thread of its own.
class Queue {
  public:
    Queue() : thread_([this] { work(); }) {}
    ~Queue();
    void add(const std::shared_ptr<Command>& command);
    ert_cmd_state state(const Command& command);
    /// Until the command has ended, at most `timeout_ms` (0: without limit), else TIMEOUT.
    ert_cmd_state wait(const Command& command, unsigned timeout_ms);

  private:
    void work();
    static ert_cmd_state execute(Command& command);

    std::mutex lock_;
    std::condition_variable changed_;
    std::deque<std::shared_ptr<Command>> waiting_;
    bool ended_ = false;
    std::thread thread_;
};

/// A device with what was loaded into it.
struct Device {
    explicit Device(unsigned index) : device(index), queue(std::make_shared<Queue>()) {}
    xrt::uuid load(const xrt::xclbin& xclbin);
    xrt::device device;
    std::shared_ptr<Queue> queue;
    std::shared_ptr<const Library> library;
};

/// A buffer, or a part of one: XRT's on the host's side, and the card's memory behind it.
class Buffer {
  public:
    Buffer(const Device& device, std::size_t size, xrt::bo::flags flags, unsigned group);
    Buffer(const Buffer& parent, std::size_t size, std::size_t offset);
    void sync(xclBOSyncDirection direction, std::size_t size, std::size_t offset);
    xrt::bo bo;
    std::shared_ptr<std::uint8_t> memory;  ///< the card's, from the buffer's beginning
    std::size_t offset = 0;                ///< of this part
};

struct Kernel {
    Kernel(const Device& device, const xrt::uuid& uuid, const std::string& name,
           xrt::kernel::cu_access_mode mode);
    xrt::kernel kernel;
    std::shared_ptr<Queue> queue;
    std::shared_ptr<const Library> library;
    void* function;
};

/// An execution of a kernel; may be started again once it has ended.
class Run {
  public:
    explicit Run(const Kernel& kernel);
    void set_argument(int index, const Buffer& buffer);
    void set_argument(int index, int value);
    void start();
    ert_cmd_state wait(unsigned timeout_ms);
    ert_cmd_state state();

  private:
    std::shared_ptr<Command> next_command() const;
    std::shared_ptr<Queue> queue_;
    std::shared_ptr<const Library> library_;
    std::shared_ptr<Command> command_;
};

}  // namespace xrt_csim
}  // namespace ecorl

#include "csim_device.hpp"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace ecorl {
namespace xrt_csim {

namespace {

constexpr std::size_t PAGE_BYTES = 4096;

/// A file of the system's memory with these bytes.
int memory_file(const char* bytes, std::size_t size) {
    const int file = memfd_create("csim_library", MFD_CLOEXEC);
    if (file < 0) throw std::runtime_error("no memory for the container's library");
    for (std::size_t done = 0; done < size;) {
        const ssize_t n = write(file, bytes + done, size - done);
        if (n <= 0) {
            close(file);
            throw std::runtime_error("the container's library cannot be unpacked");
        }
        done += static_cast<std::size_t>(n);
    }
    return file;
}

}  // namespace

Library::Library(const xrt::xclbin& xclbin) {
    const axlf* const top = xclbin.get_axlf();
    const axlf_section_header* const section = ::xclbin::get_axlf_section(top, BITSTREAM);
    if (section == nullptr) throw std::runtime_error("the container holds no library");
    const int file = memory_file(reinterpret_cast<const char*>(top) + section->m_sectionOffset,
                                 section->m_sectionSize);
    // The file stays open: the loader knows a library by its path, and with the number free again
    // the next container's would be taken for this one.
    const std::string path = "/proc/self/fd/" + std::to_string(file);
    void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        const char* const why = dlerror();
        close(file);
        throw std::runtime_error(std::string("the container's library cannot be loaded: ") +
                                 (why != nullptr ? why : "no reason given"));
    }
    for (const xrt::xclbin::kernel& kernel : xclbin.get_kernels()) {
        void* const found = dlsym(handle, kernel.get_name().c_str());
        if (found == nullptr) {
            throw std::runtime_error("the container's library lacks " + kernel.get_name());
        }
        functions_[kernel.get_name()] = found;
    }
}

std::shared_ptr<const Library> Library::of(const xrt::xclbin& xclbin) {
    static std::mutex lock;
    static std::map<std::string, std::shared_ptr<const Library>> known;
    const std::lock_guard<std::mutex> guard(lock);
    std::shared_ptr<const Library>& found = known[xclbin.get_uuid().to_string()];
    if (found == nullptr) found.reset(new Library(xclbin));
    return found;
}

// ---- the queue ------------------------------------------------------------------------------

Queue::~Queue() {
    {
        const std::lock_guard<std::mutex> guard(lock_);
        ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void Queue::add(const std::shared_ptr<Command>& command) {
    {
        const std::lock_guard<std::mutex> guard(lock_);
        command->state = ERT_CMD_STATE_QUEUED;
        waiting_.push_back(command);
    }
    changed_.notify_all();
}

ert_cmd_state Queue::state(const Command& command) {
    const std::lock_guard<std::mutex> guard(lock_);
    return command.state;
}

ert_cmd_state Queue::wait(const Command& command, unsigned timeout_ms) {
    std::unique_lock<std::mutex> guard(lock_);
    const auto ended = [&] {
        return command.state >= ERT_CMD_STATE_COMPLETED && command.state != ERT_CMD_STATE_SUBMITTED;
    };
    if (command.state == ERT_CMD_STATE_NEW) return ERT_CMD_STATE_NEW;
    if (timeout_ms == 0) {
        changed_.wait(guard, ended);
    } else if (!changed_.wait_for(guard, std::chrono::milliseconds(timeout_ms), ended)) {
        return ERT_CMD_STATE_TIMEOUT;
    }
    return command.state;
}

void Queue::work() {
    std::unique_lock<std::mutex> guard(lock_);
    while (true) {
        changed_.wait(guard, [&] { return ended_ || !waiting_.empty(); });
        if (ended_) return;
        const std::shared_ptr<Command> command = waiting_.front();
        waiting_.pop_front();
        command->state = ERT_CMD_STATE_SUBMITTED;
        guard.unlock();
        const ert_cmd_state state = execute(*command);
        guard.lock();
        command->state = state;
        changed_.notify_all();
    }
}

/// XRT's own verdict first: it has checked the start and its buffers.
ert_cmd_state Queue::execute(Command& command) {
    try {
        const ert_cmd_state state = command.run.wait(0u);
        if (state != ERT_CMD_STATE_COMPLETED) return state;
    } catch (const std::exception&) {
        return ERT_CMD_STATE_ERROR;
    }
    // Arguments of the tops are pointers and 32-bit integers. On x86-64 and AArch64, the machines
    // that XRT runs on, each takes one register or 8 bytes of the stack, so one call fits all.
    using top_t = void (*)(std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t,
                           std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t,
                           std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t,
                           std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t);
    const std::uint64_t* const a = command.arguments;
    try {
        reinterpret_cast<top_t>(command.function)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7],
                                                  a[8], a[9], a[10], a[11], a[12], a[13], a[14],
                                                  a[15]);
    } catch (const std::exception&) {  // a dataflow region that could not go on
        return ERT_CMD_STATE_ERROR;
    }
    return ERT_CMD_STATE_COMPLETED;
}

// ---- device, buffers, kernels, runs ----------------------------------------------------------

xrt::uuid Device::load(const xrt::xclbin& xclbin) {
    const std::shared_ptr<const Library> found = Library::of(xclbin);
    const xrt::uuid uuid = device.load_xclbin(xclbin);
    library = found;
    return uuid;
}

Buffer::Buffer(const Device& device, std::size_t size, xrt::bo::flags flags, unsigned group)
    : bo(device.device, size, flags, group) {
    const std::size_t whole = (size + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    auto* const bytes = static_cast<std::uint8_t*>(std::aligned_alloc(PAGE_BYTES, whole));
    if (bytes == nullptr) throw std::bad_alloc();
    std::memset(bytes, 0xA5, whole);  // a card's memory holds anything before it is written
    memory = std::shared_ptr<std::uint8_t>(bytes, std::free);
}

Buffer::Buffer(const Buffer& parent, std::size_t size, std::size_t at)
    : bo(parent.bo, size, at), memory(parent.memory), offset(parent.offset + at) {}

void Buffer::sync(xclBOSyncDirection direction, std::size_t size, std::size_t at) {
    bo.sync(direction, size, at);  // checks the bounds
    auto* const host = bo.map<std::uint8_t*>() + at;
    std::uint8_t* const card = memory.get() + offset + at;
    if (direction == XCL_BO_SYNC_BO_TO_DEVICE) std::memcpy(card, host, size);
    if (direction == XCL_BO_SYNC_BO_FROM_DEVICE) std::memcpy(host, card, size);
}

Kernel::Kernel(const Device& device, const xrt::uuid& uuid, const std::string& name,
               xrt::kernel::cu_access_mode mode)
    : kernel(device.device, uuid, name, mode), queue(device.queue), library(device.library) {
    if (library == nullptr) throw std::runtime_error("no container is loaded");
    function = library->function(name);
}

Run::Run(const Kernel& kernel)
    : queue_(kernel.queue), library_(kernel.library), command_(std::make_shared<Command>()) {
    command_->run = xrt::run(kernel.kernel);
    command_->function = kernel.function;
}

void Run::set_argument(int index, const Buffer& buffer) {
    command_ = next_command();
    command_->run.set_arg(index, buffer.bo);  // checks that the bank is connected
    command_->arguments[index] =
        reinterpret_cast<std::uintptr_t>(buffer.memory.get() + buffer.offset);
    command_->held[index] = buffer.memory;
}

void Run::set_argument(int index, int value) {
    command_ = next_command();
    command_->run.set_arg(index, value);
    command_->arguments[index] = static_cast<std::uint32_t>(value);
}

/// Arguments of an execution that is over carry on to the next.
std::shared_ptr<Command> Run::next_command() const {
    if (queue_->state(*command_) == ERT_CMD_STATE_NEW) return command_;
    const auto next = std::make_shared<Command>(*command_);
    next->state = ERT_CMD_STATE_NEW;
    return next;
}

void Run::start() {
    command_ = next_command();
    command_->run.start();
    queue_->add(command_);
}

ert_cmd_state Run::wait(unsigned timeout_ms) {
    return queue_->wait(*command_, timeout_ms);
}

ert_cmd_state Run::state() {
    return queue_->state(*command_);
}

}  // namespace xrt_csim
}  // namespace ecorl

#include "dataflow_fibre.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define ECORL_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ECORL_ADDRESS_SANITIZER 1
#endif
#endif

#ifdef ECORL_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace ecorl {
namespace dataflow {

namespace {

#ifdef ECORL_ADDRESS_SANITIZER
constexpr std::size_t STACK_BYTES = std::size_t{4} << 20;  // its frames are wider

void leave_stack(void** shadow, const void* to, std::size_t size) {
    __sanitizer_start_switch_fiber(shadow, to, size);
}
void reach_stack(void* shadow, const void** from, std::size_t* size) {
    __sanitizer_finish_switch_fiber(shadow, from, size);
}
void forget_frames(const stack_t& stack) {
    __asan_unpoison_memory_region(stack.bottom(), stack.size);
}
#else
/// Only what is touched takes memory. Large buffers of kernels are not on the stack (ECORL_BUFFER).
constexpr std::size_t STACK_BYTES = std::size_t{1} << 20;

void leave_stack(void**, const void*, std::size_t) {}
void reach_stack(void*, const void**, std::size_t*) {}
void forget_frames(const stack_t&) {}
#endif

/// Stacks of a host thread that are free, kept for its next region.
class Stacks {
  public:
    Stacks() = default;
    Stacks(const Stacks&) = delete;
    Stacks& operator=(const Stacks&) = delete;
    ~Stacks() {
        for (const stack_t& stack : free_) release(stack);
    }

    stack_t take() {
        free_.reserve(MOST);  // so that giving back needs no memory
        if (free_.empty()) return make();
        const stack_t stack = free_.back();
        free_.pop_back();
        return stack;
    }
    void give_back(const stack_t& stack) {
        forget_frames(stack);
        if (free_.size() < MOST) {
            free_.push_back(stack);
        } else {
            release(stack);
        }
    }

  private:
    static constexpr std::size_t MOST = 32;

    static stack_t make() {
        const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        const stack_t stack = {nullptr, page, STACK_BYTES};
        void* const memory = mmap(nullptr, page + STACK_BYTES, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        const stack_t made = {static_cast<char*>(memory), stack.guard, stack.size};
        if (mprotect(memory, page, PROT_NONE) != 0) {
            release(made);
            throw std::bad_alloc();
        }
        return made;
    }
    static void release(const stack_t& stack) { munmap(stack.memory, stack.guard + stack.size); }

    std::vector<stack_t> free_;
};

Stacks& stacks() {
    static thread_local Stacks own;
    return own;
}

}  // namespace

Fibre::Fibre(std::function<void()> body) : body_(std::move(body)), stack_(stacks().take()) {
    getcontext(&own_);
    own_.uc_stack.ss_sp = stack_.bottom();
    own_.uc_stack.ss_size = stack_.size;
    own_.uc_link = nullptr;
    const auto self = reinterpret_cast<std::uintptr_t>(this);
    makecontext(&own_, reinterpret_cast<void (*)()>(&Fibre::enter), 2,
                static_cast<unsigned>(static_cast<std::uint64_t>(self) >> 32),
                static_cast<unsigned>(self));
    // makecontext has set the stack pointer. AddressSanitizer would declare the whole stack clean
    // at every switch where it finds its size here.
    own_.uc_stack.ss_sp = nullptr;
    own_.uc_stack.ss_size = 0;
}

Fibre::~Fibre() {
    stacks().give_back(stack_);
}

void Fibre::resume() {
    has_begun_ = true;
    void* shadow = nullptr;
    leave_stack(&shadow, stack_.bottom(), stack_.size);
    swapcontext(&resumer_, &own_);
    reach_stack(shadow, nullptr, nullptr);
}

void Fibre::pause() {
    leave_stack(&shadow_, resumer_bottom_, resumer_size_);
    swapcontext(&own_, &resumer_);
    reach_stack(shadow_, &resumer_bottom_, &resumer_size_);
}

void Fibre::enter(unsigned high, unsigned low) {
    const auto self = static_cast<std::uint64_t>(high) << 32 | low;
    reinterpret_cast<Fibre*>(static_cast<std::uintptr_t>(self))->run();
}

void Fibre::run() {
    reach_stack(nullptr, &resumer_bottom_, &resumer_size_);
    body_();
    has_ended_ = true;
    leave_stack(nullptr, resumer_bottom_, resumer_size_);  // this stack is not needed any more
    setcontext(&resumer_);
}

}  // namespace dataflow
}  // namespace ecorl

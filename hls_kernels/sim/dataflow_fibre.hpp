// A function on a stack of its own that can pause. Vitis never sees this file.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <functional>

namespace ecorl {
namespace dataflow {

/// Memory of a stack, an inaccessible page below it.
struct stack_t {
    char* memory;  ///< from the inaccessible page on
    std::size_t guard, size;
    char* bottom() const { return memory + guard; }
};

/// A function that runs on a stack of its own, on the host thread that made it. It pauses itself
/// and goes on when it is resumed. No exception may leave it.
class Fibre {
  public:
    /// Throws std::bad_alloc when no stack is to be had.
    explicit Fibre(std::function<void()> body);
    /// The function has not begun, or has ended.
    ~Fibre();
    Fibre(const Fibre&) = delete;
    Fibre& operator=(const Fibre&) = delete;

    /// Run until the function pauses or ends. A fibre may resume another one.
    void resume();
    /// Called by the function itself: go back to whoever resumed it.
    void pause();
    bool has_begun() const { return has_begun_; }
    bool has_ended() const { return has_ended_; }

  private:
    static void enter(unsigned high, unsigned low);
    void run();

    std::function<void()> body_;
    stack_t stack_;
    ucontext_t own_, resumer_;
    void* shadow_ = nullptr;  ///< what AddressSanitizer keeps of a paused stack
    const void* resumer_bottom_ = nullptr;
    std::size_t resumer_size_ = 0;
    bool has_begun_ = false;
    bool has_ended_ = false;
};

}  // namespace dataflow
}  // namespace ecorl

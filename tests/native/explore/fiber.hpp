// One actor's thread of control, switched to and from by hand.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstdint>
#include <memory>

namespace mo::explore {

class Fiber {
  public:
    // `body` must not return.
    void prepare(void (*body)(unsigned), unsigned argument);
    // From the scheduler: runs it until it leaves.
    void enter();
    // From the fiber: back to the scheduler, until it is entered again (or never).
    void leave();

  private:
    // What the C++ runtime keeps per system thread: exceptions that are being handled. Travels with the fiber.
    struct Exceptions {
        void* caught = nullptr;
        unsigned uncaught = 0;
    };
    void swap_exceptions() noexcept;

    ucontext_t start_;
    jmp_buf here_;
    std::unique_ptr<uint8_t[]> stack_;
    bool started_ = false;
    Exceptions exceptions_;
};

}  // namespace mo::explore

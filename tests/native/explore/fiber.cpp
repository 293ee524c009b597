#include "fiber.hpp"

#include <cxxabi.h>

#include <utility>

#include "arena.hpp"

namespace mo::explore {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10;
jmp_buf scheduler;

}  // namespace

void Fiber::prepare(void (*body)(unsigned), unsigned argument) {
    const Outside outside;
    if (!stack_) stack_ = std::make_unique<uint8_t[]>(kStackBytes);
    getcontext(&start_);
    start_.uc_stack.ss_sp = stack_.get();
    start_.uc_stack.ss_size = kStackBytes;
    start_.uc_link = nullptr;
    makecontext(&start_, reinterpret_cast<void (*)()>(body), 1, argument);
    started_ = false;
    exceptions_ = {};
}

void Fiber::swap_exceptions() noexcept {
    auto& theirs = *reinterpret_cast<Exceptions*>(abi::__cxa_get_globals());
    std::swap(theirs.caught, exceptions_.caught);
    std::swap(theirs.uncaught, exceptions_.uncaught);
}

void Fiber::enter() {
    swap_exceptions();
    // Jumps instead of swapcontext, which makes a system call each time.
    if (_setjmp(scheduler) == 0) {
        if (started_) _longjmp(here_, 1);
        started_ = true;
        setcontext(&start_);
    }
    swap_exceptions();
}

void Fiber::leave() {
    if (_setjmp(here_) == 0) _longjmp(scheduler, 1);
}

}  // namespace mo::explore

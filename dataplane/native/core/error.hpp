// What the core throws. Messages say which thing failed and why, with the errno in words.
#pragma once

#include <cerrno>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace mo {

// A system call failed, or a peer's layout is not ours.
class RingError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// A lease was used after its end, or ended while somebody still looks at its memory.
class LeaseError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// The producer finished, or was declared dead, and everything up to `final_seq` was taken.
class RingEnded : public std::runtime_error {
  public:
    RingEnded(const char* reason, uint64_t final_seq)
        : std::runtime_error("the ring has ended (" + std::string(reason) + ") at sequence " +
                             std::to_string(final_seq)),
          reason(reason), final_seq(final_seq) {}

    const char* reason;  // one of the names in names.hpp: static
    uint64_t final_seq;
};

// Throws RingError "WHAT: the errno in words".
[[noreturn]] void fail_errno(const std::string& what, int error = errno);

}  // namespace mo

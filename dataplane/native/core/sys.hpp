// File descriptors, memfds, seals and mappings, each freed by its owner's destructor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace mo {

class Fd {
  public:
    Fd() = default;
    explicit Fd(int fd) noexcept : fd_(fd) {}
    Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Fd& operator=(Fd&& other) noexcept {
        if (this != &other) {
            reset();
            fd_ = std::exchange(other.fd_, -1);
        }
        return *this;
    }
    ~Fd() { reset(); }

    // A second descriptor of the same file, close-on-exec.
    static Fd duplicate(int fd, const std::string& what);

    int get() const noexcept { return fd_; }
    explicit operator bool() const noexcept { return fd_ >= 0; }
    void reset() noexcept;

  private:
    int fd_ = -1;
};

enum class Access { read_only, read_write };

// A shared mapping of a whole file.
class Mapping {
  public:
    Mapping() = default;
    // `what` names the thing in errors ("event ring").
    Mapping(int fd, size_t bytes, Access access, const std::string& what);
    Mapping(Mapping&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Mapping& operator=(Mapping&& other) noexcept {
        if (this != &other) {
            reset();
            data_ = std::exchange(other.data_, nullptr);
            bytes_ = std::exchange(other.bytes_, 0);
        }
        return *this;
    }
    ~Mapping() { reset(); }

    uint8_t* data() const noexcept { return data_; }
    size_t bytes() const noexcept { return bytes_; }
    explicit operator bool() const noexcept { return data_ != nullptr; }
    void reset() noexcept;

  private:
    uint8_t* data_ = nullptr;
    size_t bytes_ = 0;
};

inline constexpr size_t kPageBytes = 4096;
inline constexpr size_t kHugePageBytes = size_t{2} << 20;

inline constexpr uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

// An empty memfd that allows sealing, close-on-exec, of `bytes` zeros.
Fd create_memfd(const char* name, size_t bytes);

void add_seals(int fd, int seals, const std::string& what);
// RingError unless the file has all of `seals`: without F_SEAL_SHRINK a peer could make our reads fault.
void require_seals(int fd, int seals, const std::string& what);
// RingError for a file on huge pages: its owner can punch holes into it, and touching one where no huge page is left is
// a SIGBUS, whatever the seals.
void require_plain_pages(int fd, const std::string& what);
size_t file_bytes(int fd, const std::string& what);

// 64 random bits, never 0.
uint64_t random_id();

// SIGKILL for this process when the thread that made it dies; RingError when that has happened already.
void die_with_parent(int64_t parent_pid);

}  // namespace mo

#include "sys.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstring>
#ifdef __SANITIZE_THREAD__
#include <map>
#include <mutex>
#endif

#include "error.hpp"

namespace mo {

void fail_errno(const std::string& what, int error) {
    // The GNU variant: may return a static string instead of filling the buffer.
    char buffer[128];
    throw RingError(what + ": " + strerror_r(error, buffer, sizeof buffer));
}

Fd Fd::duplicate(int fd, const std::string& what) {
    const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) fail_errno("cannot duplicate the descriptor of the " + what);
    return Fd(copy);
}

void Fd::reset() noexcept {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
}

#ifdef __SANITIZE_THREAD__
// ThreadSanitizer knows memory by its address: two mappings of one file are strangers to it, and it would see
// no race through them. So in its builds all mappings of a file are the first writable one.
namespace {

struct Shared {
    ino_t inode;
    size_t uses;
};
std::mutex shared_lock;
std::map<void*, Shared> shared;

void* share(int fd, size_t bytes, Access access, void* fresh) {
    struct stat status;
    if (fstat(fd, &status) != 0) return fresh;
    const std::lock_guard guard(shared_lock);
    for (auto& [data, known] : shared) {
        if (known.inode != status.st_ino) continue;
        munmap(fresh, bytes);
        ++known.uses;
        return data;
    }
    if (access == Access::read_write) shared[fresh] = {status.st_ino, 1};
    return fresh;
}

bool is_shared_still(void* data) {
    const std::lock_guard guard(shared_lock);
    const auto found = shared.find(data);
    if (found == shared.end()) return false;
    if (--found->second.uses > 0) return true;
    shared.erase(found);
    return false;
}

}  // namespace
#else
namespace {
void* share(int, size_t, Access, void* fresh) { return fresh; }
bool is_shared_still(void*) { return false; }
}  // namespace
#endif

Mapping::Mapping(int fd, size_t bytes, Access access, const std::string& what) {
    const int protection = access == Access::read_write ? PROT_READ | PROT_WRITE : PROT_READ;
    void* data = mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) fail_errno("cannot map " + std::to_string(bytes) + " bytes of the " + what);
    data_ = static_cast<uint8_t*>(share(fd, bytes, access, data));
    bytes_ = bytes;
}

void Mapping::reset() noexcept {
    if (data_ != nullptr && !is_shared_still(data_)) munmap(data_, bytes_);
    data_ = nullptr;
    bytes_ = 0;
}

Fd create_memfd(const char* name, size_t bytes) {
    Fd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd) fail_errno(std::string("cannot create the memfd ") + name);
    if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
        fail_errno(std::string("cannot give the memfd ") + name + " " + std::to_string(bytes) + " bytes");
    return fd;
}

void add_seals(int fd, int seals, const std::string& what) {
    if (fcntl(fd, F_ADD_SEALS, seals) != 0) fail_errno("cannot seal the " + what);
}

void require_seals(int fd, int seals, const std::string& what) {
    const int found = fcntl(fd, F_GET_SEALS);
    if (found < 0) fail_errno("cannot read the seals of the " + what);
    // F_SEAL_WRITE says more than F_SEAL_FUTURE_WRITE.
    const int effective = found | ((found & F_SEAL_WRITE) ? F_SEAL_FUTURE_WRITE : 0);
    if ((effective & seals) == seals) return;
    const int missing = seals & ~effective;
    std::string words;
    if (missing & F_SEAL_SHRINK) words += " shrinking";
    if (missing & F_SEAL_GROW) words += " growing";
    if (missing & F_SEAL_FUTURE_WRITE) words += " writing";
    throw RingError("the " + what + " is not sealed against" + words);
}

void require_plain_pages(int fd, const std::string& what) {
    struct statfs status;
    if (fstatfs(fd, &status) != 0) fail_errno("cannot look at the " + what);
    if (status.f_type == HUGETLBFS_MAGIC) throw RingError("the " + what + " is on huge pages");
}

size_t file_bytes(int fd, const std::string& what) {
    struct stat status;
    if (fstat(fd, &status) != 0) fail_errno("cannot look at the " + what);
    return static_cast<size_t>(status.st_size);
}

uint64_t random_id() {
    uint64_t id = 0;
    while (id == 0) {
        if (getrandom(&id, sizeof id, 0) != static_cast<ssize_t>(sizeof id)) fail_errno("no random bytes");
    }
    return id;
}

void die_with_parent(int64_t parent_pid) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) fail_errno("cannot ask for a signal at the parent's death");
    // Asked first, looked after: a parent that died in between is noticed here.
    const pid_t parent = getppid();
    if (parent != parent_pid) {
        throw RingError("the parent " + std::to_string(parent_pid) + " is gone (the parent is now " +
                        std::to_string(parent) + ")");
    }
}

}  // namespace mo

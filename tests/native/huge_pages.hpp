// The hugetlb pool of the machine, enlarged for a test and put back.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "check.hpp"

namespace rig {

// One test at a time has them, also of other processes: the lock file holds the number to go back to, which a test
// that was killed leaves for the next one. The Python tests (tests/dataplane/huge_pages.py) use the same file.
class HugePages {
  public:
    // 0 or more pages of 2 MB in all.
    explicit HugePages(long count) {
        const char* folder = std::getenv("TMPDIR");
        const std::string path = std::string(folder != nullptr ? folder : "/tmp") + "/observatory-test-hugepages.lock";
        lock_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        CHECK(lock_ >= 0 && flock(lock_, LOCK_EX) == 0);
        char text[32] = {};
        if (pread(lock_, text, sizeof text - 1, 0) > 0) set(std::atol(text));
        before_ = get();
        const std::string words = std::to_string(before_);
        CHECK(pwrite(lock_, words.c_str(), words.size(), 0) == static_cast<ssize_t>(words.size()));
        set(count);
        granted = get() == count;
    }
    ~HugePages() {
        set(before_);
        CHECK(ftruncate(lock_, 0) == 0);
        close(lock_);
    }
    HugePages(const HugePages&) = delete;
    HugePages& operator=(const HugePages&) = delete;

    bool granted;

    static long get() {
        long count = -1;
        if (FILE* file = std::fopen(kPath, "re")) {
            if (std::fscanf(file, "%ld", &count) != 1) count = -1;
            std::fclose(file);
        }
        return count;
    }

  private:
    static constexpr const char* kPath = "/proc/sys/vm/nr_hugepages";

    static void set(long count) {
        if (FILE* file = std::fopen(kPath, "we")) {
            std::fprintf(file, "%ld", count);
            std::fclose(file);
        }
    }

    int lock_;
    long before_;
};

// Whether what this machine normally permits has to work: skipping it would hide a defect.
inline bool must_run() {
    const char* ci = std::getenv("CI");
    return ci != nullptr && std::strcmp(ci, "true") == 0 && geteuid() == 0;
}

}  // namespace rig

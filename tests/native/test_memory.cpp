// Where slabs lie and on which pages; what is refused, with numbers; what limits of the system do to it.
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <vector>

#include "host_memory.hpp"
#include "huge_pages.hpp"
#include "rig.hpp"

namespace {

using namespace rig;

constexpr size_t kHuge = size_t{2} << 20;

// A made-up machine's /proc and /sys.
class Machine {
  public:
    Machine() {
        char name[] = "/tmp/observatory-machine-XXXXXX";
        CHECK(mkdtemp(name) != nullptr);
        root = name;
    }
    ~Machine() { std::filesystem::remove_all(root); }
    void file(const std::string& path, const std::string& text) const {
        const std::filesystem::path whole = root + path;
        std::filesystem::create_directories(whole.parent_path());
        std::ofstream(whole) << text;
    }
    std::string root;
};

// Runs `test` in a process of its own, which it may limit as it likes.
void apart(const std::function<void()>& test) {
    std::fflush(stderr);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        test();
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// Page faults of this process so far; 0 under a sanitizer, whose own memory faults too.
long faults() {
    if (kSlowdown != 1) return 0;
    rusage usage{};
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    return usage.ru_minflt;
}

SlabPool one(const SizeClass& wanted) { return SlabPool({&wanted, 1}); }

void memory_of_a_made_up_machine() {
    const Machine machine;
    machine.file("/proc/meminfo", "MemTotal:  100 kB\nMemFree: 5 kB\nMemAvailable:   80 kB\n");
    machine.file("/sys/devices/system/node/has_memory", "0-1,3\n");
    machine.file("/sys/devices/system/node/node1/meminfo",
                 "Node 1 MemTotal: 90 kB\nNode 1 MemFree:         40 kB\nNode 1 Inactive:  70 kB\n"
                 "Node 1 Inactive(anon): 9 kB\nNode 1 Inactive(file):     7 kB\n");
    machine.file("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "5\n");
    machine.file("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "2\n");
    machine.file("/sys/devices/system/node/node3/hugepages/hugepages-2048kB/free_hugepages", "4\n");
    CHECK(available_memory(machine.root).bytes == 80 * 1024);
    CHECK(memory_nodes(machine.root) == std::vector<int>({0, 1, 3}));
    CHECK(node_names(memory_nodes(machine.root)) == "node0, node1, node3");
    CHECK(node_memory(1, machine.root)->bytes == 47 * 1024);
    CHECK(!node_memory(2, machine.root));
    CHECK(free_hugetlb_bytes(-1, machine.root) == 3 * kHuge && free_hugetlb_bytes(3, machine.root) == 4 * kHuge);
    CHECK(free_hugetlb_bytes(0, machine.root) == 0);

    CHECK(!shmem_takes_huge_advice(machine.root));
    const std::string thp = "/sys/kernel/mm/transparent_hugepage/";
    machine.file(thp + "shmem_enabled", "always within_size [advise] never deny force\n");
    CHECK(shmem_takes_huge_advice(machine.root));
    machine.file(thp + "hugepages-2048kB/shmem_enabled", "always [inherit] within_size advise never\n");
    CHECK(shmem_takes_huge_advice(machine.root));
    machine.file(thp + "hugepages-2048kB/shmem_enabled", "always inherit within_size advise [never]\n");
    CHECK(!shmem_takes_huge_advice(machine.root));
}

void a_node_has_its_slabs() {
    const std::vector<int> nodes = memory_nodes();
    if (nodes.empty()) {
        std::fprintf(stderr, "  skipped: the kernel lists no nodes\n");
        return;
    }
    const int node = nodes.back();
    SlabPool pool = one({1 << 20, 3, false, false, 2, "node" + std::to_string(node)});
    const MadeClass& made = pool.classes()[0];
    CHECK(made.domain == "node" + std::to_string(node) && made.note.empty() && made.reserved);
    // As the kernel tells it itself: the policy of the mapping, and all pages on that node.
    std::ifstream maps("/proc/self/numa_maps");
    std::string line;
    int seen = 0;
    const std::string bound = " bind:" + std::to_string(node) + " ", lie = " N" + std::to_string(node) + "=";
    while (std::getline(maps, line)) {
        if (line.find("observatory-slab") == std::string::npos) continue;
        CHECK(line.find(bound) != std::string::npos && line.find(lie) != std::string::npos);
        seen += std::atoi(line.c_str() + line.find(lie) + lie.size());
    }
    CHECK(seen == 3 * 256);  // pages, of both slabs
}

void other_domains_are_refused() {
    CHECK_THROWS(one({4096, 1, false, false, 0, "node977"}), RingError, "has no memory on node977; it has: node0");
    CHECK_THROWS(one({4096, 1, false, false, 0, "n0/gpu3"}), RingError, "no slabs in the memory of n0/gpu3");
    CHECK_THROWS(one({4096, 1, false, false, 0, "node"}), RingError, "no slabs in the memory of node");
    // A device that is a model only: the host's memory stands in, and is shown as what it is.
    SlabPool pool = one({4096, 1, false, true, 0, "emulated:n0/gpu3"});
    CHECK(pool.classes()[0].domain.starts_with("node") || pool.classes()[0].domain.empty());
}

void forbid(long call) {
    const sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{std::size(code), const_cast<sock_filter*>(code)};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

void a_filter_that_refuses_mbind_is_reported() {
    if (memory_nodes().empty()) return;
    const int node = memory_nodes().front();
    apart([node] {
        forbid(SYS_mbind);
        SlabPool pool = one({4096, 4, false, false, 0, "node" + std::to_string(node)});
        CHECK(pool.classes()[0].note == "memory could not be bound to node" + std::to_string(node) +
                                            " (mbind: Operation not permitted)");
        CHECK(!pool.classes()[0].domain.empty());  // but where it lies is known
        forbid(SYS_move_pages);
        SlabPool blind = one({4096, 4, false, false, 0, "node" + std::to_string(node)});
        CHECK(blind.classes()[0].domain.empty() && !blind.classes()[0].note.empty());
    });
}

void on_2_mb_pages() {
    const HugePages pool(16);
    if (!pool.granted) {
        CHECK(!must_run());
        std::fprintf(stderr, "  skipped: vm.nr_hugepages cannot be raised to 16 here\n");
        return;
    }
    {
        // Two slabs of two slots of 3,002,368 bytes each: 6,004,736 bytes, on 3 pages of 2 MB.
        SlabPool made = one({3'000'000, 4, true, false, 2});
        const MadeClass& kind = made.classes()[0];
        CHECK(kind.pages == Pages::hugetlb && kind.page_bytes() == kHuge && kind.reserved && kind.note.empty());
        CHECK(kind.slab_bytes == 6 * kHuge && kind.waste_bytes() == 6 * kHuge - 4 * 3'002'368);
        CHECK(free_hugetlb_bytes(-1) == 10 * kHuge);
        struct stat status;
        CHECK(fstat(made.fd(1), &status) == 0 && status.st_blksize == static_cast<blksize_t>(kHuge));
        CHECK(made.stats(true).classes[0].resident_bytes == 6 * kHuge);
        std::memset(made.data({1, 1}), 1, 3'000'000);
        // Sealed like any other slab.
        CHECK(mmap(nullptr, kHuge, PROT_READ | PROT_WRITE, MAP_SHARED, made.fd(0), 0) == MAP_FAILED);
        CHECK(fallocate(made.fd(0), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kHuge) < 0);
        if (!memory_nodes().empty()) {
            SlabPool bound = one({kHuge, 2, true, false, 0, "node" + std::to_string(memory_nodes().front())});
            CHECK(bound.classes()[0].pages == Pages::hugetlb);
            CHECK(bound.classes()[0].domain == "node" + std::to_string(memory_nodes().front()));
        }
        // 10 are left: what needs 11 gets ordinary pages, all of it, and says why.
        SlabPool more = one({kHuge, 11, true});
        CHECK(more.classes()[0].pages != Pages::hugetlb && more.classes()[0].reserved);
        CHECK(more.classes()[0].note.find("11 pages of 2 MB are needed, 10 are free") != std::string::npos);
        CHECK(free_hugetlb_bytes(-1) == 10 * kHuge);
    }
    CHECK(free_hugetlb_bytes(-1) == 16 * kHuge);
    // A consumer reads them like any other.
    auto p = producer(8, {{kHuge, 2, true}});
    auto c = consumer(*p);
    CHECK(p->pool().made(0).pages == Pages::hugetlb && publish(*p, 7, 1 << 20));
    auto taken = c->try_take();
    CHECK(taken && holds(*taken, 7));
    c->release(*taken);
}

void small_slabs_take_no_2_mb_page() {
    SlabPool pool = one({4096, 4, true});
    CHECK(pool.classes()[0].pages == Pages::small && pool.classes()[0].slab_bytes == 16384);
    CHECK(pool.classes()[0].note == "16384 bytes would waste more than half of their 2 MB pages");
}

void transparent_2_mb_pages_where_the_kernel_makes_them() {
    constexpr const char* kPath = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    const HugePages none(0);  // the lock, and no hugetlb pages in the way
    std::ifstream setting(kPath);
    std::string before;
    std::getline(setting, before);
    const auto set = [](const std::string& word) {
        return static_cast<bool>(std::ofstream(kPath) << word << std::flush);
    };
    if (!none.granted || before.empty() || !set("advise")) {
        CHECK(!must_run() || before.empty());
        std::fprintf(stderr, "  skipped: transparent_hugepage/shmem_enabled cannot be set here\n");
        return;
    }
    {
        SlabPool pool = one({3'000'000, 2, true});
        const MadeClass& made = pool.classes()[0];
        if (made.pages == Pages::thp) {  // memory may be too fragmented for them
            CHECK(made.page_bytes() == kHuge && made.slab_bytes == 3 * kHuge);
            CHECK(pmd_mapped_bytes(pool.memory({0, 0})->data()) == 3 * kHuge);
        }
        CHECK(made.reserved && made.note.starts_with("no 2 MB pages from the hugetlb pool"));
        CHECK((made.pages == Pages::thp) == (made.note.find("transparent") == std::string::npos));
    }
    set("never");
    SlabPool pool = one({3'000'000, 2, true});
    CHECK(pool.classes()[0].pages == Pages::small && pool.classes()[0].slab_bytes == 6'004'736);
    CHECK(pool.stats(true).classes[0].resident_bytes == 6'004'736);
    const size_t begin = before.find('[');
    CHECK(set(before.substr(begin + 1, before.find(']') - begin - 1)));
}

void what_does_not_fit_is_refused_before_anything_is_made() {
    const uint64_t has = available_memory().bytes;
    const uint64_t half = has / 2 / 4096 * 4096 + (64 << 20);
    // Each alone would fit: together they do not, and no slab of the first is made and populated for nothing.
    const SizeClass both[] = {{half, 1, false, true}, {half, 1, false, true}};
    const long before = faults();
    CHECK_THROWS(SlabPool(both), RingError, ("cannot reserve " + std::to_string(2 * half) + " bytes for slabs (1 x " +
                                             std::to_string(half) + " + 1 x " + std::to_string(half) + ")")
                                                .c_str());
    CHECK(faults() - before < 1000);
    const auto nodes = memory_nodes();
    if (nodes.empty()) return;
    const std::string node = "node" + std::to_string(nodes.front());
    CHECK_THROWS(one({uint64_t{1} << 40, 2, false, false, 0, node}), RingError, ("on " + node).c_str());
    CHECK_THROWS(one({uint64_t{1} << 40, 2, false, false, 0, node}), RingError, "MemFree and Inactive(file) of");
    // Unreserved memory is nobody's promise.
    SlabPool pool = one({half, 3});
    CHECK(pool.stats(true).classes[0].resident_bytes == 0);
}

// A control group of its own with so much memory, for one child; removed at the end.
class Group {
  public:
    explicit Group(uint64_t bytes) {
        const bool unified = std::filesystem::exists("/sys/fs/cgroup/cgroup.controllers");
        path = std::string("/sys/fs/cgroup/") + (unified ? "" : "memory/") + "observatory-test-" +
               std::to_string(getpid());
        std::error_code failed;
        std::filesystem::create_directory(path, failed);
        made = !failed;
        usable = made && static_cast<bool>(std::ofstream(path + (unified ? "/memory.max" : "/memory.limit_in_bytes"))
                                           << bytes << std::flush);
    }
    ~Group() {
        if (made) rmdir(path.c_str());
    }
    void enter() const {
        CHECK(static_cast<bool>(std::ofstream(path + "/cgroup.procs") << getpid() << std::flush));
    }
    std::string path;
    bool made = false, usable = false;
};

void a_control_group_is_looked_at_before_the_kernel_kills() {
    const Group group(32 << 20);
    if (!group.usable) {
        CHECK(!must_run());
        std::fprintf(stderr, "  skipped: no control group with a memory limit can be made here\n");
        return;
    }
    apart([&] {
        group.enter();
        CHECK_THROWS(one({1 << 20, 64, false, true}), RingError, "cannot reserve 67108864 bytes for slabs");
        CHECK_THROWS(one({1 << 20, 64, false, true}), RingError, (group.path + "/memory.").c_str());
        SlabPool fits = one({1 << 20, 8, false, true});
        CHECK(fits.stats(true).classes[0].resident_bytes == 8 << 20);
    });
}

void a_file_size_limit_is_an_error_and_no_signal() {
    apart([] {
        const rlimit limit{1 << 20, 1 << 20};
        CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
        CHECK_THROWS(one({1 << 20, 2}), RingError, "larger than a file may be here: 1048576 bytes (RLIMIT_FSIZE");
        SlabPool pool = one({1 << 19, 2});
    });
}

void a_later_class_that_fails_leaves_nothing() {
    apart([] {
        const SizeClass classes[] = {{1 << 20, 4}, {1 << 20, 4}, {1 << 20, 4}};
        const int lowest = dup(0);
        close(lowest);
        const rlimit limit{static_cast<rlim_t>(lowest) + 2, static_cast<rlim_t>(lowest) + 2};
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        CHECK_THROWS(SlabPool(classes), RingError, "Too many open files");
        const int again = dup(0);
        CHECK(again == lowest);
        std::ifstream maps;
        close(again);
        maps.open("/proc/self/maps");
        std::string line;
        while (std::getline(maps, line)) CHECK(line.find("observatory-slab") == std::string::npos);
    });
}

void prefaulted_slots_do_not_fault() {
    SlabPool pool = one({1 << 20, 4});
    CHECK(pool.stats(true).classes[0].resident_bytes == 0);
    const auto maps = pool.mappings();
    pool.data({0, 1})[5] = 42;
    prefault(maps);
    CHECK(pool.data({0, 1})[5] == 42 && pool.stats(true).classes[0].resident_bytes == 4 << 20);
    const long before = faults();
    for (uint32_t slot = 0; slot < 4; ++slot) std::memset(pool.data({0, slot}), 1, 1 << 20);
    CHECK(faults() == before);
}

void without_the_advice_pages_are_touched() {
    apart([] {
        SlabPool pool = one({1 << 20, 2});
        pool.data({0, 0})[4096] = 42;
        // An old kernel says EINVAL; the filter can only be told which call, so later madvise calls fail as well.
        const sock_filter code[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        const sock_fprog program{std::size(code), const_cast<sock_filter*>(code)};
        CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
        prefault(pool.mappings());
        CHECK(pool.stats(true).classes[0].resident_bytes == 2 << 20 && pool.data({0, 0})[4096] == 42);
        const Mapping reading(pool.fd(0), 2 << 20, Access::read_only, "slab");
        populate_for_reading(reading, "slab");
        const long before = faults();
        uint64_t sum = 0;
        for (size_t at = 0; at < reading.bytes(); at += 4096) sum += reading.data()[at];
        CHECK(faults() == before && sum == 42);
    });
}

}  // namespace

int main() {
    RUN(memory_of_a_made_up_machine);
    RUN(a_node_has_its_slabs);
    RUN(other_domains_are_refused);
    RUN(a_filter_that_refuses_mbind_is_reported);
    RUN(on_2_mb_pages);
    RUN(small_slabs_take_no_2_mb_page);
    RUN(transparent_2_mb_pages_where_the_kernel_makes_them);
    RUN(what_does_not_fit_is_refused_before_anything_is_made);
    RUN(a_control_group_is_looked_at_before_the_kernel_kills);
    RUN(a_file_size_limit_is_an_error_and_no_signal);
    RUN(a_later_class_that_fails_leaves_nothing);
    RUN(prefaulted_slots_do_not_fault);
    RUN(without_the_advice_pages_are_touched);
}

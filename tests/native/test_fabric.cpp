// The emulated fabric: bandwidth is shared evenly, whoever asks and however much; paths, faults, killed peers.
//
// What transfers should take is worked out by `ideal_ends`, a fluid model that knows nothing of seats and quanta. A busy
// machine lets transfers wait; each of them notes for how long (`Patient`), and by that much it may be off.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "atomics.hpp"
#include "check.hpp"
#include "error.hpp"
#include "fabric.hpp"

namespace {

using namespace mo;

constexpr uint64_t kRate = 1'000'000'000;  // bytes per second: one byte takes a nanosecond
constexpr int64_t kUnit = 100 * kMillisecond;
constexpr int64_t kTolerance = 40 * kMillisecond;  // quanta that overlap with a change
constexpr int64_t kPunctual = 5 * kMillisecond;    // with a few of those, too
constexpr int64_t kMostQuantum = kUnit / 2;  // bytes under way in one go, by a transfer late by as much as a seat lasts

mo_link_constants link(uint64_t rate = kRate, uint64_t latency_ns = 0) {
    mo_link_constants constants{};
    constants.advertised_bandwidth_bytes_per_second = constants.bandwidth_bytes_per_second = rate;
    constants.advertised_latency_ps = constants.latency_ps = latency_ns * 1000;
    return constants;
}

void sleep_to(int64_t until) {
    const timespec time{static_cast<time_t>(until / 1'000'000'000), static_cast<long>(until % 1'000'000'000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) == EINTR) {}
}

// How a transfer sleeps. `late_ns`: for how long the machine let it wait when it wanted to go on.
class Patient {
  public:
    bool sleep(int64_t until) {
        note();
        sleep_to(until);
        due_ = std::max(due_, until);
        return true;
    }

    int64_t late_ns() {
        note();
        return late_ns_;
    }

  private:
    void note() {
        const int64_t now = monotonic_ns();
        if (now - due_ > kPunctual) late_ns_ += now - due_;
        due_ = now;
    }

    int64_t due_ = monotonic_ns();
    int64_t late_ns_ = 0;
};

struct Carried : Moved {
    int64_t late_ns;

    double taken() const { return static_cast<double>(end_ns - start_ns); }
};

Carried carry(const std::shared_ptr<Fabric>& fabric, const Route& route, uint64_t bytes) {
    Mover mover(fabric, route);
    Patient patient;
    const auto moved = mover.move(bytes, monotonic_ns(), [&](int64_t until) { return patient.sleep(until); });
    CHECK(moved);
    return {*moved, patient.late_ns()};
}

bool near(double found, double wanted, double tolerance = kTolerance) {
    if (std::abs(found - wanted) <= tolerance) return true;
    std::fprintf(stderr, "found %.3f ms, wanted %.3f +- %.3f\n", found / 1e6, wanted / 1e6, tolerance / 1e6);
    return false;
}

// The machine can make it slower, never faster.
bool takes(const Carried& moved, double wanted_ns) {
    const bool whole = moved.taken() > wanted_ns - 1000;
    return near(moved.taken(), wanted_ns, static_cast<double>(kTolerance + moved.late_ns)) && whole;
}

struct Job {
    int64_t start;
    uint64_t bytes;
};

// When each of them ends if, at any time, all that are under way get the same part of `rate`.
std::vector<double> ideal_ends(const std::vector<Job>& jobs, double rate) {
    std::vector<double> left, ends(jobs.size(), 0);
    for (const Job& job : jobs) left.push_back(static_cast<double>(job.bytes) / rate * 1e9);
    double now = 0;
    for (;;) {
        size_t active = 0;
        double next = std::numeric_limits<double>::infinity();
        for (size_t i = 0; i < jobs.size(); ++i) {
            const bool begun = static_cast<double>(jobs[i].start) <= now;
            if (left[i] > 0 && begun) ++active;
            if (!begun) next = std::min(next, static_cast<double>(jobs[i].start) - now);
        }
        for (size_t i = 0; i < jobs.size(); ++i)
            if (left[i] > 0 && static_cast<double>(jobs[i].start) <= now)
                next = std::min(next, left[i] * static_cast<double>(active));
        if (std::isinf(next)) return ends;
        for (size_t i = 0; i < jobs.size(); ++i) {
            if (left[i] <= 0 || static_cast<double>(jobs[i].start) > now) continue;
            left[i] -= next / static_cast<double>(active);
            if (left[i] < 1) {
                left[i] = 0;
                ends[i] = now + next;
            }
        }
        now += next;
    }
}

void the_oracle_is_right() {
    // 1, 2 and 3 units begun together: a third each for 3, a half each for 2 more, then one alone for 1 more.
    const auto ends = ideal_ends({{0, 100}, {0, 200}, {0, 300}}, 1e9);
    CHECK(near(ends[0], 300, 1) && near(ends[1], 500, 1) && near(ends[2], 600, 1));
}

// Who is late leaves the others more, and takes from them what he catches up.
int64_t together_late(const std::vector<Carried>& moved) {
    int64_t sum = 0;
    for (const Carried& each : moved) sum += each.late_ns;
    return sum;
}

void check_ends(const std::vector<Job>& jobs, const std::vector<Carried>& moved) {
    int64_t first = moved[0].start_ns;
    for (const Carried& each : moved) first = std::min(first, each.start_ns);
    std::vector<Job> as_begun;
    for (size_t i = 0; i < jobs.size(); ++i) as_begun.push_back({moved[i].start_ns - first, jobs[i].bytes});
    const auto ends = ideal_ends(as_begun, static_cast<double>(kRate));
    const double last = *std::max_element(ends.begin(), ends.end());
    const double tolerance = static_cast<double>(kTolerance + together_late(moved)) + 0.1 * last;
    for (size_t i = 0; i < jobs.size(); ++i)
        CHECK(near(static_cast<double>(moved[i].end_ns - first), ends[i], tolerance));
}

std::vector<Job> mixed(size_t count) {
    std::vector<Job> jobs;
    for (size_t i = 0; i < count; ++i) jobs.push_back({0, static_cast<uint64_t>(kUnit) * (1 + i % 3)});
    return jobs;
}

void threads_share_evenly() {
    for (const size_t count : {2, 3, 8}) {
        const auto fabric = Fabric::create(std::vector{link()}, 1);
        const auto jobs = mixed(count);
        std::vector<Carried> moved(count);
        std::vector<std::thread> threads;
        const int64_t begin = monotonic_ns() + 50 * kMillisecond;
        for (size_t i = 0; i < count; ++i)
            threads.emplace_back([&, i] {
                sleep_to(begin);
                moved[i] = carry(fabric, {{0}}, jobs[i].bytes);
            });
        for (auto& thread : threads) thread.join();
        check_ends(jobs, moved);
        // By hand: all of it takes as long as one transfer of the sum, whoever it is for.
        uint64_t sum = 0, counted = fabric->way(0).bytes;
        int64_t last = 0;
        for (size_t i = 0; i < count; ++i) {
            sum += jobs[i].bytes;
            last = std::max(last, moved[i].end_ns);
        }
        CHECK(counted == sum && fabric->way(0).transfers == count && fabric->on_way(0) == 0);
        CHECK(last - begin >= static_cast<int64_t>(sum) - kTolerance - together_late(moved));
        CHECK(fabric->way(1).transfers == 0);  // the other direction is another one's
    }
}

template <class Body>
pid_t in_child(Body&& body) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    try {
        body();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "child: %s\n", error.what());
        _exit(1);
    }
    _exit(0);
}

template <class T>
T* shared_array(size_t count) {
    void* memory = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return static_cast<T*>(memory);
}

void processes_share_evenly() {
    for (const size_t count : {2, 3, 8}) {
        const auto fabric = Fabric::create(std::vector{link()}, 1);
        const auto jobs = mixed(count);
        auto* moved = shared_array<Carried>(count);
        std::vector<pid_t> children;
        const int64_t begin = monotonic_ns() + 50 * kMillisecond;
        for (size_t i = 0; i < count; ++i)
            children.push_back(in_child([&, i] {
                // As a stranger would get it, by its descriptors.
                const auto theirs = Fabric::open(fabric->state_fd(), fabric->traffic_fd());
                sleep_to(begin);
                moved[i] = carry(theirs, {{0}}, jobs[i].bytes);
            }));
        for (const pid_t child : children) {
            int status = 0;
            CHECK(waitpid(child, &status, 0) == child && status == 0);
        }
        check_ends(jobs, {moved, moved + count});
    }
}

void many_small_messages_get_no_more_than_one_large() {
    const auto fabric = Fabric::create(std::vector{link()}, 1);
    std::atomic<bool> done{false};
    double small = 0;
    int64_t late_ns = 0;
    Carried large{};
    const int64_t begin = monotonic_ns() + 50 * kMillisecond;
    std::thread one([&] {
        sleep_to(begin);
        large = carry(fabric, {{0}}, 5 * kUnit);
        done = true;
    });
    std::thread many([&] {
        Mover mover(fabric, {{0}});
        sleep_to(begin);
        Patient patient;
        while (!done) {
            const auto moved = mover.move(kUnit / 50, 0, [&](int64_t until) { return patient.sleep(until); });
            CHECK(moved);
            mover.stay(moved->end_ns);
            small += kUnit / 50;
        }
        late_ns = patient.late_ns();
    });
    one.join();
    many.join();
    const auto late = static_cast<double>(late_ns + large.late_ns);
    CHECK(near(large.taken(), 10.0 * kUnit, 0.15 * 10 * kUnit + late));
    CHECK(near(small, 5.0 * kUnit, 0.2 * 5 * kUnit + late));
}

void a_path_goes_at_the_pace_of_its_bottleneck() {
    // 1 GB/s, 0.25 GB/s, 4 GB/s: 50 MB take 200 ms, and the latencies of all three come on top.
    const auto fabric = Fabric::create(
        std::vector{link(kRate, 1'000'000), link(kRate / 4, 2'000'000), link(kRate * 4, 3'000'000)}, 1);
    const Carried moved = carry(fabric, {{0, 2, 4}}, 50'000'000);
    CHECK(takes(moved, 206e6));
    CHECK(moved.sent_ns - moved.start_ns >= 200'000'000);
    CHECK(moved.end_ns - moved.sent_ns == 6'000'000);
    for (const size_t way : {0, 2, 4}) CHECK(fabric->way(way).bytes == 50'000'000);
}

void who_is_slowed_down_elsewhere_leaves_the_rest() {
    // One over both links gets 0.25 GB/s, because the second has no more; the other 0.75 GB/s of the first.
    const auto fabric = Fabric::create(std::vector{link(), link(kRate / 4)}, 1);
    Carried narrow{}, wide{};
    const int64_t begin = monotonic_ns() + 50 * kMillisecond;
    std::thread one([&] {
        sleep_to(begin);
        narrow = carry(fabric, {{0, 2}}, 100'000'000);
    });
    std::thread other([&] {
        sleep_to(begin);
        wide = carry(fabric, {{0}}, 300'000'000);
    });
    one.join();
    other.join();
    const auto tolerance = 60e6 + static_cast<double>(together_late({narrow, wide}));
    CHECK(near(narrow.taken(), 400e6, tolerance));
    CHECK(near(wide.taken(), 400e6, tolerance));  // half of it would take 600
}

void staged_segments_add_up() {
    // Both links at 0.5 GB/s: 50 MB take 100 ms at once, and 200 ms one after the other; 60 ms to arrive, each.
    const uint64_t latency_ns = 60'000'000;
    const auto fabric = Fabric::create(std::vector{link(kRate / 2, latency_ns), link(kRate / 2, latency_ns)}, 1);
    CHECK(takes(carry(fabric, {{0, 2}}, 50'000'000), 220e6));
    CHECK(takes(carry(fabric, {{0}, {2}}, 50'000'000), 320e6));
}

void everything_is_scaled() {
    mo_link_constants slow = link(kRate * 100, 10'000);  // 10 us, 100 GB/s
    slow.overhead_ps = 20'000'000;                       // 20 us
    const auto fabric = Fabric::create(std::vector{slow}, 1000);
    // 10 MB at 100 GB/s are 100 us; with both 130 us; a thousand times that.
    CHECK(takes(carry(fabric, {{0}}, 10'000'000), 130e6));
}

void jitter_stays_within_its_bounds_and_is_not_always_the_same() {
    mo_link_constants jittery = link(kRate, 1'000'000);
    jittery.jitter_ps = 500'000'000;
    jittery.jitter_seed = 7;
    const auto fabric = Fabric::create(std::vector{jittery}, 1);
    int64_t least = INT64_MAX, most = 0;
    for (int i = 0; i < 50; ++i) {
        const Moved moved = carry(fabric, {{0}}, 1000);
        least = std::min(least, moved.end_ns - moved.sent_ns);
        most = std::max(most, moved.end_ns - moved.sent_ns);
    }
    CHECK(least >= 500'000 && most <= 1'500'000 && most - least > 500'000);
}

void losses_and_chunks_are_as_described() {
    mo_link_constants odd = link();
    odd.chunk_bytes = 50'000'000;
    const auto fabric = Fabric::create(std::vector{odd}, 1);
    CHECK(takes(carry(fabric, {{0}}, 50'000'001), 100e6));  // two chunks
    CHECK(fabric->way(0).bytes == 50'000'001);

    mo_link_constants lossy = link();
    lossy.sharing_loss_millionths = 500'000;  // two together get 1 / 1.5
    const auto shared = Fabric::create(std::vector{lossy}, 1);
    std::vector<Carried> both(2);
    const int64_t begin = monotonic_ns() + 50 * kMillisecond;
    std::thread threads[2];
    for (int i = 0; i < 2; ++i)
        threads[i] = std::thread([&, i] {
            sleep_to(begin);
            both[i] = carry(shared, {{0}}, 100'000'000);
        });
    for (auto& thread : threads) thread.join();
    const auto tolerance = 60e6 + static_cast<double>(together_late(both));
    for (const Carried& each : both) CHECK(near(each.taken(), 300e6, tolerance));  // 200 without the loss
}

void a_killed_process_leaves_nothing_but_a_moment() {
    const auto fabric = Fabric::create(std::vector{link()}, 1);
    const pid_t child = in_child([&] { carry(fabric, {{0}}, uint64_t{3600} * kRate); });
    while (fabric->on_way(0) == 0) sleep_to(monotonic_ns() + kMillisecond);
    CHECK(kill(child, SIGKILL) == 0);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    // At half the rate while its seat lasts, and then at the whole of it: 1 s, not 2.
    const Carried moved = carry(fabric, {{0}}, 10 * kUnit);
    CHECK(near(moved.taken(), 10.0 * kUnit, 2.0 * kUnit + static_cast<double>(moved.late_ns)));
    CHECK(fabric->on_way(0) == 0);
}

void who_was_stopped_is_given_nothing_for_it() {
    const auto fabric = Fabric::create(std::vector{link()}, 1);
    auto* moved = shared_array<Carried>(1);
    const pid_t child = in_child([&] { *moved = carry(fabric, {{0}}, 10 * kUnit); });
    while (load_relaxed(fabric->way(0).bytes) == 0) sleep_to(monotonic_ns() + kMillisecond);
    CHECK(kill(child, SIGSTOP) == 0);
    sleep_to(monotonic_ns() + 5 * kUnit);
    const auto before = load_relaxed(fabric->way(0).bytes);
    CHECK(before < 10 * kUnit && fabric->on_way(0) == 0);
    CHECK(takes(carry(fabric, {{0}}, kUnit), kUnit));  // nobody else is there
    CHECK(load_relaxed(fabric->way(0).bytes) == before + kUnit);
    CHECK(kill(child, SIGCONT) == 0);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(moved->end_ns - moved->start_ns > 15 * kUnit);
}

void links_go_down_and_come_back() {
    const auto fabric = Fabric::create(std::vector{link()}, 1);
    Carried moved{};
    std::thread mover([&] { moved = carry(fabric, {{0}}, 5 * kUnit); });
    while (load_relaxed(fabric->way(0).bytes) == 0) sleep_to(monotonic_ns() + kMillisecond);
    const int64_t going_down = monotonic_ns();
    fabric->set_state(0, {MO_LINK_DOWN, 1'000'000, 0});
    const uint64_t stuck = load_relaxed(fabric->way(0).bytes);
    sleep_to(monotonic_ns() + 3 * kUnit);
    CHECK(load_relaxed(fabric->way(0).bytes) <= stuck + kMostQuantum && stuck + kMostQuantum < 5 * kUnit);
    fabric->set_state(0, {MO_LINK_UP, 1'000'000, 0});
    const int64_t down = monotonic_ns() - going_down;
    mover.join();
    CHECK(moved.taken() > 7.5 * kUnit);
    CHECK(moved.queued_ns > 2 * kUnit && moved.queued_ns < down + kTolerance + moved.late_ns);
}

void a_transfer_over_a_dead_link_can_be_given_up() {
    const auto fabric = Fabric::create(std::vector{link()}, 1);
    fabric->set_state(0, {MO_LINK_DOWN, 1'000'000, 0});
    const int64_t deadline = monotonic_ns() + kUnit;
    Mover mover(fabric, {{0}});
    CHECK(!mover.move(1000, 0, [&](int64_t until) {
        sleep_to(std::min(until, deadline));
        return monotonic_ns() < deadline;
    }));
    CHECK(fabric->on_way(0) == 0);
}

void degrading_acts_on_what_is_under_way() {
    const auto fabric = Fabric::create(std::vector{link()}, 1);
    Carried moved{};
    std::thread mover([&] { moved = carry(fabric, {{0}}, 4 * kUnit); });
    while (load_relaxed(fabric->way(0).bytes) < 1 * kUnit) sleep_to(monotonic_ns() + kMillisecond);
    const auto quick = static_cast<double>(load_relaxed(fabric->way(0).bytes));
    fabric->set_state(0, {MO_LINK_DEGRADED, 250'000, 5'000'000'000});
    const auto seen = static_cast<double>(load_relaxed(fabric->way(0).bytes) + kMostQuantum);
    mover.join();
    // So much at the full rate, or somewhat more, and the rest at a quarter of it.
    CHECK(moved.taken() <= quick + 4 * (4 * kUnit - quick) + static_cast<double>(kTolerance + moved.late_ns));
    CHECK(moved.taken() >= std::max(4.0 * kUnit, seen + 4 * (4 * kUnit - seen)));
    // Latency too, from the next message on.
    const Moved next = carry(fabric, {{0}}, 1000);
    CHECK(next.end_ns - next.sent_ns == 5'000'000);
}

// All three words are always the same, whatever the reader sees.
void a_state_is_read_whole_at_any_rate_of_change() {
    const auto fabric = Fabric::create(std::vector{link()}, 1);
    fabric->set_state(0, {MO_LINK_UP, 0, 0});
    std::atomic<bool> stop{false};
    std::vector<std::thread> readers;
    std::atomic<uint64_t> torn{0}, changes{0};
    for (int i = 0; i < 3; ++i)
        readers.emplace_back([&] {
            uint64_t last = 0;
            while (!stop) {
                const mo_link_state seen = fabric->state(0);
                torn += seen.bandwidth_millionths != seen.added_latency_ps;
                changes += seen.added_latency_ps != last;
                last = seen.added_latency_ps;
            }
        });
    const int64_t begin = monotonic_ns();
    const auto enough = [&] { return monotonic_ns() - begin > 500 * kMillisecond && changes > 10; };
    for (uint64_t i = 0; !enough() && monotonic_ns() - begin < 60'000 * kMillisecond; ++i)
        fabric->set_state(0, {MO_LINK_UP, i % 1'000'000, i % 1'000'000});
    stop = true;
    for (auto& reader : readers) reader.join();
    CHECK(torn == 0 && changes > 10);
}

// The same one step of the writer at a time: readers are where it is not.
void a_state_half_written_is_not_read() {
    const auto fabric = Fabric::create(std::vector{link()}, 1);
    const size_t bytes = file_bytes(fabric->state_fd(), "fabric");
    const Fd copy = create_memfd("half-written", bytes);
    const Mapping ours(copy.get(), bytes, Access::read_write, "half-written");
    {
        const Mapping from(fabric->state_fd(), bytes, Access::read_only, "fabric");
        std::memcpy(ours.data(), from.data(), bytes);
    }
    add_seals(copy.get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE, "half-written");
    const auto theirs = Fabric::open(copy.get(), fabric->traffic_fd());
    auto& shared = *reinterpret_cast<mo_link*>(ours.data() + sizeof(mo_fabric_header));
    for (uint64_t n = 1; n < 5; ++n) {
        store_release(shared.sequence, 2 * n - 1);
        store_release(shared.states[0].bandwidth_millionths, n);
        CHECK(theirs->state(0).bandwidth_millionths == (n == 1 ? 1'000'000 : n - 1));
        store_release(shared.states[0].added_latency_ps, n);
        store_release(shared.sequence, 2 * n);
        store_release(shared.states[1].bandwidth_millionths, n);
        const mo_link_state seen = theirs->state(0);
        CHECK(seen.bandwidth_millionths == n && seen.added_latency_ps == n);
        store_release(shared.states[1].added_latency_ps, n);
    }
}

void a_writer_killed_in_mid_change_stops_nobody() {
    const auto fabric = Fabric::create(std::vector{link()}, 1);
    for (int i = 0; i < 30; ++i) {
        const pid_t child = in_child([&] {
            for (uint64_t n = 0;; ++n) fabric->set_state(0, {MO_LINK_UP, n % 1000, n % 1000});
        });
        sleep_to(monotonic_ns() + kMillisecond);
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
        const mo_link_state seen = fabric->state(0);
        CHECK(seen.bandwidth_millionths == 1'000'000 || seen.bandwidth_millionths == seen.added_latency_ps);
    }
    fabric->set_state(0, {MO_LINK_UP, 7, 7});
    CHECK(fabric->state(0).added_latency_ps == 7);
}

void seats_can_run_out_and_come_back() {
    const auto fabric = Fabric::create(std::vector{link()}, 1);
    const auto far = static_cast<uint64_t>(monotonic_ns() + 5 * kUnit);
    for (mo_seat& seat : fabric->way(0).seats) seat.until_ns = far;
    CHECK(fabric->on_way(0) == MO_SEATS);
    const Moved moved = carry(fabric, {{0}}, 1000);
    CHECK(moved.start_ns >= static_cast<int64_t>(far));
    // A time that no transfer could have is no seat.
    for (mo_seat& seat : fabric->way(0).seats) seat.until_ns = UINT64_MAX;
    CHECK(carry(fabric, {{0}}, 1000).end_ns > 0);
}

void others_cannot_change_it() {
    const auto fabric = Fabric::create(std::vector{link()}, 1);
    const auto theirs = Fabric::open(fabric->state_fd(), fabric->traffic_fd());
    CHECK_THROWS(theirs->set_state(0, {MO_LINK_DOWN, 0, 0}), RingError, "only the process that made");
    CHECK_THROWS(theirs->state_fd(), RingError, "keeps no descriptors");
    CHECK(mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, fabric->state_fd(), 0) == MAP_FAILED);
    CHECK(ftruncate(fabric->traffic_fd(), 0) != 0);
    fabric->set_state(0, {MO_LINK_DOWN, 5, 6});
    CHECK(theirs->state(0).flags == MO_LINK_DOWN && theirs->state(0).added_latency_ps == 6);
}

// A file like `fd`, with one word changed.
Fd forged(int fd, size_t offset, uint32_t value, int seals) {
    const size_t bytes = file_bytes(fd, "original");
    Fd copy = create_memfd("forged", bytes);
    {
        const Mapping from(fd, bytes, Access::read_only, "original");
        const Mapping to(copy.get(), bytes, Access::read_write, "forged");
        std::memcpy(to.data(), from.data(), bytes);
        std::memcpy(to.data() + offset, &value, sizeof value);
    }
    add_seals(copy.get(), seals, "forged");
    return copy;
}

void other_layouts_are_refused() {
    const auto fabric = Fabric::create(std::vector{link()}, 1);
    const int state = fabric->state_fd(), traffic = fabric->traffic_fd();
    constexpr int kSize = F_SEAL_SHRINK | F_SEAL_GROW;
    constexpr int kAll = kSize | F_SEAL_FUTURE_WRITE;
    const auto forged_state = [&](size_t offset, uint32_t value) { return forged(state, offset, value, kAll); };
    const auto forged_traffic = [&](size_t offset, uint32_t value) { return forged(traffic, offset, value, kSize); };
    CHECK_THROWS(Fabric::open(forged_state(0, 1).get(), traffic), RingError, "not the fabric");
    CHECK_THROWS(Fabric::open(forged_state(4, 9).get(), traffic), RingError, "layout version 9");
    CHECK_THROWS(Fabric::open(forged_state(8, 2).get(), traffic), RingError, "not that of this fabric");
    CHECK_THROWS(Fabric::open(forged_state(8, 9999).get(), traffic), RingError, "contradicts itself");
    CHECK_THROWS(Fabric::open(forged_state(12, 8).get(), traffic), RingError, "contradicts itself");
    CHECK_THROWS(Fabric::open(state, forged_traffic(4, 9).get()), RingError, "layout version 9");
    CHECK_THROWS(Fabric::open(state, forged_traffic(16, 9).get()), RingError, "not that of this fabric");
    CHECK_THROWS(Fabric::open(forged(state, 0, MO_FABRIC_MAGIC, kSize).get(), traffic), RingError,
                 "not sealed against writing");
    CHECK_THROWS(Fabric::open(traffic, state), RingError, "sealed");
    const auto other = Fabric::create(std::vector{link()}, 1);
    CHECK_THROWS(Fabric::open(state, other->traffic_fd()), RingError, "not that of this fabric");
}

void nonsense_is_refused() {
    CHECK_THROWS(Fabric::create({}, 1), RingError, "1 to 65536 links, not 0");
    CHECK_THROWS(Fabric::create(std::vector{link(0)}, 1), RingError, "link 0 has no bandwidth");
    for (const double scale : {0.0, -1.0, std::nan(""), 1e300})
        CHECK_THROWS(Fabric::create(std::vector{link()}, scale), RingError, "a time scale is");
    const auto fabric = Fabric::create(std::vector{link()}, 1);
    CHECK_THROWS(fabric->state(1), RingError, "no link 1 among 1");
    CHECK_THROWS(fabric->set_state(0, {3, 0, 0}), RingError, "up, degraded or down");
    CHECK_THROWS(fabric->set_state(0, {MO_LINK_UP, 1'000'001, 0}), RingError, "a part of its bandwidth");
    CHECK_THROWS(Mover(fabric, {}), RingError, "at least one segment");
    CHECK_THROWS(Mover(fabric, {{}}), RingError, "at least one way");
    CHECK_THROWS(Mover(fabric, {{0, 2}}), RingError, "no way 2 among 2");
}

}  // namespace

int main() {
    RUN(the_oracle_is_right);
    RUN(nonsense_is_refused);
    RUN(other_layouts_are_refused);
    RUN(others_cannot_change_it);
    RUN(seats_can_run_out_and_come_back);
    RUN(a_state_is_read_whole_at_any_rate_of_change);
    RUN(a_state_half_written_is_not_read);
    RUN(a_writer_killed_in_mid_change_stops_nobody);
    RUN(a_path_goes_at_the_pace_of_its_bottleneck);
    RUN(staged_segments_add_up);
    RUN(everything_is_scaled);
    RUN(jitter_stays_within_its_bounds_and_is_not_always_the_same);
    RUN(losses_and_chunks_are_as_described);
    RUN(threads_share_evenly);
    RUN(processes_share_evenly);
    RUN(many_small_messages_get_no_more_than_one_large);
    RUN(who_is_slowed_down_elsewhere_leaves_the_rest);
    RUN(links_go_down_and_come_back);
    RUN(a_transfer_over_a_dead_link_can_be_given_up);
    RUN(degrading_acts_on_what_is_under_way);
    RUN(a_killed_process_leaves_nothing_but_a_moment);
    RUN(who_was_stopped_is_given_nothing_for_it);
    return 0;
}

#include "link.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <system_error>

#include "atomics.hpp"
#include "error.hpp"

namespace mo {
namespace {

constexpr int64_t kSlice = 100 * kMillisecond;

std::atomic<unsigned> forks{0};

void count_forks_from_now_on() {
    static const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });
    if (registered != 0) fail_errno("cannot watch for forks", registered);
}

}  // namespace

LinkFollower::LinkFollower(std::shared_ptr<Fabric> fabric, Route route, std::shared_ptr<RingMap> ring,
                           std::shared_ptr<PageMap> page, mo_edge_policy policy, uint64_t largest_bytes)
    : fabric_(std::move(fabric)), route_(std::move(route)), ring_(std::move(ring)), page_(std::move(page)),
      policy_(policy), largest_bytes_(largest_bytes), shared_(std::make_shared<Shared>()) {
    count_forks_from_now_on();
    shared_->times.resize(ring_->capacity());
    seen_ns_.resize(ring_->capacity());
    fork_ = forks.load();
    start();
}

LinkFollower::~LinkFollower() {
    if (fork_ != forks.load()) {
        // It runs in another process. Its handle cannot be joined here, and must not be destroyed unjoined.
        static_cast<void>(thread_.release());
        return;
    }
    store_seq_cst(shared_->stop, 1u);
    futex_wake(shared_->stop);
    thread_->join();
}

void LinkFollower::ensure_running() {
    const unsigned now = forks.load(std::memory_order_relaxed);
    if (fork_ == now) return;
    static_cast<void>(thread_.release());
    fork_ = now;
    start();
}

// A thread that no signal is delivered to: they are for the threads that handle them.
void LinkFollower::start() {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        thread_ = std::make_unique<std::thread>([this] { run(); });
    } catch (const std::system_error& error) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw RingError(std::string("cannot start the thread of an emulated link: ") + error.what());
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

uint64_t LinkFollower::arrived() const {
    if (load_acquire(shared_->failed) != 0) throw RingError("the emulated link failed: " + shared_->failure);
    return load_seq_cst(shared_->arrived);
}

LinkTimes LinkFollower::times(uint64_t sequence) const noexcept {
    const LinkTimes& times = shared_->times[sequence & (shared_->times.size() - 1)];
    return {load_relaxed(times.start_ns), load_relaxed(times.end_ns)};
}

// -- the thread ---------------------------------------------------------------------------------------------

void LinkFollower::run() noexcept {
    prctl(PR_SET_TIMERSLACK, 1ul);  // ns, of this thread; the usual 50 us are a fifth of a quantum
    pthread_setname_np(pthread_self(), "emulated-link");
    try {
        follow();
    } catch (const std::exception& error) {
        shared_->failure = error.what();
        store_seq_cst(shared_->failed, 1u);
    }
    ring_bell();
}

void LinkFollower::follow() {
    Mover mover(fabric_, route_);
    seen_ = 0;
    const mo_admission* const admitted = await_admission();
    if (admitted == nullptr) return;
    uint64_t next = std::max(load_relaxed(admitted->start), load_relaxed(shared_->arrived));
    note_arrived(next);
    const mo_ring_header& header = ring_->header();
    const uint64_t page_id = page_->page().page_id;
    while (!stopped()) {
        if (policy_ == MO_DROP_OLDEST) {
            const uint64_t taken = load_acquire(page_->page().taken);
            if (taken != MO_UNKNOWN_U64 && taken > next) note_arrived(next = taken);
        }
        const uint64_t final_seq = load_seq_cst(header.final_seq);
        const uint64_t tail = look_at_tail();
        // What comes after our share is another consumer's, and crosses its link.
        const uint64_t stop = load_seq_cst(admitted->stop);
        const bool dismissed = load_acquire(admitted->page_id) != page_id;
        if (!dismissed && next < std::min({tail, final_seq, stop})) {
            carry(mover, next);
            if (!stopped() && !taken_away(next)) note_arrived(++next);
            continue;
        }
        mover.leave();
        // Who was dismissed is told so as it looks at a frame: at one that crosses no link, then.
        if (dismissed) note_arrived(MO_UNKNOWN_U64);
        ring_bell();
        if (dismissed || final_seq != MO_UNKNOWN_U64 || next >= stop) return;
        await_more(next, admitted);
    }
}

const mo_admission* LinkFollower::admission() const noexcept {
    const uint64_t page_id = page_->page().page_id;
    for (const mo_admission& listed : ring_->header().admissions)
        if (load_acquire(listed.page_id) == page_id) return &listed;
    return nullptr;
}

// Nothing when we are to stop, or the ring ended without us.
const mo_admission* LinkFollower::await_admission() {
    while (!stopped()) {
        const bool ended = load_seq_cst(ring_->header().final_seq) != MO_UNKNOWN_U64;
        const mo_admission* const found = admission();
        if (found != nullptr || ended) return found;
        await_more(MO_UNKNOWN_U64, nullptr);
    }
    return nullptr;
}

// Until the ring rings: we are admitted, the tail is past `next`, our share or the ring ends.
void LinkFollower::await_more(uint64_t next, const mo_admission* admitted) {
    const mo_ring_header& header = ring_->header();
    store_seq_cst(page_->page().waiting, 1u);
    WaitSet set;
    set.add(header.doorbell, load_seq_cst(header.doorbell), ring_);
    set.add(shared_->stop, 0u, shared_);
    const bool news = admitted == nullptr ? admission() != nullptr
                                          : load_seq_cst(admitted->stop) <= next || load_seq_cst(header.tail) > next;
    if (!news && load_seq_cst(header.final_seq) == MO_UNKNOWN_U64) set.sleep(kSlice);
    store_relaxed(page_->page().waiting, 0u);
}

bool LinkFollower::taken_away(uint64_t sequence) const noexcept {
    if (policy_ != MO_DROP_OLDEST) return false;
    const uint64_t taken = load_acquire(page_->page().taken);
    return taken != MO_UNKNOWN_U64 && taken > sequence;
}

bool LinkFollower::sleep_until(int64_t until_ns) const noexcept {
    for (;;) {
        if (stopped()) return false;
        const int64_t left = until_ns - monotonic_ns();
        if (left <= 0) return true;
        try {
            WaitSet set;
            set.add(shared_->stop, 0u, nullptr);
            set.sleep(left);
        } catch (const std::exception&) {
            return false;  // the kernel refuses the call: the next look says so
        }
    }
}

uint64_t LinkFollower::look_at_tail() {
    const uint64_t tail = load_seq_cst(ring_->header().tail);
    if (tail <= seen_) return tail;
    const int64_t now = monotonic_ns();
    const uint64_t kept = seen_ns_.size();
    for (uint64_t sequence = std::max(seen_, tail - std::min(tail, kept)); sequence < tail; ++sequence)
        seen_ns_[sequence & (kept - 1)] = now;
    seen_ = tail;
    return tail;
}

// A port that is not traced does not say when it committed: at the latest when we first saw it. What waits for the one
// before it to leave was seen before, so the two still follow closely.
int64_t LinkFollower::ready_since(const mo_descriptor& descriptor) const noexcept {
    if (descriptor.signal_ns == MO_UNKNOWN_I64) return seen_ns_[descriptor.sequence & (seen_ns_.size() - 1)];
    return std::min(descriptor.signal_ns, monotonic_ns());
}

void LinkFollower::carry(Mover& mover, uint64_t sequence) {
    mo_descriptor descriptor;
    load_words(descriptor, ring_->cell(sequence));
    LinkTimes& times = shared_->times[sequence & (shared_->times.size() - 1)];
    store_relaxed(times.start_ns, MO_UNKNOWN_I64);
    store_relaxed(times.end_ns, MO_UNKNOWN_I64);
    // Dropped while we copied it, or broken: the consumer looks at it again and says what it is.
    if (taken_away(sequence) || descriptor.sequence != sequence || descriptor.bytes > largest_bytes_) return;

    const uint64_t bytes = std::max<uint64_t>(descriptor.bytes, sizeof descriptor);
    const auto moved = mover.move(bytes, ready_since(descriptor), [&](int64_t until) {
        return sleep_until(until) && !taken_away(sequence);
    });
    if (!moved) return;
    // Only the last byte has left: the next message starts right behind it.
    if (look_at_tail() > sequence + 1)
        mover.stay(moved->end_ns);
    else
        mover.leave();
    if (!sleep_until(moved->end_ns)) return;
    store_relaxed(times.start_ns, moved->start_ns);
    store_relaxed(times.end_ns, moved->end_ns);
}

void LinkFollower::note_arrived(uint64_t next) {
    if (next > load_relaxed(shared_->arrived)) store_seq_cst(shared_->arrived, next);
    ring_bell();
}

void LinkFollower::ring_bell() {
    if (load_seq_cst(shared_->waiting) == 0) return;
    fetch_add(shared_->bell, 1u);
    futex_wake(shared_->bell);
}

}  // namespace mo

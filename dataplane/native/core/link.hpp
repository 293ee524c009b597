// An emulated link under one input edge: a thread in the consumer's process that follows the ring as a DMA engine
// would, lets each payload take as long as its path does, and tells the consumer what has arrived. So a transfer runs
// beside the consumer's own work, and the frame that waits is the next one.
//
// The thread reads the ring and, of the consumer's page, `taken`; it writes `waiting` there, which is its own word as
// long as there is a link. The consumer sleeps on the thread's bell instead of the ring's.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fabric.hpp"
#include "futex.hpp"
#include "layout.hpp"

namespace mo {

// When a payload crossed its link; unknown for one that crossed none.
struct LinkTimes {
    int64_t start_ns = MO_UNKNOWN_I64;
    int64_t end_ns = MO_UNKNOWN_I64;

    bool known() const noexcept { return start_ns != MO_UNKNOWN_I64; }
};

class LinkFollower {
  public:
    // Starts at once. `largest_bytes`: what claims to be larger is broken, and left to the consumer to refuse.
    LinkFollower(std::shared_ptr<Fabric> fabric, Route route, std::shared_ptr<RingMap> ring,
                 std::shared_ptr<PageMap> page, mo_edge_policy policy, uint64_t largest_bytes);
    // Ends the thread, whatever it is waiting for.
    ~LinkFollower();
    LinkFollower(const LinkFollower&) = delete;
    LinkFollower& operator=(const LinkFollower&) = delete;

    // Every sequence below has arrived. RingError when the thread failed.
    uint64_t arrived() const;
    // Of a sequence that has arrived and was not taken yet.
    LinkTimes times(uint64_t sequence) const noexcept;

    // For the consumer's sleep: its flag, and the word that changes when there is something to look at.
    std::shared_ptr<uint32_t> waiting() const { return {shared_, &shared_->waiting}; }
    std::shared_ptr<uint32_t> bell() const { return {shared_, &shared_->bell}; }
    // What moves on with every arrival.
    std::shared_ptr<uint64_t> progress() const { return {shared_, &shared_->arrived}; }
    // Wakes the consumer if it sleeps. Anybody may.
    void ring_bell();

    // A fork leaves threads behind: in the child it takes another one. Cheap when there was no fork.
    void ensure_running();

  private:
    struct Shared {
        MO_ALIGNED uint32_t bell = 0;
        uint32_t waiting = 0;
        uint32_t stop = 0;
        uint32_t failed = 0;
        uint64_t arrived = 0;
        std::string failure;  // before `failed`
        std::vector<LinkTimes> times;
    };

    void start();
    void run() noexcept;
    void follow();
    const mo_admission* admission() const noexcept;
    const mo_admission* await_admission();
    void await_more(uint64_t next, const mo_admission* admission);
    void carry(Mover& mover, uint64_t sequence);
    uint64_t look_at_tail();
    int64_t ready_since(const mo_descriptor& descriptor) const noexcept;
    bool stopped() const noexcept { return load_acquire(shared_->stop) != 0; }
    bool taken_away(uint64_t sequence) const noexcept;
    bool sleep_until(int64_t until_ns) const noexcept;
    void note_arrived(uint64_t next);

    std::shared_ptr<Fabric> fabric_;
    Route route_;
    std::shared_ptr<RingMap> ring_;
    std::shared_ptr<PageMap> page_;
    mo_edge_policy policy_;
    uint64_t largest_bytes_;
    std::shared_ptr<Shared> shared_;
    // The thread's own: when it first saw each sequence below `seen_` committed.
    std::vector<int64_t> seen_ns_;
    uint64_t seen_ = 0;
    unsigned fork_ = 0;  // in how many forks' child the thread was started
    std::unique_ptr<std::thread> thread_;
};

}  // namespace mo

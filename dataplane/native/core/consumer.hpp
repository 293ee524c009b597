// Consumer: one input edge. Owns its page, maps the producer's memory read-only and believes little of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "clock.hpp"
#include "futex.hpp"
#include "layout.hpp"
#include "link.hpp"
#include "steps.hpp"
#include "trace.hpp"

namespace mo {

// A producer's ring and slabs as one consumer maps them. Leases share it: it outlives attach and close.
struct Attachment {
    struct Slab {
        Mapping map;
        uint64_t slot_bytes;
        uint64_t slots = map.bytes() / slot_bytes;
    };
    std::shared_ptr<RingMap> ring;
    std::vector<Slab> slabs;
};

// A taken sequence, checked: `data` and the planes lie within the slot.
struct ReadSlot {
    mo_descriptor descriptor;
    std::shared_ptr<const Attachment> attachment;
    const uint8_t* data = nullptr;
    int64_t wait_ns = MO_UNKNOWN_I64;  // when the consumer became ready for it; only known when it waited, or traced
    int64_t taken_ns = 0;              // when it got it; only known when traced
    bool launched = false;
    LinkTimes link;  // when it crossed the edge's link; unknown without one
};

// Not thread-safe, except that the sleep of `take_until` touches nothing of the consumer's.
class Consumer {
  public:
    explicit Consumer(mo_edge_policy policy);

    int page_fd() const;
    // `populate`: maps every page of the slabs now, so that no later read faults; it makes all of their memory
    // resident, where nobody has written yet too.
    void attach(int ring_fd, std::span<const int> slab_fds, std::span<const uint64_t> slot_bytes,
                bool populate = false);
    // From the next ring on payloads cross this route before they can be taken. RingError for a route that is none.
    void link(std::shared_ptr<Fabric> fabric, Route route);
    void trace(Trace trace) { trace_ = std::move(trace); }

    // The next sequence, nothing when there is none yet, RingEnded after the last.
    std::optional<ReadSlot> try_take() {
        std::optional<ReadSlot> slot(std::in_place);
        if (!try_take(*slot)) slot.reset();
        return slot;
    }
    // The same into a slot as it was made, without a copy; false when there is none yet. What it says then is void.
    bool try_take(ReadSlot& slot);
    // Takes back the share in the mappings of a slot that is over, for the next one: two atomic operations less a frame.
    void recycle(ReadSlot& over) noexcept {
        if (over.attachment == attachment_) spare_ = std::move(over.attachment);
    }
    void launch(ReadSlot& slot) const noexcept;
    void release(ReadSlot& slot);

    // The word of somebody who knows that the producer is dead. Wakes a `take` of another thread.
    void end_at(uint64_t final_seq, mo_end_reason reason);

    // Whether the producer let us in and has turned us out since. Asked after reading a frame, "no" says that the frame
    // was kept for us all the while.
    bool dismissed() const;

    // Whether try_take would return or throw something.
    bool ready();
    // From now on this consumer waits for its next frame, if it does not already.
    void note_ready(int64_t now) noexcept {
        if (ready_since_ == 0) ready_since_ = now;
    }
    void note_ready() noexcept {
        if (ready_since_ == 0) ready_since_ = monotonic_ns();
    }

    uint64_t taken() const;
    uint64_t acked() const;
    uint64_t held() const;
    uint64_t backlog();
    void close() noexcept;
    bool closed() const noexcept { return page_ == nullptr; }

    // The place where the next sequence will be seen; its memory stays mapped. Empty while we are not admitted.
    struct Spot {
        std::shared_ptr<const Attachment> attachment;
        uint64_t next = 0;

        // Looks at it for that long, or until there is something: a sequence or the end.
        bool wait(int64_t spin_ns) const noexcept;
    };
    Spot spot() const;
    // How long `take` looks before it sleeps. Worth it with a core to spare, and not much longer than a wake-up costs.
    void spin(int64_t ns) noexcept { spin_ns_ = ns; }
    int64_t spin() const noexcept { return spin_ns_; }

    // try_take until there is something or `deadline` is over, and in between `sleep(WaitSet, ns)`.
    template <class Sleep>
    std::optional<ReadSlot> take_until(int64_t deadline, Sleep&& sleep) {
        auto slot = try_take();
        if (slot || monotonic_ns() >= deadline) return slot;
        for (;;) {
            const WaitingFlag flag = waiting_flag();
            MO_STEP("consumer.wait.flag_raised");
            WaitSet set;
            add_doorbell(set);
            slot = try_take();
            if (slot) return slot;
            const int64_t left = deadline - monotonic_ns();
            if (left <= 0) return slot;
            sleep(set, std::min(left, kSlice));
        }
    }
    std::optional<ReadSlot> take(int64_t timeout_ns);

    // Sleeping on several consumers: raise the flags, note the doorbells, look again, sleep (see wait_any).
    class WaitingFlag {
      public:
        explicit WaitingFlag(std::shared_ptr<uint32_t> word) : word_(std::move(word)) {
            store_seq_cst(*word_, 1u);
        }
        ~WaitingFlag() {
            if (word_) store_relaxed(*word_, 0u);
        }
        WaitingFlag(WaitingFlag&&) = default;

      private:
        std::shared_ptr<uint32_t> word_;
    };
    WaitingFlag waiting_flag() const {
        require_open();
        // The page's flag is the link's, where there is one: it waits for the producer, we wait for it.
        return WaitingFlag(follower_ ? follower_->waiting()
                                     : std::shared_ptr<uint32_t>(page_, &page_->page().waiting));
    }
    void add_doorbell(WaitSet& set) const;
    // What a producer stores before it rings: for those who look now and then in case it died between the two.
    void add_progress(WaitSet& set) const;

    static constexpr int64_t kSlice = 100 * kMillisecond;

  private:
    struct Held {
        uint64_t sequence;
        bool done;
    };

    void require_open() const;
    void require_attached() const;
    bool start();
    uint64_t next() const noexcept;
    bool has_next(uint64_t next);
    uint64_t share_end() const noexcept;
    uint64_t end() const noexcept;
    void throw_end(uint64_t next);
    bool makes_sense(const mo_descriptor& descriptor, uint64_t sequence) const noexcept;
    std::string problem_with(const mo_descriptor& descriptor, uint64_t sequence) const;
    void hold(uint64_t sequence);
    void acknowledge(const RingMap& of);

    Fd page_fd_;
    std::shared_ptr<PageMap> page_;  // null after close
    mo_edge_policy policy_;
    Trace trace_;

    std::shared_ptr<const Attachment> attachment_;
    std::shared_ptr<const Attachment> spare_;  // the same or null
    const mo_admission* admission_ = nullptr;  // null before the producer has admitted our page to this ring
    uint64_t final_override_ = MO_UNKNOWN_U64;
    mo_end_reason override_reason_ = MO_END_NONE;
    uint64_t limit_ = 0;                     // sequences below were committed when we last looked
    bool ended_ = false;                     // RingEnded was thrown
    uint64_t followed_by_ = MO_UNKNOWN_U64;  // where the next incarnation has to start

    uint64_t page_id_;
    uint64_t taken_ = MO_UNKNOWN_U64;  // after the last one we took; under `block` the page's own word
    uint64_t acked_ = 0;
    std::vector<Held> held_;  // in order of sequence, from first_held_ on
    size_t first_held_ = 0;
    uint64_t held_count_ = 0;
    int64_t spin_ns_ = 0;
    int64_t ready_since_ = 0;  // 0: take was not called since the last frame

    std::shared_ptr<Fabric> fabric_;  // null: the frames are here as soon as they are published
    Route route_;
    std::unique_ptr<LinkFollower> follower_;  // of the attached ring
};

// Indices of the consumers that are ready.
std::vector<size_t> ready_consumers(std::span<Consumer* const> consumers);

// The same, sleeping until there is one or `deadline` is over.
template <class Sleep>
std::vector<size_t> wait_any_until(std::span<Consumer* const> consumers, int64_t deadline, Sleep&& sleep) {
    auto ready = ready_consumers(consumers);
    if (!ready.empty() || monotonic_ns() >= deadline) return ready;
    for (;;) {
        std::vector<Consumer::WaitingFlag> flags;
        flags.reserve(consumers.size());
        WaitSet set;
        for (const Consumer* consumer : consumers) {
            flags.push_back(consumer->waiting_flag());
            consumer->add_doorbell(set);
        }
        MO_STEP("consumer.wait_any.flags_raised");
        ready = ready_consumers(consumers);
        if (!ready.empty()) return ready;
        const int64_t left = deadline - monotonic_ns();
        if (left <= 0) return ready;
        sleep(set, std::min(left, Consumer::kSlice));
    }
}
std::vector<size_t> wait_any(std::span<Consumer* const> consumers, int64_t timeout_ns);

}  // namespace mo

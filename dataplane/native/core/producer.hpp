// Producer: one output port. Owns the ring, the slabs and the knowledge of which slot is free.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "clock.hpp"
#include "futex.hpp"
#include "layout.hpp"
#include "outstanding.hpp"
#include "slab_pool.hpp"
#include "steps.hpp"
#include "trace.hpp"

namespace mo {

// A slot that is being written. Only the producer that lent it can take it back, by publish or abandon.
struct WriteSlot {
    SlotRef place;
    uint8_t* data = nullptr;
    uint64_t capacity_bytes = 0;
    int64_t alloc_ns = MO_UNKNOWN_I64;   // only known when traced: a look at the clock costs as much as an acquire
    int64_t launch_ns = MO_UNKNOWN_I64;  // equal to alloc_ns until the operator says otherwise
};

// One of several payloads that are committed together.
struct Publication {
    const WriteSlot* slot;
    const mo_descriptor* described;
    uint64_t bytes;
};

// Where a page that takes the place of a dead consumer's starts, and what is not delivered again.
struct Replacement {
    uint64_t start = 0;
    std::vector<uint64_t> lost;  // source indices: under drop_oldest what the dead consumer held
};

// Not thread-safe, except that the sleep of `wait_until` touches nothing of the producer's: another thread
// may call in then, even close it.
class Producer {
  public:
    // Without a first sequence the ring begins later (`begin`), and nothing can be acquired before.
    Producer(uint32_t capacity, std::span<const SizeClass> classes, uint64_t incarnation,
             std::optional<uint64_t> first_sequence);
    // Where the incarnation before this one ended. Once, before anybody is admitted.
    void begin(uint64_t first_sequence);
    bool begun() const noexcept { return begun_; }

    int ring_fd() const;
    const SlabPool& pool() const;
    // The pool's books now, after what consumers have acknowledged; see SlabPool::stats.
    PoolStats pool_stats(bool reset);
    void trace(Trace trace) { trace_ = std::move(trace); }

    // Lets a consumer in: everything published from now on is kept for it. Returns its handle.
    int admit(int page_fd, mo_edge_policy policy);
    // Another page instead of that of a consumer whose process is dead (which the caller must know for sure). What it
    // had not acknowledged is delivered again, from `start` on; the handle stays.
    Replacement replace(int consumer, int page_fd);
    // From the next sequence on, everything is for another consumer of the same policy; the old one gets RingEnded
    // ("cut") when it has taken what came before. Returns the new one's handle; the sequence is its `tail` now.
    int cut(int consumer, int page_fd);
    // From the next sequence on, nothing is for these consumers, of which none was cut off or stopped before: each gets
    // RingEnded ("cut") when it has taken what came before. It stays to be dismissed. The sequence is `tail` now.
    void stop(const std::vector<int>& consumers);
    // Forgets a consumer: nothing is kept for it any more. Its counters stay readable.
    void dismiss(int consumer);

    // A free slot and the right to one descriptor, or nothing right now. Takes frames away from drop_oldest
    // consumers when that gives room. RingError when no class is big enough or the ring has ended.
    std::optional<WriteSlot> try_acquire(uint64_t bytes);
    uint64_t publish(const WriteSlot& slot, const mo_descriptor& described, uint64_t bytes);
    // All of them by one commit, in their order: whoever sees one sees all. Returns the first sequence.
    uint64_t publish_together(std::span<const Publication> payloads);
    void abandon(SlotRef slot) noexcept;

    // The sequence of a descriptor without payload, or nothing while there is no room for it.
    std::optional<uint64_t> try_publish_empty(const mo_descriptor& described);

    uint64_t finish(mo_end_reason reason);

    uint64_t tail() const noexcept { return tail_; }
    // One past the largest source index of the frames (coded ones and lost ones too) published here; 0 before.
    uint64_t next_source_index() const noexcept { return next_source_index_; }
    uint32_t free_slots();
    uint64_t outstanding();
    bool all_acknowledged();
    uint64_t backlog(int consumer);
    // What it has taken and not acknowledged, as far as it is believed: under drop_oldest all that it keeps from us
    // (everything, when its page contradicts itself).
    uint64_t held(int consumer);
    uint64_t dropped(int consumer) const { return reader(consumer).dropped; }
    std::vector<uint64_t> take_dropped(int consumer) {
        return std::exchange(reader(consumer).dropped_indices, {});
    }

    void close() noexcept;
    bool closed() const noexcept { return pool_ == nullptr; }

    // Calls `attempt` until it returns something true or the deadline is over; between, `sleep(WaitSet, ns)`.
    template <class Attempt, class Sleep>
    auto wait_until(int64_t deadline, Attempt&& attempt, Sleep&& sleep) {
        auto result = attempt();
        if (result || monotonic_ns() >= deadline) return result;
        for (;;) {
            require_open();  // somebody may have closed us during the sleep
            const WaitingFlag flag(ring_);
            MO_STEP("producer.wait.flag_raised");
            // Again with the flag up: a consumer that freed something before it saw the flag wakes nobody.
            result = attempt();
            if (result) return result;
            const int64_t left = deadline - monotonic_ns();
            if (left <= 0) return result;
            sleep(room(), std::min(left, kSlice));
        }
    }

    // Sleeping elsewhere: raise the flag, then sleep on these words, with the values that the last attempt judged by, so
    // that nothing that happened since is slept over.
    class WaitingFlag {
      public:
        explicit WaitingFlag(std::shared_ptr<RingMap> ring) : ring_(std::move(ring)) {
            store_seq_cst(ring_->header().producer_waiting, 1u);
        }
        ~WaitingFlag() {
            if (ring_) store_relaxed(ring_->header().producer_waiting, 0u);
        }
        WaitingFlag(WaitingFlag&&) = default;

      private:
        std::shared_ptr<RingMap> ring_;
    };
    WaitingFlag waiting_flag() const {
        require_open();
        return WaitingFlag(ring_);
    }
    WaitSet room() const;
    // For those who look now and then: the ring may have been ended in our place.
    WaitSet end() const;

    // The same three with a plain sleep.
    std::optional<WriteSlot> acquire(uint64_t bytes, int64_t timeout_ns);
    std::optional<uint64_t> publish_empty(const mo_descriptor& described, int64_t timeout_ns);
    bool wait_acknowledged(int64_t timeout_ns);

  private:
    // A page whose owner never wakes us (it died, or garbles its words) delays us by one slice, no more.
    static constexpr int64_t kSlice = 50 * kMillisecond;

    struct Reader {
        std::shared_ptr<PageMap> page;  // null after dismissal
        mo_edge_policy policy;
        uint32_t index;           // in the ring's admissions and the bit in every Outstanding mask
        uint64_t start;           // the first sequence kept for it
        uint64_t stop = MO_UNKNOWN_U64;  // the first one that is not
        uint64_t acked;           // as believed: never back, never past the tail
        uint64_t taken;           // the same
        bool arrived = false;     // its `taken` is in this ring
        uint64_t acked_seen = 0;  // as last read
        uint64_t taken_seen = 0;
        uint64_t dropped = 0;
        std::vector<uint64_t> dropped_indices;

        // Cells below are of no use to it any more.
        uint64_t past() const noexcept { return policy == MO_DROP_OLDEST ? taken : acked; }
        // The end of what it is to get, given the tail.
        uint64_t end(uint64_t tail) const noexcept { return std::min(stop, tail); }
    };

    void require_open() const;
    void require_running() const;
    std::shared_ptr<PageMap> open_page(int page_fd, mo_edge_policy policy) const;
    uint32_t free_index() const;
    int add_reader(std::shared_ptr<PageMap> page, mo_edge_policy policy, uint32_t index);
    void list(Reader& reader);
    void give_start(Reader& reader);
    Reader& reader(int consumer);
    Reader& active(int consumer);
    Reader& unstopped(int consumer);
    void end_share(Reader& reader);
    const Reader& reader(int consumer) const;

    void refresh();
    void read_taken(Reader& reader);
    void return_slots();

    bool has_cell();
    bool make_cell();
    bool make_slot(uint64_t bytes);
    bool can_drop(const Reader& reader) const noexcept;
    bool drop_next(Reader& reader);
    bool drop_through(Reader& reader, uint64_t sequence);

    void check(const WriteSlot& slot, const mo_descriptor& described, uint64_t bytes) const;
    mo_descriptor complete(const WriteSlot& slot, const mo_descriptor& described, uint64_t bytes) const;
    void write_cell(mo_descriptor& descriptor, SlotRef slot, uint64_t sequence);
    void commit(uint64_t count);
    void announce(const mo_descriptor& descriptor) const;

    Fd ring_fd_;
    std::shared_ptr<RingMap> ring_;
    std::unique_ptr<SlabPool> pool_;  // null after close
    Trace trace_;
    std::vector<std::unique_ptr<Reader>> readers_;  // by handle
    std::vector<Reader*> active_;
    Outstanding outstanding_;
    std::vector<SlotRef> freed_;  // scratch of return_slots
    uint64_t tail_ = 0;
    uint64_t next_source_index_ = 0;
    uint64_t cell_limit_ = 0;  // descriptors up to here are known to be free
    uint32_t writing_ = 0;     // slots lent out, each with the right to a descriptor
    bool begun_ = false;
    bool lacks_cell_ = false;  // why the last attempt failed
};

}  // namespace mo

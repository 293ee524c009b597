#include "mutants.hpp"

namespace mo::explore {
namespace {

constexpr auto order = Mutant::Kind::order;
constexpr auto skip = Mutant::Kind::skip;
constexpr auto delay = Mutant::Kind::delay;
constexpr auto relaxed = std::memory_order_relaxed;
constexpr auto acquire = std::memory_order_acquire;
constexpr auto release = std::memory_order_release;

}  // namespace

const std::vector<Mutant>& mutants() {
    static const std::vector<Mutant> all = {
        // The commit, and the pair "tail, waiting".
        {"tail stored relaxed", order, "Producer::commit", "store ring.tail", relaxed},
        {"tail stored with release", order, "Producer::commit", "store ring.tail", release},
        {"waiting looked at with acquire", order, "Producer::commit", "load page.waiting", acquire},
        {"waiting raised with release", order, "Consumer::WaitingFlag", "store page.waiting", release},
        {"tail looked at with acquire", order, "Consumer::has_next", "load ring.tail", acquire},
        {"tail looked at relaxed", order, "Consumer::has_next", "load ring.tail", relaxed},
        {"tail stored before the descriptor", delay, "Producer::commit", "store ring.cell.rest", relaxed, "store ring.tail"},
        {"tail stored before the sequence", delay, "Producer::commit", "store ring.cell.sequence", relaxed,
         "store ring.tail"},
        {"tail stored after the look at waiting", delay, "Producer::commit", "store ring.tail", relaxed,
         "load page.waiting"},
        {"waiting not looked at", skip, "Producer::commit", "load page.waiting"},
        {"doorbell not rung", skip, "ring_doorbell", "add ring.doorbell"},
        {"nobody woken", skip, "ring_doorbell", "wake ring.doorbell"},
        {"waiting not raised", skip, "Consumer::WaitingFlag::WaitingFlag", "store page.waiting"},
        {"waiting raised just before the sleep", delay, "Consumer::WaitingFlag::WaitingFlag", "store page.waiting",
         relaxed, "sleep"},
        {"tail not looked at again", skip, "Consumer::has_next", "load ring.tail"},
        {"end not looked at again", skip, "Consumer::has_next", "load ring.final_seq"},
        // Acknowledging, and the pair "acked, producer_waiting".
        {"acked stored relaxed", order, "Consumer::acknowledge", "store page.acked", relaxed},
        {"acked stored with release", order, "Consumer::acknowledge", "store page.acked", release},
        {"producer_waiting looked at with acquire", order, "Consumer::acknowledge", "load ring.producer_waiting",
         acquire},
        {"producer_waiting raised with release", order, "Producer::WaitingFlag", "store ring.producer_waiting", release},
        {"acked looked at with acquire", order, "Producer::refresh", "load page.acked", acquire},
        {"acked looked at relaxed", order, "Producer::refresh", "load page.acked", relaxed},
        {"producer_waiting not raised", skip, "Producer::WaitingFlag::WaitingFlag", "store ring.producer_waiting"},
        {"producer_waiting raised just before the sleep", delay, "Producer::WaitingFlag::WaitingFlag",
         "store ring.producer_waiting", relaxed, "sleep"},
        {"acked stored after the look at producer_waiting", delay, "Consumer::acknowledge", "store page.acked", relaxed,
         "load ring.producer_waiting"},
        {"producer not woken by an acknowledgement", skip, "Consumer::acknowledge", "wake page.acked"},
        {"acked not looked at again", skip, "Producer::refresh", "load page.acked"},
        // Taking, and the pair "taken, producer_waiting".
        {"taken stored relaxed", order, "Consumer::try_take", "store page.taken", relaxed},
        {"taken stored with release", order, "Consumer::try_take", "store page.taken", release},
        {"taken looked at with acquire", order, "Producer::read_taken", "load page.taken", acquire},
        {"producer not woken by a take", skip, "Consumer::try_take", "wake page.taken"},
        {"taken swapped relaxed by the consumer", order, "Consumer::try_take", "cas page.taken", relaxed},
        {"taken swapped with release by the consumer", order, "Consumer::try_take", "cas page.taken", release},
        {"taken swapped relaxed by the producer", order, "Producer::drop_next", "cas page.taken", relaxed},
        {"taken swapped with release by the producer", order, "Producer::drop_next", "cas page.taken", release},
        // The end.
        {"end stored with release", order, "end_ring", "cas ring.final_seq", release},
        {"end stored relaxed", order, "end_ring", "cas ring.final_seq", relaxed},
        {"no doorbell at the end", skip, "ring_doorbell", "wake ring.doorbell"},
        {"reason stored after the end", delay, "end_ring", "store ring.end_reason", relaxed, "cas ring.final_seq"},
    };
    return all;
}

const std::vector<Harmless>& harmless_mutants() {
    static const std::vector<Harmless> all = {};
    return all;
}

}  // namespace mo::explore

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
        {"tail stored before the descriptor", delay, "Producer::write_cell", "store ring.cell.rest", relaxed,
         "store ring.tail"},
        {"tail stored before the sequence", delay, "Producer::write_cell", "store ring.cell.sequence", relaxed,
         "store ring.tail"},
        {"tail stored after the look at waiting", delay, "Producer::commit", "store ring.tail", relaxed,
         "load page.waiting"},
        {"doorbell not rung", skip, "ring_doorbell", "add ring.doorbell"},
        {"nobody woken", skip, "ring_doorbell", "wake ring.doorbell"},
        {"waiting not raised", skip, "Consumer::WaitingFlag::WaitingFlag", "store page.waiting"},
        {"waiting raised just before the sleep", delay, "Consumer::WaitingFlag::WaitingFlag", "store page.waiting",
         relaxed, "sleep"},
        {"tail not looked at again", skip, "Consumer::has_next", "load ring.tail"},
        // Acknowledging, and the pair "acked, producer_waiting".
        {"acked stored relaxed", order, "Consumer::acknowledge", "store page.acked", relaxed, "", "no-slot"},
        {"acked stored with release", order, "Consumer::acknowledge", "store page.acked", release},
        {"producer_waiting looked at with acquire", order, "Consumer::acknowledge", "load ring.producer_waiting",
         acquire},
        {"producer_waiting raised with release", order, "Producer::WaitingFlag", "store ring.producer_waiting",
         release},
        {"acked looked at relaxed", order, "Producer::refresh", "load page.acked", relaxed},
        {"producer_waiting not raised", skip, "Producer::WaitingFlag::WaitingFlag", "store ring.producer_waiting"},
        {"acked stored after the look at producer_waiting", delay, "Consumer::acknowledge", "store page.acked",
         relaxed,
         "load ring.producer_waiting"},
        {"producer not woken by an acknowledgement", skip, "Consumer::acknowledge", "wake page.acked"},
        {"acked not looked at again", skip, "Producer::refresh", "load page.acked"},
        // Taking under drop_oldest.
        {"taken swapped relaxed by the consumer", order, "Consumer::try_take", "cas page.taken", relaxed, "",
         "drop-for-a-cell"},
        {"taken looked at relaxed by the producer", order, "Producer::read_taken", "load page.taken", relaxed, "",
         "drop-for-a-cell"},
        {"producer not woken by a take", skip, "Consumer::try_take", "wake page.taken", relaxed, "",
         "full-before-it-comes"},
        // Coming and going.
        {"page listed before its start", delay, "Producer::list", "store ring.admission.start", relaxed,
         "store ring.admission.page_id", "admitted-while-looking"},
        {"page listed relaxed", order, "Producer::list", "store ring.admission.page_id", relaxed, "",
         "admitted-while-looking"},
        {"page looked for relaxed", order, "Consumer::start", "load ring.admission.page_id", relaxed, "",
         "admitted-while-looking"},
        {"dismissal said relaxed, without a fence", skip, "Producer::dismiss", "fence", relaxed, "", "dismissed"},
        {"dismissal looked for before the copy counts", skip, "Consumer::dismissed", "fence", relaxed, "",
         "dismissed"},
        {"dismissal not looked for", skip, "Consumer::dismissed", "load ring.admission.page_id", relaxed, "",
         "dismissed"},
        {"share ended after the next commit", delay, "Producer::end_share", "store ring.admission.stop", relaxed,
         "store ring.tail", "handed-over-at-once"},
        {"end of the share not looked at again", skip, "Consumer::share_end", "load ring.admission.stop", relaxed,
         "", "handed-over-later"},
        // The end.
        {"end stored relaxed", order, "end_ring", "cas ring.final_seq", relaxed},
        {"reason stored after the end", delay, "end_ring", "store ring.end_reason", relaxed, "cas ring.final_seq"},
        {"end looked at relaxed", order, "Consumer::throw_end", "load ring.final_seq", relaxed},
    };
    return all;
}

const std::vector<Harmless>& harmless_mutants() {
    static const std::vector<Harmless> all = {
        {{"end not looked at again", skip, "Consumer::has_next", "load ring.final_seq"},
         "throw_end looks at it too, and only there does it end anything"},
        {{"end stored with release", order, "end_ring", "cas ring.final_seq", release},
         "the doorbell is rung after every end, and who sleeps compares the value that it read before it looked"},
        {{"acked looked at with acquire", order, "Producer::refresh", "load page.acked", acquire},
         "who sleeps on acked has the kernel compare it with what was judged by: that is the second look"},
        {{"producer_waiting raised just before the sleep", delay, "Producer::WaitingFlag::WaitingFlag",
          "store ring.producer_waiting", relaxed, "sleep"},
         "the same: the kernel compares after the flag is up"},
        {{"taken stored relaxed under block", order, "Consumer::try_take", "store page.taken", relaxed},
         "under block taken is for those who look: cells and slots are freed by acked"},
        {{"taken swapped relaxed by the producer", order, "Producer::drop_next", "cas page.taken", relaxed},
         "it tells the consumer nothing but that it lost, and the producer knows what it dropped itself"},
    };
    return all;
}

}  // namespace mo::explore

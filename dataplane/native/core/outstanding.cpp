#include "outstanding.hpp"

namespace mo {

void Outstanding::admit(uint32_t consumer) {
    if (cursors_.size() <= consumer) cursors_.resize(consumer + 1, kEnd);
    cursors_[consumer] = kEnd;
}

void Outstanding::append(uint64_t sequence, uint64_t source_index, uint64_t needed_by, SlotRef slot) {
    uint32_t index = unused_;
    if (index == kEnd) {
        index = static_cast<uint32_t>(entries_.size());
        entries_.emplace_back();
    } else {
        unused_ = entries_[index].next;
    }
    entries_[index] = {sequence, source_index, needed_by, slot, last_, kEnd};
    if (last_ == kEnd)
        first_ = index;
    else
        entries_[last_].next = index;
    last_ = index;
    ++size_;
    for (uint32_t& cursor : cursors_)
        if (cursor == kEnd) cursor = index;
}

void Outstanding::clear_bit(uint32_t index, uint32_t consumer, std::vector<SlotRef>& freed) {
    Entry& entry = entries_[index];
    entry.needed_by &= ~(uint64_t{1} << consumer);
    if (entry.needed_by != 0) return;
    if (entry.slot.exists()) freed.push_back(entry.slot);
    if (entry.previous == kEnd)
        first_ = entry.next;
    else
        entries_[entry.previous].next = entry.next;
    if (entry.next == kEnd)
        last_ = entry.previous;
    else
        entries_[entry.next].previous = entry.previous;
    for (uint32_t& cursor : cursors_)
        if (cursor == index) cursor = entry.next;
    entry.next = unused_;
    unused_ = index;
    --size_;
}

void Outstanding::finish_below(uint32_t consumer, uint64_t sequence, std::vector<SlotRef>& freed) {
    uint32_t& cursor = cursors_[consumer];
    while (cursor != kEnd && entries_[cursor].sequence < sequence) {
        const uint32_t index = cursor;
        cursor = entries_[index].next;
        clear_bit(index, consumer, freed);
    }
}

std::vector<uint64_t> Outstanding::frames_below(uint32_t consumer, uint64_t sequence) const {
    std::vector<uint64_t> found;
    const uint64_t bit = uint64_t{1} << consumer;
    for (uint32_t index = cursors_[consumer]; index != kEnd; index = entries_[index].next) {
        const Entry& entry = entries_[index];
        if (entry.sequence >= sequence) break;
        const bool frame = entry.source_index != MO_UNKNOWN_U64 && entry.slot.exists();
        if (frame && (entry.needed_by & bit) != 0) found.push_back(entry.source_index);
    }
    return found;
}

void Outstanding::finish_one(uint32_t consumer, uint64_t sequence, std::vector<SlotRef>& freed) {
    uint32_t index = cursors_[consumer];
    while (index != kEnd && entries_[index].sequence < sequence) index = entries_[index].next;
    if (index != kEnd && entries_[index].sequence == sequence) clear_bit(index, consumer, freed);
}

uint64_t Outstanding::needed_below(uint32_t consumer, uint64_t sequence) const noexcept {
    uint64_t count = 0;
    for (uint32_t index = cursors_[consumer]; index != kEnd; index = entries_[index].next) {
        if (entries_[index].sequence >= sequence) break;
        count += entries_[index].needed_by >> consumer & 1;
    }
    return count;
}

}  // namespace mo

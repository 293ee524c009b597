#include "memory.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fake_memory.hpp"

namespace mo::explore {
namespace {

bool acquires(std::memory_order order) {
    return order == std::memory_order_acquire || order == std::memory_order_acq_rel ||
           order == std::memory_order_seq_cst;
}

bool releases(std::memory_order order) {
    return order == std::memory_order_release || order == std::memory_order_acq_rel ||
           order == std::memory_order_seq_cst;
}

}  // namespace

void Memory::forget_execution() {
    ++execution_;
    payloads_.clear();
    views_.fill(View());
    unacquired_.fill(View());
    fenced_.fill(View());
    problem_.clear();
}

void Memory::forget_everything() {
    forget_execution();
    words_.clear();
    indices_.clear();
}

int Memory::index(const void* address, size_t bytes) {
    const auto [found, is_new] = indices_.try_emplace(address, static_cast<int>(words_.size()));
    if (is_new) {
        if (words_.size() == kWords) {
            std::fprintf(stderr, "the explorer keeps the history of %d words only\n", kWords);
            std::abort();
        }
        Word& word = words_.emplace_back();
        word.address = static_cast<uint8_t*>(const_cast<void*>(address));
        word.bytes = bytes;
        describe(address, word.kind, word.name);
    }
    Word& word = words_[found->second];
    if (word.execution != execution_) begin(word);
    return found->second;
}

// Whatever lies there was written before anybody else could look.
void Memory::begin(Word& word) {
    word.execution = execution_;
    word.used = 0;
    word.newest_seq_cst = 0;
    word.last_read.fill(0);
    word.last_read_life.fill(0);
    word.last_read_ordered.fill(true);
    word.counted.clear();
    word.kernel = View();
    Message& first = word.append();
    first.value = 0;
    if (word.bytes <= sizeof first.value)
        std::memcpy(&first.value, word.address, word.bytes);
    else
        first.block.assign(word.address, word.address + word.bytes);
    first.released = first.known = View();
    first.thread = kMain;
    first.life = 0;
    first.step = 0;
}

void Memory::broken(const Word& word, const char* rule) {
    if (problem_.empty()) problem_ = word.name + ": " + rule;
}

int Memory::older(int index, int thread, std::memory_order order) {
    Word& word = words_[index];
    int oldest = views_[thread].word(index);
    if (order == std::memory_order_seq_cst) oldest = std::max(oldest, word.newest_seq_cst);
    return static_cast<int>(word.used) - 1 - oldest;
}

const Memory::Message& Memory::read(int index, int thread, std::memory_order order, int age) {
    Word& word = words_[index];
    View& view = views_[thread];
    const int at = static_cast<int>(word.used) - 1 - age;
    const Message& message = word.history[at];
    view.word(index) = std::max(view.word(index), static_cast<int16_t>(at));
    if (acquires(order))
        view.join(message.released);
    else
        unacquired_[thread].join(message.released);
    word.last_read[thread] = static_cast<int16_t>(at);
    word.last_read_life[thread] = ++view.life(thread);
    word.last_read_ordered[thread] = view.life(message.thread) >= message.life;
    return message;
}

Memory::Message& Memory::write(int index, int thread, uint16_t step, uint64_t value, std::memory_order order) {
    Word& word = words_[index];
    View& view = views_[thread];
    ++view.life(thread);
    for (const Copy& copy : word.counted)
        if (view.life(copy.thread) < copy.life) broken(word, "rewritten while a copy that counts may still be made");
    Message& message = word.append();
    const auto at = static_cast<int16_t>(word.used - 1);
    view.word(index) = at;
    message.value = value;
    message.known = view;
    if (releases(order)) {
        message.released = view;
    } else {
        message.released = fenced_[thread];
        message.released.word(index) = at;
    }
    message.thread = thread;
    message.life = view.life(thread);
    message.step = step;
    if (order == std::memory_order_seq_cst) word.newest_seq_cst = at;
    return message;
}

uint64_t Memory::load(int word, int thread, std::memory_order order, int age) {
    return read(word, thread, order, age).value;
}

void Memory::load_block(int word, int thread, void* to, int age) {
    const Message& message = read(word, thread, std::memory_order_relaxed, age);
    std::memcpy(to, message.block.data(), message.block.size());
}

// The real memory always holds the newest: for plain reads by the only writer.
void Memory::store(int word, int thread, uint16_t step, uint64_t value, std::memory_order order) {
    write(word, thread, step, value, order);
    std::memcpy(words_[word].address, &value, words_[word].bytes);
}

void Memory::store_block(int word, int thread, uint16_t step, const void* from) {
    const auto* bytes = static_cast<const uint8_t*>(from);
    Message& message = write(word, thread, step, 0, std::memory_order_relaxed);
    message.block.assign(bytes, bytes + words_[word].bytes);
    std::memcpy(words_[word].address, from, words_[word].bytes);
}

bool Memory::compare_exchange(int word, int thread, uint16_t step, uint64_t& expected, uint64_t desired,
                              std::memory_order order) {
    const bool equal = words_[word].newest().value == expected;
    const auto load_order = equal ? order : std::min(order, std::memory_order_acquire);
    const Message found = read(word, thread, load_order, 0);
    expected = found.value;
    if (!equal) return false;
    Message& written = write(word, thread, step, desired, order);
    written.released.join(found.released);  // it continues the release sequence
    std::memcpy(words_[word].address, &desired, words_[word].bytes);
    return true;
}

uint64_t Memory::fetch_add(int word, int thread, uint16_t step, uint64_t value, std::memory_order order) {
    const Message found = read(word, thread, order, 0);
    const uint64_t sum = words_[word].bytes == 8 ? found.value + value : (found.value + value) & UINT32_MAX;
    Message& written = write(word, thread, step, sum, order);
    written.released.join(found.released);
    std::memcpy(words_[word].address, &sum, words_[word].bytes);
    return found.value;
}

void Memory::fence(int thread, std::memory_order order) {
    View& view = views_[thread];
    ++view.life(thread);
    if (acquires(order)) view.join(unacquired_[thread]);
    if (order == std::memory_order_seq_cst) {
        for (size_t i = 0; i < words_.size(); ++i) {
            Word& word = words_[i];
            if (word.execution != execution_) continue;
            const int16_t seen = std::max(view.word(static_cast<int>(i)), static_cast<int16_t>(word.newest_seq_cst));
            view.word(static_cast<int>(i)) = seen;
            word.newest_seq_cst = seen;
        }
    }
    if (releases(order)) fenced_[thread] = view;
}

void Memory::write_payload(const void* address, int thread, uint64_t stamp) {
    Payload& payload = payloads_[address];
    View& view = views_[thread];
    const int16_t life = ++view.life(thread);
    bool ordered = payload.writer == thread || view.life(payload.writer) >= payload.writer_life;
    for (int other = 0; other < kThreads; ++other)
        ordered &= other == thread || view.life(other) >= payload.reader_life[other];
    if (!ordered && problem_.empty())
        problem_ = "the payload of frame " + std::to_string(payload.stamp) + " is overwritten by frame " +
                   std::to_string(stamp) + " while somebody may still read it";
    payload.stamp = stamp;
    payload.writer = thread;
    payload.writer_life = life;
}

uint64_t Memory::read_payload(const void* address, int thread) {
    Payload& payload = payloads_[address];
    View& view = views_[thread];
    if (payload.writer != thread && view.life(payload.writer) < payload.writer_life && problem_.empty())
        problem_ = "the payload of frame " + std::to_string(payload.stamp) +
                   " is read before it was certainly written";
    payload.reader_life[thread] = ++view.life(thread);
    return payload.stamp;
}

void Memory::copy_counts(const void* cell, int thread) {
    const auto* first = static_cast<const uint8_t*>(cell);
    for (const void* part : {static_cast<const void*>(first), static_cast<const void*>(first + 8)}) {
        const auto found = indices_.find(part);
        if (found == indices_.end()) continue;
        Word& word = words_[found->second];
        if (word.execution != execution_) continue;
        const int16_t life = word.last_read_life[thread];
        if (!word.last_read_ordered[thread])
            broken(word, "copied before it was certainly written");
        for (size_t later = static_cast<size_t>(word.last_read[thread]) + 1; later < word.used; ++later)
            if (word.history[later].known.life(thread) < life)
                broken(word, "rewritten while a copy that counts was made");
        word.counted.push_back({thread, life});
    }
}

}  // namespace mo::explore

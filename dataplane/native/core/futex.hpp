// Sleeping on shared words. Every sleep is bounded and may end early: callers check in a loop.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "atomics.hpp"

namespace mo {

// Words to sleep on, with the values that were seen when deciding to sleep. Keeps the memory they lie in
// mapped, so the sleeper needs no lock while somebody else closes the ring.
class WaitSet {
  public:
    void add(const uint32_t& word, uint32_t seen, std::shared_ptr<const void> owner) {
        words_.push_back({&word, seen, std::move(owner)});
    }

    void add(const WaitSet& other) { words_.insert(words_.end(), other.words_.begin(), other.words_.end()); }
    // Whether a word has another value than seen.
    bool changed() const noexcept;

    // Until a word is woken or has another value than seen, a signal arrives, or the time is over.
    void sleep(int64_t timeout_ns) const;

  private:
    struct Word {
        const uint32_t* word = nullptr;
        uint32_t seen = 0;
        std::shared_ptr<const void> owner;
    };

    std::vector<Word> words_;
};

// Wakes everybody who sleeps on the word.
void futex_wake(const uint32_t& word) noexcept;

// The low half of a counter, which is what its sleepers watch.
inline const uint32_t& low_word(const uint64_t& word) noexcept {
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
    return reinterpret_cast<const uint32_t&>(word);
}

// Where the kernel has none (before 5.16), or takes fewer words, sleeps on several are polls of 1 ms.
bool have_futex_waitv() noexcept;
void pretend_no_futex_waitv(bool pretend) noexcept;  // for tests

}  // namespace mo

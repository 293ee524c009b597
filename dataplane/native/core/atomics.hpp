// Atomic access to the words of the shared layouts, which are plain C structs. Every access to a shared word goes
// through here (and every sleep through futex.hpp): tests/native/explore replaces both, and so runs this code
// through all interleavings.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#ifdef MO_EXPLORE
#include "explored_atomics.hpp"
#else

namespace mo {

static_assert(std::atomic_ref<uint64_t>::is_always_lock_free &&
                  std::atomic_ref<uint32_t>::is_always_lock_free,
              "the shared words need lock-free atomics");

// A const word may lie in a read-only mapping: loads never write there, and atomic_ref<const T> is C++26.
template <class T>
T load(const T& word, std::memory_order order) noexcept {
    return std::atomic_ref<T>(const_cast<T&>(word)).load(order);
}
template <class T>
T load_relaxed(const T& word) noexcept {
    return load(word, std::memory_order_relaxed);
}
template <class T>
T load_acquire(const T& word) noexcept {
    return load(word, std::memory_order_acquire);
}
template <class T>
T load_seq_cst(const T& word) noexcept {
    return load(word, std::memory_order_seq_cst);
}
template <class T>
void store_relaxed(T& word, T value) noexcept {
    std::atomic_ref<T>(word).store(value, std::memory_order_relaxed);
}
template <class T>
void store_release(T& word, T value) noexcept {
    std::atomic_ref<T>(word).store(value, std::memory_order_release);
}
template <class T>
void store_seq_cst(T& word, T value) noexcept {
    std::atomic_ref<T>(word).store(value, std::memory_order_seq_cst);
}
// On failure `expected` is what was found.
template <class T>
bool compare_exchange(T& word, T& expected, T desired) noexcept {
    return std::atomic_ref<T>(word).compare_exchange_strong(expected, desired, std::memory_order_seq_cst,
                                                            std::memory_order_acquire);
}
// Returns what was there before.
template <class T>
T fetch_add(T& word, T value) noexcept {
    return std::atomic_ref<T>(word).fetch_add(value, std::memory_order_seq_cst);
}
inline void fence_acquire() noexcept { std::atomic_thread_fence(std::memory_order_acquire); }
inline void fence_seq_cst() noexcept { std::atomic_thread_fence(std::memory_order_seq_cst); }

// A descriptor may be rewritten while a drop_oldest consumer copies it (its compare-and-swap then fails and
// the copy is thrown away), so both sides copy it word by word with relaxed atomics, which are plain moves.
template <class T>
void store_words(T& shared, const T& value) noexcept {
    static_assert(sizeof(T) % sizeof(uint64_t) == 0 && alignof(T) >= alignof(uint64_t));
    auto* to = reinterpret_cast<uint64_t*>(&shared);
    const auto* from = reinterpret_cast<const uint64_t*>(&value);
#pragma GCC unroll 32  // twice as fast: atomics are not vectorised, and the loop costs as much as the moves
    for (size_t i = 0; i < sizeof(T) / sizeof(uint64_t); ++i) store_relaxed(to[i], from[i]);
}
template <class T>
void load_words(T& value, const T& shared) noexcept {
    static_assert(sizeof(T) % sizeof(uint64_t) == 0 && alignof(T) >= alignof(uint64_t));
    auto* to = reinterpret_cast<uint64_t*>(&value);
    const auto* from = reinterpret_cast<const uint64_t*>(&shared);
#pragma GCC unroll 32
    for (size_t i = 0; i < sizeof(T) / sizeof(uint64_t); ++i) to[i] = load_relaxed(from[i]);
}

}  // namespace mo

#endif

// What atomics.hpp is in a build with MO_EXPLORE: every access to a shared word becomes a step of the explorer.
#pragma once

#include <cstring>
#include <source_location>
#include <type_traits>

#include "seam.hpp"

namespace mo {

using Site = std::source_location;

template <class T>
T load(const T& word, std::memory_order order, Site site = Site::current()) noexcept {
    return static_cast<T>(explore::load(&word, sizeof word, order, site));
}
template <class T>
T load_relaxed(const T& word, Site site = Site::current()) noexcept {
    return load(word, std::memory_order_relaxed, site);
}
template <class T>
T load_acquire(const T& word, Site site = Site::current()) noexcept {
    return load(word, std::memory_order_acquire, site);
}
template <class T>
T load_seq_cst(const T& word, Site site = Site::current()) noexcept {
    return load(word, std::memory_order_seq_cst, site);
}
template <class T>
void store_relaxed(T& word, std::type_identity_t<T> value, Site site = Site::current()) noexcept {
    explore::store(&word, sizeof word, value, std::memory_order_relaxed, site);
}
template <class T>
void store_release(T& word, std::type_identity_t<T> value, Site site = Site::current()) noexcept {
    explore::store(&word, sizeof word, value, std::memory_order_release, site);
}
template <class T>
void store_seq_cst(T& word, std::type_identity_t<T> value, Site site = Site::current()) noexcept {
    explore::store(&word, sizeof word, value, std::memory_order_seq_cst, site);
}
template <class T>
bool compare_exchange(T& word, T& expected, std::type_identity_t<T> desired, Site site = Site::current()) noexcept {
    uint64_t found = expected;
    const bool swapped = explore::compare_exchange(&word, sizeof word, found, desired, site);
    expected = static_cast<T>(found);
    return swapped;
}
template <class T>
T fetch_add(T& word, std::type_identity_t<T> value, Site site = Site::current()) noexcept {
    return static_cast<T>(explore::fetch_add(&word, sizeof word, value, site));
}

inline void fence_acquire(Site site = Site::current()) noexcept { explore::fence(std::memory_order_acquire, site); }
inline void fence_seq_cst(Site site = Site::current()) noexcept { explore::fence(std::memory_order_seq_cst, site); }

// Two steps, not one per word: the first word (a descriptor's sequence), and the rest. So a torn copy is one whose
// sequence and contents do not belong together, and the number of interleavings stays bearable.
template <class T>
void store_words(T& shared, const T& value, Site site = Site::current()) noexcept {
    uint64_t first;
    std::memcpy(&first, &value, sizeof first);
    auto* const to = reinterpret_cast<uint8_t*>(&shared);
    const auto* const from = reinterpret_cast<const uint8_t*>(&value);
    explore::store(to, sizeof first, first, std::memory_order_relaxed, site);
    explore::store_block(to + sizeof first, from + sizeof first, sizeof(T) - sizeof first, site);
}
template <class T>
void load_words(T& value, const T& shared, Site site = Site::current()) noexcept {
    const auto* const from = reinterpret_cast<const uint8_t*>(&shared);
    auto* const to = reinterpret_cast<uint8_t*>(&value);
    const uint64_t first = explore::load(from, sizeof first, std::memory_order_relaxed, site);
    std::memcpy(to, &first, sizeof first);
    explore::load_block(to + sizeof first, from + sizeof first, sizeof(T) - sizeof first, site);
}

}  // namespace mo

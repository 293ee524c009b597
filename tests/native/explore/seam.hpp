// The functions through which the explored code touches shared words. machine.cpp has them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <source_location>

namespace mo::explore {

uint64_t load(const void* word, size_t bytes, std::memory_order order, const std::source_location& site) noexcept;
void store(void* word, size_t bytes, uint64_t value, std::memory_order order,
           const std::source_location& site) noexcept;
// Sequentially consistent; acquire on failure, and `expected` is what was found.
bool compare_exchange(void* word, size_t bytes, uint64_t& expected, uint64_t desired,
                      const std::source_location& site) noexcept;
uint64_t fetch_add(void* word, size_t bytes, uint64_t value, const std::source_location& site) noexcept;
void fence(std::memory_order order, const std::source_location& site) noexcept;
// Relaxed copies of several words, as one step.
void store_block(void* to, const void* from, size_t bytes, const std::source_location& site) noexcept;
void load_block(void* to, const void* from, size_t bytes, const std::source_location& site) noexcept;

}  // namespace mo::explore

#include "arena.hpp"

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

constexpr size_t kBytes = size_t{256} << 20;
uint8_t* memory = nullptr;
size_t used = 0;
bool inside = false;

bool is_ours(const void* pointer) {
    return memory != nullptr && pointer >= memory && pointer < memory + kBytes;
}

void* take(size_t bytes) {
    if (memory == nullptr) {
        void* data =
            mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (data == MAP_FAILED) std::abort();
        memory = static_cast<uint8_t*>(data);
    }
    const size_t at = (used + 15) / 16 * 16;
    if (at + bytes > kBytes) std::abort();
    used = at + bytes;
    return memory + at;
}

void* allocate(size_t bytes) {
    if (inside) return take(bytes);
    if (void* data = std::malloc(bytes != 0 ? bytes : 1)) return data;
    throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t bytes) { return allocate(bytes); }
void* operator new[](size_t bytes) { return allocate(bytes); }
void operator delete(void* data) noexcept {
    if (!is_ours(data)) std::free(data);
}
void operator delete[](void* data) noexcept {
    if (!is_ours(data)) std::free(data);
}
void operator delete(void* data, size_t) noexcept { operator delete(data); }
void operator delete[](void* data, size_t) noexcept { operator delete(data); }

namespace mo::explore {

Inside::Inside() noexcept : before_(inside) { inside = true; }
Inside::~Inside() { inside = before_; }
Outside::Outside() noexcept : before_(inside) { inside = false; }
Outside::~Outside() { inside = before_; }

void set_inside(bool now) noexcept { inside = now; }
void forget_arena() noexcept { used = 0; }

}  // namespace mo::explore

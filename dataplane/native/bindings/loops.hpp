// Telling event loops of what happens within this process, where no futex says it.
#pragma once

#include <cstddef>

namespace bindings {

extern size_t watches_armed;  // by all event loops of the process
void poke_watches(const void* what) noexcept;

// Something changed about a producer or a consumer that somebody may wait for: a slot that came back unpublished, a
// close. Costs a look at a word while nobody waits.
inline void poke(const void* what) noexcept {
    if (watches_armed != 0) [[unlikely]]
        poke_watches(what);
}

}  // namespace bindings

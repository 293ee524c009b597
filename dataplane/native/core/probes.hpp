// Static probes: each frame event is also one of these, for tracers that attach from outside. What the module was
// built with decides: an LTTng tracepoint and a USDT note from one macro, a USDT note alone, or nothing.
#pragma once

#include <cstddef>
#include <string>

#include "event.h"

namespace mo {

// Fires the probe of each event's kind. An instruction that does nothing while no tracer is attached.
void fire_probes(const mo_frame_event* events, size_t count) noexcept;

struct ProbesBuilt {
    bool usdt;
    bool lttng;
};
ProbesBuilt probes_built() noexcept;

// Loads the library with LTTng's side of the probes, which lies beside this module, and with it LTTng itself; RingError
// when that cannot be. Once is enough; never before a fork, because LTTng's threads do not survive one.
void load_lttng_provider();

// The same if OBSERVATORY_LTTNG is set (and not 0), saying on stderr what goes wrong: tracing never breaks the work.
void load_lttng_provider_if_asked() noexcept;

}  // namespace mo

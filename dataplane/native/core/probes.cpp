#include "probes.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "error.hpp"

#if defined(OBSERVATORY_PROBES_LTTNG)
// Not linked: LTTng's header looks for the little library of its call sites itself, and is silent without it.
#define LTTNG_UST_TRACEPOINT_DEFINE
#define LTTNG_UST_TRACEPOINT_PROBE_DYNAMIC_LINKAGE
#define LTTNG_UST_TRACEPOINT_HIDDEN_DEFINITION
#define LTTNG_UST_HAVE_SDT_INTEGRATION  // the same macro leaves a USDT note
#include "dataplane/native/lttng/tracepoints.h"
#define PROBE(name, ...) lttng_ust_tracepoint(observatory, name, __VA_ARGS__)
#elif defined(OBSERVATORY_PROBES_SDT)
#include <sys/sdt.h>
#define PROBE(name, ...) STAP_PROBE8(observatory, name, __VA_ARGS__)
#else
#define PROBE(name, ...) static_cast<void>(0)
#endif

#if defined(OBSERVATORY_PROBES_LTTNG) || defined(OBSERVATORY_PROBES_SDT)
#define OBSERVATORY_HAS_USDT true
#ifdef __x86_64__
// Five bytes are what the kernel can replace by a call where it is able to; one byte always traps.
#undef _SDT_NOP
#define _SDT_NOP .nops 5
#endif
#else
#define OBSERVATORY_HAS_USDT false
#endif

#ifdef OBSERVATORY_PROBES_LTTNG
#define OBSERVATORY_HAS_LTTNG true
#else
#define OBSERVATORY_HAS_LTTNG false
#endif

namespace mo {

#define PROBE_EVENT(name)                                                                             \
    PROBE(name, event.stream, event.epoch, event.source_index, event.pts, event.place, event.slot,   \
          event.bytes, event.time_ns)

void fire_probes(const mo_frame_event* events, size_t count) noexcept {
    if constexpr (!OBSERVATORY_HAS_USDT) return;
    for (const mo_frame_event *at = events, *end = events + count; at != end; ++at) {
        [[maybe_unused]] const mo_frame_event& event = *at;
        switch (event.kind) {
            case MO_DMA_BUF_ALLOC: PROBE_EVENT(dma_buf_alloc); break;
            case MO_PRODUCER_KERNEL_LAUNCH: PROBE_EVENT(producer_kernel_launch); break;
            case MO_FENCE_SIGNAL: PROBE_EVENT(fence_signal); break;
            case MO_LINK_START: PROBE_EVENT(link_start); break;
            case MO_LINK_END: PROBE_EVENT(link_end); break;
            case MO_CONSUMER_WAIT_FENCE: PROBE_EVENT(consumer_wait_fence); break;
            case MO_CONSUMER_KERNEL_LAUNCH: PROBE_EVENT(consumer_kernel_launch); break;
            case MO_SLOT_RELEASE: PROBE_EVENT(slot_release); break;
            default: break;
        }
    }
}

ProbesBuilt probes_built() noexcept { return {OBSERVATORY_HAS_USDT, OBSERVATORY_HAS_LTTNG}; }

void load_lttng_provider() {
    if constexpr (!OBSERVATORY_HAS_LTTNG)
        throw RingError("this module was built without LTTng (liblttng-ust-dev was missing)");
    Dl_info here;
    if (dladdr(reinterpret_cast<void*>(&load_lttng_provider), &here) == 0 || here.dli_fname == nullptr)
        throw RingError("cannot find out where this module lies");
    std::string path(here.dli_fname);
    path = path.substr(0, path.rfind('/') + 1) + "libobservatory-lttng.so";
    // For good: LTTng's threads live in it.
    if (dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) == nullptr)
        throw RingError(std::string("cannot load LTTng's provider: ") + dlerror());
}

void load_lttng_provider_if_asked() noexcept {
    const char* asked = std::getenv("OBSERVATORY_LTTNG");
    if (asked == nullptr || *asked == '\0' || std::strcmp(asked, "0") == 0) return;
    try {
        load_lttng_provider();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "OBSERVATORY_LTTNG: not traced: %s\n", error.what());
    }
}

}  // namespace mo

// What LTTng knows of the frame events: one tracepoint per kind, all with the same fields. Included twice by LTTng's own
// headers, and compiled twice: the call sites in the core, the recording in the provider.
#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER observatory
#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "dataplane/native/lttng/tracepoints.h"

#if !defined(OBSERVATORY_TRACEPOINTS_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define OBSERVATORY_TRACEPOINTS_H

#include <lttng/tracepoint.h>
#include <stdint.h>

#define OBSERVATORY_ARGUMENTS                                                                              \
    LTTNG_UST_TP_ARGS(uint32_t, stream_id, uint32_t, epoch_number, uint64_t, index, int64_t, pts_value,    \
                      uint32_t, place_id, uint32_t, slot_id, uint32_t, byte_count, int64_t, time)
#define OBSERVATORY_FIELDS                                                                                 \
    LTTNG_UST_TP_FIELDS(                                                                                   \
        lttng_ust_field_integer(uint32_t, stream, stream_id)                                               \
        lttng_ust_field_integer(uint32_t, epoch, epoch_number)                                             \
        lttng_ust_field_integer(uint64_t, source_index, index)                                             \
        lttng_ust_field_integer(int64_t, pts, pts_value)                                                   \
        lttng_ust_field_integer(uint32_t, place, place_id)                                                 \
        lttng_ust_field_integer(uint32_t, slot, slot_id)                                                   \
        lttng_ust_field_integer(uint32_t, bytes, byte_count)                                               \
        lttng_ust_field_integer(int64_t, time_ns, time))

LTTNG_UST_TRACEPOINT_EVENT_CLASS(observatory, frame_event, OBSERVATORY_ARGUMENTS, OBSERVATORY_FIELDS)

#define OBSERVATORY_EVENT(name) \
    LTTNG_UST_TRACEPOINT_EVENT_INSTANCE(observatory, frame_event, observatory, name, OBSERVATORY_ARGUMENTS)

OBSERVATORY_EVENT(dma_buf_alloc)
OBSERVATORY_EVENT(producer_kernel_launch)
OBSERVATORY_EVENT(fence_signal)
OBSERVATORY_EVENT(link_start)
OBSERVATORY_EVENT(link_end)
OBSERVATORY_EVENT(consumer_wait_fence)
OBSERVATORY_EVENT(consumer_kernel_launch)
OBSERVATORY_EVENT(slot_release)

#endif

#include <lttng/tracepoint-event.h>

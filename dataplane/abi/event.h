/* Frame event and the event ring that carries it from one traced process to the collector. Version 1. */
#ifndef MEDIA_OBSERVATORY_EVENT_H
#define MEDIA_OBSERVATORY_EVENT_H

#include "abi.h"

#define MO_EVENT_ABI 1u
#define MO_EVENT_RING_MAGIC 0x4D4F4556u /* "MOEV" */

/* The order is the order of a frame's life on one hop, and the index into mo_frame_record.times_ns. */
enum mo_event_kind {
    MO_DMA_BUF_ALLOC = 0,          /* producer: slot acquired */
    MO_PRODUCER_KERNEL_LAUNCH = 1, /* producer: work on the frame starts */
    MO_FENCE_SIGNAL = 2,           /* producer: published */
    MO_LINK_START = 3,             /* the hop crosses a link: transfer starts */
    MO_LINK_END = 4,               /* and ends */
    MO_CONSUMER_WAIT_FENCE = 5,    /* consumer: ready for this frame (may precede the signal) */
    MO_CONSUMER_KERNEL_LAUNCH = 6, /* consumer: work on the frame starts */
    MO_SLOT_RELEASE = 7,           /* consumer: acknowledged */
    MO_EVENT_KINDS = 8
};

struct mo_frame_event {
    int64_t time_ns;
    uint64_t source_index;
    int64_t pts;
    uint32_t time_base_num;
    uint32_t time_base_den;
    uint32_t stream;
    uint32_t epoch;
    uint32_t place;  /* kinds 0-2: port id of the run manifest; kinds 3-7: hop id */
    uint32_t slot;   /* slab << 16 | slot within the slab */
    uint32_t bytes;  /* payload bytes; kinds 0-2 only, else MO_UNKNOWN_U32 */
    uint16_t kind;   /* enum mo_event_kind */
    uint16_t device; /* index into the run manifest's devices: where this really ran */
    uint64_t reserved;
};

/* One writer (the traced process), one reader (the collector). A full ring loses the new event and counts it:
 * tracing never makes a frame wait. `events` follow the header. */
struct mo_event_ring {
    uint32_t magic;
    uint32_t abi;
    uint32_t capacity; /* power of two */
    uint32_t event_bytes;
    uint64_t reserved[2];
    MO_ALIGNED uint64_t head; /* writer: events ever written; the only commit */
    uint64_t lost;                   /* writer: events refused because the ring was full */
    MO_ALIGNED uint64_t tail; /* reader: events ever read */
};

#endif

/* Frame record: one frame crossing one edge (a hop). Version 1, 120 bytes. */
#ifndef MEDIA_OBSERVATORY_RECORD_H
#define MEDIA_OBSERVATORY_RECORD_H

#include "abi.h"
#include "event.h"

#define MO_RECORD_ABI 1u

enum mo_record_flags {
    MO_RECORD_INCOMPLETE = 1u << 0, /* at least one expected event never came */
    MO_RECORD_LINEAGE = 1u << 1,    /* parents differ from {source_index}: see the lineage table */
    MO_RECORD_DROPPED = 1u << 2,    /* the edge's drop_oldest policy discarded the frame before this consumer */
    MO_RECORD_KEY_FRAME = 1u << 3
};

struct mo_frame_record {
    uint32_t stream;
    uint32_t epoch;
    uint64_t source_index; /* inherited along the DAG from the source; never a local counter */
    int64_t pts;           /* as it crosses this edge */
    uint32_t time_base_num;
    uint32_t time_base_den;
    uint32_t hop; /* index into the run manifest's hops */
    uint32_t slot;
    uint32_t bytes;
    uint16_t producer_device; /* planned: index into the run manifest's devices */
    uint16_t consumer_device;
    uint16_t producer_real_device; /* where it really ran */
    uint16_t consumer_real_device;
    uint16_t flags;
    uint16_t version;
    int64_t times_ns[MO_EVENT_KINDS]; /* by mo_event_kind; MO_UNKNOWN_I64 where not seen */
};

#endif

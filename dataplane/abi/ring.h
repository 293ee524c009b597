/* Broadcast ring of descriptors and the consumer page. Version 3.
 *
 * One producer port, one ring, one producer process; any number of admitted consumers, each with a page of its own.
 * Every shared word has one writer, except `taken` of a page admitted with MO_DROP_OLDEST (a compare-and-swap; the
 * winner owns the frame). Payload lives in slabs, separate memfds that readers can never map writable.
 *
 * Commit: the store to `tail` (release). Whatever happens before it has not happened.
 * Free: a slot is free when every admitted page has acknowledged the sequence that carried it.
 * End: `final_seq` leaves MO_UNKNOWN_U64 once, written by the producer when it finishes, or by the supervisor after
 * the producer's pidfd has reported its death; consumers read up to it and then see the end of the ring.
 * Admission: the producer lists every admitted page, by the page's random id, with the first sequence it keeps for
 * it. A consumer starts exactly there, whether it attached before or after it was admitted. When a consumer dies, another
 * page takes its place in the list and starts at what the dead one had not acknowledged. When its work is handed over
 * to another consumer, `stop` says where its share ends and the other's starts; the producer stores it between two
 * commits, so no sequence is in both shares or in none.
 * Cells: the descriptor of sequence s may be rewritten for s + capacity once every page has acknowledged s (under
 * MO_DROP_OLDEST: once its `taken` is past s, for it is not delivered twice there).
 * Wake-up: sleepers on data wait on `doorbell`, which is bumped after a commit when a page says `waiting`, and always
 * at an admission and at the end. A producer without room says `producer_waiting` and sleeps on the low words of the
 * pages' `acked` (and, for MO_DROP_OLDEST, of `taken` when it lacks a descriptor); who stores them wakes it.
 */
#ifndef MEDIA_OBSERVATORY_RING_H
#define MEDIA_OBSERVATORY_RING_H

#include "abi.h"

#define MO_RING_ABI 3u
#define MO_RING_MAGIC 0x4D4F5247u /* "MORG" */
#define MO_PAGE_MAGIC 0x4D4F5047u /* "MOPG" */
#define MO_MAX_PLANES 4
#define MO_PAGE_BYTES 4096
#define MO_MAX_CONSUMERS 64 /* admitted to one ring at the same time */

enum mo_payload_kind {
    MO_VIDEO_FRAME = 1,      /* raw planes */
    MO_VIDEO_PACKET = 2,     /* one coded packet */
    MO_AUDIO_PACKET = 3,     /* one coded packet, passed through; no frame events */
    MO_CODEC_PARAMETERS = 4, /* JSON of model.media.CodecParameters: first on a packet ring, again when it changes */
    MO_FRAME_LOST = 5        /* no payload: the frame of this source index will not come (reason in the manifest) */
};

enum mo_pixel_format { MO_PIXEL_NONE = 0, MO_YUV420P = 1, MO_NV12 = 2, MO_YUV420P10LE = 3, MO_P010LE = 4 };

enum mo_descriptor_flags { MO_KEY_FRAME = 1u << 0, MO_DISCONTINUITY = 1u << 1, MO_CORRUPT = 1u << 2 };

enum mo_edge_policy { MO_BLOCK = 0, MO_DROP_OLDEST = 1 };

/* MO_END_MIGRATED: another ring follows. MO_END_CUT is never in a ring: the share of one consumer ended. */
enum mo_end_reason {
    MO_END_NONE = 0,
    MO_END_OF_STREAM = 1,
    MO_END_STOPPED = 2,
    MO_END_FAILED = 3,
    MO_END_MIGRATED = 4,
    MO_END_CUT = 5
};

struct mo_descriptor {
    uint64_t sequence; /* position in the ring; a reader checks it */
    uint64_t source_index;
    int64_t pts;
    int64_t dts;
    int64_t duration;
    uint32_t time_base_num;
    uint32_t time_base_den;
    uint32_t stream_index; /* which of a port's elementary streams (audio) */
    uint16_t payload_kind; /* enum mo_payload_kind */
    uint16_t pixel_format; /* enum mo_pixel_format */
    uint32_t width;
    uint32_t height;
    uint32_t slab;   /* index into the producer's slabs */
    uint32_t slot;   /* index within the slab */
    uint64_t offset; /* of the payload within the slab, bytes */
    uint64_t bytes;
    uint32_t plane_offset[MO_MAX_PLANES]; /* from `offset`, bytes */
    uint32_t plane_stride[MO_MAX_PLANES]; /* bytes */
    uint16_t plane_count;
    uint8_t color_primaries; /* ITU-T H.273 code points */
    uint8_t color_transfer;
    uint8_t color_matrix;
    uint8_t color_range; /* 0 unknown, 1 limited, 2 full */
    uint16_t reserved0;
    uint32_t sample_aspect_num;
    uint32_t sample_aspect_den;
    uint32_t flags; /* enum mo_descriptor_flags */
    uint32_t parent_count; /* 0: the only parent is source_index itself */
    uint64_t fence_value;  /* the payload is complete once the port's timeline has reached it */
    int64_t alloc_ns;  /* this and the next two are MO_UNKNOWN_I64 where the port is not traced */
    int64_t launch_ns;
    int64_t signal_ns;
    uint32_t epoch; /* of the stream, for the frame's events; 0: the epoch that the port's or edge's trace says */
    uint32_t reserved1;
    uint64_t reserved2[9];
};

struct mo_admission {
    uint64_t page_id; /* 0: nobody; stored last */
    uint64_t start;   /* the first sequence that is kept for this page */
    uint64_t stop;    /* the first sequence that is no longer; MO_UNKNOWN_U64: none yet */
    uint64_t reserved;
};

struct mo_ring_header {
    uint32_t magic;
    uint32_t abi;
    uint32_t capacity; /* descriptors; power of two */
    uint32_t descriptor_bytes;
    uint64_t incarnation;
    uint64_t first_sequence; /* where this incarnation starts: the previous one's final_seq, unknown while that runs */
    uint32_t producer_pid;
    uint32_t reserved0;
    MO_ALIGNED uint64_t tail; /* producer: next sequence; the only commit */
    MO_ALIGNED uint32_t doorbell;
    MO_ALIGNED uint32_t producer_waiting;
    MO_ALIGNED uint64_t final_seq;
    uint32_t end_reason;
    uint32_t reserved1;
    MO_ALIGNED struct mo_admission admissions[MO_MAX_CONSUMERS]; /* producer; `capacity` descriptors follow */
};

struct mo_consumer_page {
    uint32_t magic;
    uint32_t abi;
    uint32_t consumer_pid;
    uint32_t policy; /* enum mo_edge_policy */
    uint64_t page_id; /* random, not 0: what the ring's admissions name */
    MO_ALIGNED uint64_t taken; /* next sequence this consumer will take; MO_UNKNOWN_U64 before the first ring */
    MO_ALIGNED uint64_t acked; /* every sequence below is acknowledged (or was dropped before it) */
    MO_ALIGNED uint64_t held;  /* taken and not acknowledged, now */
    MO_ALIGNED uint32_t waiting; /* not 0 while the consumer sleeps on the doorbell */
};

#endif

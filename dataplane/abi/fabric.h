/* The emulated fabric: what links can do, how they are now, and who is on them. Version 1.
 *
 * Two files. The fabric's (mo_fabric_header, then mo_link for every link) has one writer, the process that made it: it
 * is sealed against everybody else's writing. The traffic's (mo_traffic_header, then two mo_way for every link, one
 * per direction: way 2 * link leads from the link's end a to b, way 2 * link + 1 back) is written by every transfer.
 *
 * State: `states` is a latch. `sequence` even: readers copy states[0], else states[1]; the writer makes it odd, writes
 * states[0], makes it even, writes states[1]. A reader copies again when `sequence` has changed meanwhile. A writer that
 * dies in between leaves a whole copy to read, so nobody ever waits for it.
 * Seats: a transfer takes a seat on every way of its path by a compare-and-swap of `until_ns` from a time that has
 * passed, and keeps it by moving that on before it passes. All that is live on a way share it. Whoever is killed is
 * counted until its seat runs out (MO_SEAT_GRACE_NS after the quantum it was in), and leaves nothing else.
 */
#ifndef MEDIA_OBSERVATORY_FABRIC_H
#define MEDIA_OBSERVATORY_FABRIC_H

#include "abi.h"

#define MO_FABRIC_ABI 1u
#define MO_FABRIC_MAGIC 0x4D4F4642u  /* "MOFB" */
#define MO_TRAFFIC_MAGIC 0x4D4F5452u /* "MOTR" */
#define MO_MAX_LINKS 65536
#define MO_SEATS 64                 /* transfers on one way at the same time; more wait */
#define MO_QUANTUM_NS 250000        /* how long a transfer goes on before it looks at its links again, at least */
#define MO_LONGEST_QUANTUM_NS 1000000
#define MO_SEAT_GRACE_NS 50000000   /* how late a transfer may be to its next quantum and keep its seat */

enum mo_link_flags { MO_LINK_UP = 0, MO_LINK_DEGRADED = 1, MO_LINK_DOWN = 2 };

/* Of one direction, unscaled; never changed. Telemetry may show what is advertised; the rest is hidden. */
struct mo_link_constants {
    uint64_t advertised_bandwidth_bytes_per_second;
    uint64_t advertised_latency_ps;
    uint64_t bandwidth_bytes_per_second;
    uint64_t latency_ps;
    uint64_t overhead_ps; /* per message; the link is taken meanwhile */
    uint64_t jitter_ps;   /* each message arrives so much sooner or later at most, evenly distributed */
    uint64_t jitter_seed;
    uint32_t sharing_loss_millionths; /* n transfers together get bandwidth / (1 + (n - 1) * this) */
    uint32_t chunk_bytes;             /* messages are rounded up to a multiple of this; 0 or 1: they are not */
};

struct mo_link_state {
    uint64_t flags;                /* enum mo_link_flags */
    uint64_t bandwidth_millionths; /* of the true bandwidth, both directions */
    uint64_t added_latency_ps;
};

struct mo_link {
    struct mo_link_constants constants;
    MO_ALIGNED uint64_t sequence;
    struct mo_link_state states[2];
};

struct mo_fabric_header {
    uint32_t magic;
    uint32_t abi;
    uint32_t links;
    uint32_t link_bytes;
    uint64_t fabric_id;             /* random, not 0: the traffic's file has the same */
    uint64_t time_scale_millionths; /* how many times longer than on the real links everything takes */
    MO_ALIGNED uint64_t reserved[16];
};

struct mo_seat {
    uint64_t until_ns; /* CLOCK_MONOTONIC; free once it has passed */
    uint64_t cap_bytes_per_second; /* what the transfer could take here if this way were free (scaled) */
};

struct mo_way {
    uint64_t bytes;     /* ever moved; added to by whoever moved them */
    uint64_t transfers; /* ever begun */
    uint64_t queued_ns; /* how much longer they took for want of bandwidth that others had, or while it was down */
    MO_ALIGNED struct mo_seat seats[MO_SEATS];
};

struct mo_traffic_header {
    uint32_t magic;
    uint32_t abi;
    uint32_t ways;
    uint32_t way_bytes;
    uint64_t fabric_id;
    MO_ALIGNED uint64_t reserved[16];
};

#endif

/* Timeline fence: a counter that one process moves up and that any number of processes wait for. Version 1.
 *
 * Two files. The timeline is written by its signaller alone and sealed against everybody else's writing; waiters map it
 * read-only. The waiters' page is the only thing that waiters may write, and all it holds is a hint: whatever stands
 * there, a waiter reads the timeline itself and every sleep is bounded, so a garbled hint costs time and nothing else.
 *
 * Commit: the store to `value` (sequentially consistent); what the signaller wrote before it is seen by who reads it.
 * Wake-up: a waiter that saw `value` v raises `asleep_after` to v + 1 at least (never lowers it), looks at `value` again
 * and sleeps on its low word. A signaller that moves the value on from v wakes if `asleep_after` is above v then. Nobody
 * ever resets the word: the next value outruns it, so a dead waiter costs one needless wake.
 * End: `closed` becomes 1 when the signaller will signal no more. Its death is not written down anywhere: each waiter
 * learns it from the kernel, through the signaller's pidfd.
 */
#ifndef MEDIA_OBSERVATORY_FENCE_H
#define MEDIA_OBSERVATORY_FENCE_H

#include "abi.h"

#define MO_FENCE_ABI 1u
#define MO_FENCE_MAGIC 0x4D4F464Eu         /* "MOFN" */
#define MO_FENCE_WAITERS_MAGIC 0x4D4F4657u /* "MOFW" */
#define MO_FENCE_BYTES 4096                /* of each of the two files */

struct mo_fence {
    uint32_t magic;
    uint32_t abi;
    uint64_t fence_id;      /* random, not 0: what the waiters' page names too */
    uint32_t signaller_pid; /* as the signaller itself sees it */
    uint32_t reserved0;
    MO_ALIGNED uint64_t value; /* signaller; never goes back, never MO_UNKNOWN_U64 */
    MO_ALIGNED uint32_t closed; /* signaller; not 0: the value moves no more */
};

struct mo_fence_waiters {
    uint32_t magic;
    uint32_t abi;
    uint64_t fence_id;
    MO_ALIGNED uint64_t asleep_after; /* waiters: largest (value seen before sleeping) + 1 */
};

#endif

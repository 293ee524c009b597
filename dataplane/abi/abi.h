/* Media Observatory shared-memory ABI: what every layout in this folder has in common.
 *
 * Each layout starts with a magic and a version. A peer that finds another version refuses to attach: layouts are
 * never guessed. All integers are little-endian; all times are CLOCK_MONOTONIC nanoseconds of the machine.
 */
#ifndef MEDIA_OBSERVATORY_ABI_H
#define MEDIA_OBSERVATORY_ABI_H

#include <stdint.h>

/* Unknown is not zero. INT64_MIN equals AV_NOPTS_VALUE, so time stamps cross without translation. */
#define MO_UNKNOWN_I64 INT64_MIN
#define MO_UNKNOWN_U64 UINT64_MAX
#define MO_UNKNOWN_U32 UINT32_MAX
#define MO_UNKNOWN_U16 UINT16_MAX

/* Two cache lines: adjacent-line prefetch makes 64 bytes too few to keep two writers apart. */
#define MO_LINE 128
#ifdef __cplusplus
#define MO_ALIGNED alignas(MO_LINE)
#else
#define MO_ALIGNED _Alignas(MO_LINE)
#endif

#endif

/* NVLinks of a GPU, as NVML's two families of calls both tell them. */
#ifndef MEDIA_OBSERVATORY_NVLINK_H
#define MEDIA_OBSERVATORY_NVLINK_H

#include "machine_map.h"

enum nvlink_counter { NVLINK_REPLAY, NVLINK_RECOVERY, NVLINK_CRC_FLIT, NVLINK_CRC_DATA, NVLINK_ECC_DATA };

/* INVALID_ARGUMENT beyond the chip's own count, NOT_SUPPORTED on a chip without NVLinks. */
int nvlink_check(const struct gpu_view *view, unsigned link);
bool nvlink_active(const struct gpu_view *view, unsigned link);
uint64_t nvlink_errors(const struct gpu_view *view, unsigned link, enum nvlink_counter counter);
uint64_t nvlink_bytes(const struct gpu_view *view, unsigned link, bool sent);

#endif

/* The emulated machine's memory as this library sees it: read only. */
#ifndef MEDIA_OBSERVATORY_MACHINE_MAP_H
#define MEDIA_OBSERVATORY_MACHINE_MAP_H

#include <stdbool.h>
#include <stddef.h>

#include "machine.h"
#include "nvml_types.h"

struct gpu_view {
    const struct mo_gpu_constants *constants;
    struct mo_gpu_state state; /* a copy of one moment */
    unsigned index;
};

/* Maps the machine that $MEDIA_OBSERVATORY_MACHINE names, else the file `machine` beside this library. */
int machine_open(void);
int machine_close(void);

/* Between these two the machine stays mapped. `machine_enter` fails where there is none or it was switched off. */
int machine_enter(void);
void machine_leave(void);

/* All of the following between enter and leave. */
const struct mo_machine_header *machine_header(void);
unsigned machine_gpus(void);
const struct mo_gpu_constants *machine_gpu(unsigned index);
/* INVALID_ARGUMENT for a handle that is none, GPU_IS_LOST for a GPU that has fallen off the bus. */
int machine_look(nvml_device device, struct gpu_view *view);

/* Bytes that crossed one direction of a fabric's link, times the time scale: per second of our clock they give the
 * rate that the link has on the machine's. 0 where there is no fabric. */
uint64_t fabric_bytes(uint32_t link, bool toward_b);
bool fabric_is_down(uint32_t link);

/* enter, look; the device is left again on failure. */
int device_enter(nvml_device device, struct gpu_view *view);

/* The power of this state goes on being taken. */
uint64_t gpu_energy_millijoules(const struct mo_gpu_state *state);

uint64_t monotonic_ns(void);
void sleep_until_ns(uint64_t until);

#endif

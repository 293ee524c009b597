/* The emulated machine: what its telemetry tells of its GPUs. Version 1.
 *
 * One file with one writer, the process that owns the machine: mo_machine_header, then mo_gpu for every GPU. How fast
 * links really are is not in here: that is the fabric's (fabric.h), whose two files the header names, and of which a
 * reader of this file looks at traffic and at links that are down, nothing else.
 *
 * State: `states` is a latch, as in fabric.h. `sequence` even: readers copy states[0], else states[1]; the writer makes
 * it odd, writes states[0], makes it even, writes states[1]. A reader copies again when `sequence` has changed
 * meanwhile. A writer that dies in between leaves a whole copy to read.
 * Events: `events_written` ever; event n is in events[n % MO_MACHINE_EVENTS]. Who falls behind by more loses the oldest.
 * Every word of the state has 64 bits; MO_UNKNOWN_U64 says that the chip does not tell.
 */
#ifndef MEDIA_OBSERVATORY_MACHINE_H
#define MEDIA_OBSERVATORY_MACHINE_H

#include "abi.h"

#define MO_MACHINE_ABI 1u
#define MO_MACHINE_MAGIC 0x4D4F4D43u /* "MOMC" */
#define MO_MACHINE_GPUS 64           /* of one machine, at most */
#define MO_MACHINE_NVLINKS 36        /* of one GPU, at most */
#define MO_MACHINE_EVENTS 256
#define MO_NO_LINK 0xFFFFFFFFu /* the fabric does not have this link */

enum mo_chip_flags {
    MO_CHIP_LEGACY_NVLINK_ERRORS = 1, /* fields 32 to 59 count; on later chips they are 0 for ever */
    MO_CHIP_PCIE_BYTE_FIELDS = 2,     /* fields 197 and 198 are there */
    MO_CHIP_PAGE_RETIREMENT = 4,      /* retires pages; later chips remap rows */
    MO_CHIP_ROW_REMAPPING = 8,
    MO_CHIP_ECC = 16
};

enum mo_nvlink_remote { MO_REMOTE_GPU = 0, MO_REMOTE_SWITCH = 2, MO_REMOTE_UNKNOWN = 255 }; /* NVML's numbers */

struct mo_nvlink_constants {
    char remote_bus_id[32]; /* 0000:86:00.0; empty: not known */
    uint32_t remote_type;   /* enum mo_nvlink_remote */
    uint32_t fabric_link;   /* number of the link that this is a part of, or MO_NO_LINK */
    uint32_t toward_b;      /* what the GPU sends goes forward there */
    uint32_t reserved;
};

/* Never changed once the file can be opened. */
struct mo_gpu_constants {
    char name[96];
    char uuid[96];
    char serial[32];
    char part_number[80];
    char vbios_version[32];
    char bus_id[32];
    uint32_t pci_domain;
    uint32_t pci_bus;
    uint32_t pci_device;
    uint32_t pci_id; /* device id in the upper half, vendor id in the lower */
    uint32_t pci_subsystem_id;
    uint32_t chip_flags;           /* enum mo_chip_flags */
    uint32_t architecture;         /* NVML's number */
    uint32_t compute_major;
    uint32_t compute_minor;
    uint32_t nvlinks;
    uint32_t nvlink_version;       /* NVML's number */
    uint32_t encoders;
    uint32_t decoders;
    uint32_t jpeg_decoders;
    uint32_t pcie_generation;      /* best that both ends can do */
    uint32_t pcie_width;
    uint32_t pcie_fabric_link;
    uint32_t pcie_toward_b;
    uint32_t numa_node;            /* MO_UNKNOWN_U32: not known */
    uint32_t power_limit_milliwatts;
    uint32_t clocks_mhz[4];        /* the fastest: graphics, SM, memory, video */
    uint32_t slowdown_celsius;
    uint32_t shutdown_celsius;
    uint64_t memory_bytes;
    uint64_t memory_reserved_bytes;
    uint8_t ancestor[MO_MACHINE_GPUS];     /* NVML's level of the nearest common ancestor with every other GPU */
    uint8_t nvlink_peers[MO_MACHINE_GPUS]; /* 1: NVLinks lead there, at once or through a switch */
    struct mo_nvlink_constants links[MO_MACHINE_NVLINKS];
};

struct mo_nvlink_state {
    uint64_t active;         /* 1 or 0; also inactive while the fabric's link is down */
    uint64_t speed_mbps;     /* as NVML tells it: 26562 */
    uint64_t replay_errors;
    uint64_t recovery_errors;
    uint64_t crc_flit_errors;
    uint64_t crc_data_errors;
    uint64_t ecc_data_errors;
    uint64_t share_millionths; /* of what its fabric link carried since the marks: bytes spread over active links */
    uint64_t sent_bytes;       /* until the marks */
    uint64_t received_bytes;
    uint64_t sent_mark; /* bytes of the fabric's ways when this state began */
    uint64_t received_mark;
};

struct mo_gpu_state {
    uint64_t lost; /* 1: fallen off the bus */
    uint64_t temperature_celsius;
    uint64_t memory_temperature_celsius;
    uint64_t power_milliwatts;
    uint64_t energy_millijoules; /* until energy_at_ns; since then power_milliwatts add to it */
    uint64_t energy_at_ns;
    uint64_t clocks_mhz[4]; /* graphics, SM, memory, video */
    uint64_t clocks_event_reasons;
    uint64_t utilisation_percent;
    uint64_t memory_utilisation_percent;
    uint64_t encoder_percent;
    uint64_t decoder_percent;
    uint64_t jpeg_percent;
    uint64_t memory_used_bytes;
    uint64_t ecc_corrected; /* volatile and aggregate alike: the machine was never restarted */
    uint64_t ecc_uncorrected;
    uint64_t remapped_correctable;
    uint64_t remapped_uncorrectable;
    uint64_t remapping_pending;
    uint64_t remapping_failed;
    uint64_t retired_single_bit;
    uint64_t retired_double_bit;
    uint64_t pcie_generation;
    uint64_t pcie_width;
    uint64_t pcie_replays;
    uint64_t pcie_correctable_errors;
    uint64_t pcie_nonfatal_errors;
    uint64_t pcie_fatal_errors;
    struct mo_nvlink_state links[MO_MACHINE_NVLINKS];
};

struct mo_gpu {
    struct mo_gpu_constants constants;
    MO_ALIGNED uint64_t sequence;
    struct mo_gpu_state states[2];
};

struct mo_machine_event {
    uint64_t time_ns;
    uint64_t gpu;
    uint64_t type; /* NVML's bit: 8 is an Xid */
    uint64_t data; /* the Xid's number */
};

struct mo_machine_header {
    uint32_t magic; /* written last */
    uint32_t abi;
    uint32_t gpus;
    uint32_t gpu_bytes;
    uint32_t owner_pid;
    uint32_t cuda_version; /* 12080 is 12.8 */
    uint64_t machine_id;   /* random, not 0 */
    uint64_t fabric_id;    /* 0: there is no fabric */
    char driver_version[80];
    char nvml_version[80];
    char fabric_path[128]; /* of the fabric's two files: its owner's descriptors under /proc */
    char traffic_path[128];
    MO_ALIGNED uint64_t closed; /* 1: the driver was unloaded */
    MO_ALIGNED uint64_t events_written;
    MO_ALIGNED struct mo_machine_event events[MO_MACHINE_EVENTS];
};

#endif

/* The part of NVML's binary interface that this library offers: numbers and layouts as nvidia-ml-py calls them. */
#ifndef MEDIA_OBSERVATORY_NVML_TYPES_H
#define MEDIA_OBSERVATORY_NVML_TYPES_H

#include <stdint.h>

#define NVML_CALL __attribute__((visibility("default"))) int

enum nvml_return {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25
};

typedef void *nvml_device; /* index of the GPU, plus one */

struct nvml_pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

struct nvml_memory {
    unsigned long long total, free, used;
};

struct nvml_memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

struct nvml_utilization {
    unsigned gpu, memory;
};

struct nvml_temperature {
    unsigned version, sensor;
    int celsius;
};

enum nvml_value_type { NVML_UNSIGNED_INT = 1, NVML_UNSIGNED_LONG_LONG = 3 };

struct nvml_field_value {
    uint32_t field_id, scope_id;
    int64_t timestamp_us, latency_us;
    uint32_t value_type;
    int32_t nvml_return;
    union {
        unsigned long long ull;
        unsigned ui;
        double d;
    } value;
};

struct nvml_event_data {
    nvml_device device;
    unsigned long long event_type, event_data;
    unsigned gpu_instance_id, compute_instance_id;
};

enum { NVML_EVENT_XID = 8, NVML_SUPPORTED_EVENTS = 1 | 2 | 4 | 8 | 16 };

_Static_assert(sizeof(struct nvml_pci_info) == 68, "nvmlPciInfo_t");
_Static_assert(sizeof(struct nvml_memory_v2) == 40, "nvmlMemory_v2_t");
_Static_assert(sizeof(struct nvml_field_value) == 40, "nvmlFieldValue_t");
_Static_assert(sizeof(struct nvml_event_data) == 32, "nvmlEventData_t");

#endif

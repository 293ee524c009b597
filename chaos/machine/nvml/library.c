/* Beginning and end, the driver, and which devices there are. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "machine_map.h"
#include "pci.h"

NVML_CALL nvmlInitWithFlags(unsigned flags) {
    (void)flags; /* without GPUs there is nothing to do differently */
    return machine_open();
}

NVML_CALL nvmlInit_v2(void) { return machine_open(); }

NVML_CALL nvmlInit(void) { return machine_open(); }

NVML_CALL nvmlShutdown(void) { return machine_close(); }

__attribute__((visibility("default"))) const char *nvmlErrorString(int result) {
    switch (result) {
        case NVML_SUCCESS: return "Success";
        case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
        case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
        case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
        case NVML_ERROR_NOT_FOUND: return "Not Found";
        case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
        case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
        case NVML_ERROR_TIMEOUT: return "Timeout";
        case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
        case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
        case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
        default: return "Unknown Error";
    }
}

static int copy_text(char *to, unsigned bytes, const char *from) {
    if (to == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(from) >= bytes) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, from);
    return NVML_SUCCESS;
}

NVML_CALL nvmlSystemGetDriverVersion(char *version, unsigned bytes) {
    int result = machine_enter();
    if (result != NVML_SUCCESS) return result;
    result = copy_text(version, bytes, machine_header()->driver_version);
    machine_leave();
    return result;
}

NVML_CALL nvmlSystemGetNVMLVersion(char *version, unsigned bytes) {
    int result = machine_enter();
    if (result != NVML_SUCCESS) return result;
    result = copy_text(version, bytes, machine_header()->nvml_version);
    machine_leave();
    return result;
}

NVML_CALL nvmlSystemGetCudaDriverVersion_v2(int *version) {
    const int result = machine_enter();
    if (result != NVML_SUCCESS) return result;
    *version = (int)machine_header()->cuda_version;
    machine_leave();
    return NVML_SUCCESS;
}

NVML_CALL nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

NVML_CALL nvmlDeviceGetCount_v2(unsigned *count) {
    const int result = machine_enter();
    if (result != NVML_SUCCESS) return result;
    *count = machine_gpus();
    machine_leave();
    return NVML_SUCCESS;
}

NVML_CALL nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

static int handle_of(unsigned index, nvml_device *device) {
    struct gpu_view view;
    const nvml_device handle = (nvml_device)(uintptr_t)(index + 1);
    const int result = machine_look(handle, &view);
    if (result == NVML_SUCCESS) *device = handle;
    return result;
}

NVML_CALL nvmlDeviceGetHandleByIndex_v2(unsigned index, nvml_device *device) {
    int result = machine_enter();
    if (result != NVML_SUCCESS) return result;
    result = index < machine_gpus() ? handle_of(index, device) : NVML_ERROR_INVALID_ARGUMENT;
    machine_leave();
    return result;
}

NVML_CALL nvmlDeviceGetHandleByIndex(unsigned index, nvml_device *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

typedef bool (*matches)(const struct mo_gpu_constants *constants, const char *text);

static int find_device(matches match, const char *text, nvml_device *device) {
    int result = machine_enter();
    if (result != NVML_SUCCESS) return result;
    result = NVML_ERROR_NOT_FOUND;
    for (unsigned i = 0; text != NULL && i < machine_gpus(); ++i) {
        if (match(machine_gpu(i), text)) {
            result = handle_of(i, device);
            break;
        }
    }
    machine_leave();
    return result;
}

static bool has_uuid(const struct mo_gpu_constants *constants, const char *text) {
    return strcasecmp(constants->uuid, text) == 0;
}

static bool has_serial(const struct mo_gpu_constants *constants, const char *text) {
    return strcmp(constants->serial, text) == 0;
}

static bool has_bus_id(const struct mo_gpu_constants *constants, const char *text) {
    struct pci_address wanted, own;
    return parse_bus_id(text, &wanted) && parse_bus_id(constants->bus_id, &own) && wanted.domain == own.domain &&
           wanted.bus == own.bus && wanted.device == own.device;
}

NVML_CALL nvmlDeviceGetHandleByUUID(const char *uuid, nvml_device *device) {
    return find_device(has_uuid, uuid, device);
}

NVML_CALL nvmlDeviceGetHandleBySerial(const char *serial, nvml_device *device) {
    return find_device(has_serial, serial, device);
}

NVML_CALL nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvml_device *device) {
    return find_device(has_bus_id, bus_id, device);
}

NVML_CALL nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvml_device *device) {
    return find_device(has_bus_id, bus_id, device);
}

#define DEVICE_TEXT(name, field)                                            \
    NVML_CALL name(nvml_device device, char *text, unsigned bytes) {        \
        struct gpu_view view;                                               \
        int result = device_enter(device, &view);                           \
        if (result != NVML_SUCCESS) return result;                          \
        result = copy_text(text, bytes, view.constants->field);             \
        machine_leave();                                                    \
        return result;                                                      \
    }

DEVICE_TEXT(nvmlDeviceGetName, name)
DEVICE_TEXT(nvmlDeviceGetUUID, uuid)
DEVICE_TEXT(nvmlDeviceGetSerial, serial)
DEVICE_TEXT(nvmlDeviceGetBoardPartNumber, part_number)
DEVICE_TEXT(nvmlDeviceGetVbiosVersion, vbios_version)

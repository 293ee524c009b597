/* What one GPU tells of itself: memory, use, clocks, heat, power, memory errors. */
#include <stddef.h>
#include <string.h>

#include "machine_map.h"

#define MEMORY_V2 0x02000028u
#define TEMPERATURE_V1 0x0100000Cu
#define SAMPLING_MICROSECONDS 167000u /* of the utilisation calls, as chips of these generations report it */

#define DEVICE_NUMBER(name, type, expression)              \
    NVML_CALL name(nvml_device device, type *number) {     \
        struct gpu_view view;                              \
        const int result = device_enter(device, &view);    \
        if (result != NVML_SUCCESS) return result;         \
        *number = (type)(expression);                      \
        machine_leave();                                   \
        return NVML_SUCCESS;                               \
    }

static bool has(const struct gpu_view *view, unsigned flag) { return (view->constants->chip_flags & flag) != 0; }

DEVICE_NUMBER(nvmlDeviceGetIndex, unsigned, view.index)
DEVICE_NUMBER(nvmlDeviceGetMinorNumber, unsigned, view.index)
DEVICE_NUMBER(nvmlDeviceGetArchitecture, unsigned, view.constants->architecture)
DEVICE_NUMBER(nvmlDeviceGetPowerUsage, unsigned, view.state.power_milliwatts)
DEVICE_NUMBER(nvmlDeviceGetPowerManagementLimit, unsigned, view.constants->power_limit_milliwatts)
DEVICE_NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned, view.constants->power_limit_milliwatts)
DEVICE_NUMBER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, gpu_energy_millijoules(&view.state))
DEVICE_NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, view.state.clocks_event_reasons)
DEVICE_NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, view.state.clocks_event_reasons)
DEVICE_NUMBER(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, 0x1FF)

NVML_CALL nvmlDeviceGetNumaNodeId(nvml_device device, int *node) {
    struct gpu_view view;
    int result = device_enter(device, &view);
    if (result != NVML_SUCCESS) return result;
    if (view.constants->numa_node == MO_UNKNOWN_U32)
        result = NVML_ERROR_NOT_SUPPORTED;
    else
        *node = (int)view.constants->numa_node;
    machine_leave();
    return result;
}

NVML_CALL nvmlDeviceGetCudaComputeCapability(nvml_device device, int *major, int *minor) {
    struct gpu_view view;
    const int result = device_enter(device, &view);
    if (result != NVML_SUCCESS) return result;
    *major = (int)view.constants->compute_major;
    *minor = (int)view.constants->compute_minor;
    machine_leave();
    return NVML_SUCCESS;
}

/* -- memory --------------------------------------------------------------------------------------------------- */

NVML_CALL nvmlDeviceGetMemoryInfo_v2(nvml_device device, struct nvml_memory_v2 *memory) {
    struct gpu_view view;
    int result;
    if (memory == NULL || memory->version != MEMORY_V2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    result = device_enter(device, &view);
    if (result != NVML_SUCCESS) return result;
    memory->total = view.constants->memory_bytes;
    memory->reserved = view.constants->memory_reserved_bytes;
    memory->used = view.state.memory_used_bytes;
    memory->free = memory->total - memory->reserved - memory->used;
    machine_leave();
    return NVML_SUCCESS;
}

/* The first version counts what is reserved as used. */
NVML_CALL nvmlDeviceGetMemoryInfo(nvml_device device, struct nvml_memory *memory) {
    struct nvml_memory_v2 told = {.version = MEMORY_V2};
    const int result = nvmlDeviceGetMemoryInfo_v2(device, &told);
    if (result != NVML_SUCCESS) return result;
    memory->total = told.total;
    memory->free = told.free;
    memory->used = told.used + told.reserved;
    return NVML_SUCCESS;
}

/* -- use ------------------------------------------------------------------------------------------------------ */

NVML_CALL nvmlDeviceGetUtilizationRates(nvml_device device, struct nvml_utilization *rates) {
    struct gpu_view view;
    const int result = device_enter(device, &view);
    if (result != NVML_SUCCESS) return result;
    rates->gpu = (unsigned)view.state.utilisation_percent;
    rates->memory = (unsigned)view.state.memory_utilisation_percent;
    machine_leave();
    return NVML_SUCCESS;
}

#define ENGINE_UTILIZATION(name, field)                                                      \
    NVML_CALL name(nvml_device device, unsigned *percent, unsigned *sampling_microseconds) { \
        struct gpu_view view;                                                                \
        const int result = device_enter(device, &view);                                      \
        if (result != NVML_SUCCESS) return result;                                           \
        *percent = (unsigned)view.state.field;                                               \
        *sampling_microseconds = SAMPLING_MICROSECONDS;                                      \
        machine_leave();                                                                     \
        return NVML_SUCCESS;                                                                 \
    }

ENGINE_UTILIZATION(nvmlDeviceGetEncoderUtilization, encoder_percent)
ENGINE_UTILIZATION(nvmlDeviceGetDecoderUtilization, decoder_percent)
ENGINE_UTILIZATION(nvmlDeviceGetJpgUtilization, jpeg_percent)

/* A chip without encoders (A100, H100, H200) tells of no sessions, and of no capacity at all. */
NVML_CALL nvmlDeviceGetEncoderCapacity(nvml_device device, unsigned codec, unsigned *percent) {
    struct gpu_view view;
    int result = device_enter(device, &view);
    (void)codec;
    if (result != NVML_SUCCESS) return result;
    if (view.constants->encoders == 0)
        result = NVML_ERROR_NOT_SUPPORTED;
    else
        *percent = 100u - (unsigned)view.state.encoder_percent;
    machine_leave();
    return result;
}

NVML_CALL nvmlDeviceGetEncoderStats(nvml_device device, unsigned *sessions, unsigned *fps, unsigned *latency_us) {
    struct gpu_view view;
    const int result = device_enter(device, &view);
    if (result != NVML_SUCCESS) return result;
    *sessions = *fps = *latency_us = 0;
    machine_leave();
    return NVML_SUCCESS;
}

NVML_CALL nvmlDeviceGetEncoderSessions(nvml_device device, unsigned *sessions, void *about) {
    struct gpu_view view;
    const int result = device_enter(device, &view);
    (void)about;
    if (result != NVML_SUCCESS) return result;
    *sessions = 0;
    machine_leave();
    return NVML_SUCCESS;
}

/* -- clocks, heat --------------------------------------------------------------------------------------------- */

static int clock_of(nvml_device device, unsigned type, unsigned *mhz, bool fastest) {
    struct gpu_view view;
    int result;
    if (type > 3) return NVML_ERROR_INVALID_ARGUMENT;
    result = device_enter(device, &view);
    if (result != NVML_SUCCESS) return result;
    *mhz = fastest ? view.constants->clocks_mhz[type] : (unsigned)view.state.clocks_mhz[type];
    machine_leave();
    return NVML_SUCCESS;
}

NVML_CALL nvmlDeviceGetClockInfo(nvml_device device, unsigned type, unsigned *mhz) {
    return clock_of(device, type, mhz, false);
}

NVML_CALL nvmlDeviceGetMaxClockInfo(nvml_device device, unsigned type, unsigned *mhz) {
    return clock_of(device, type, mhz, true);
}

NVML_CALL nvmlDeviceGetTemperature(nvml_device device, unsigned sensor, unsigned *celsius) {
    struct gpu_view view;
    int result;
    if (sensor != 0) return NVML_ERROR_INVALID_ARGUMENT;
    result = device_enter(device, &view);
    if (result != NVML_SUCCESS) return result;
    *celsius = (unsigned)view.state.temperature_celsius;
    machine_leave();
    return NVML_SUCCESS;
}

NVML_CALL nvmlDeviceGetTemperatureV(nvml_device device, struct nvml_temperature *temperature) {
    unsigned celsius;
    int result;
    if (temperature == NULL || temperature->version != TEMPERATURE_V1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    result = nvmlDeviceGetTemperature(device, temperature->sensor, &celsius);
    if (result == NVML_SUCCESS) temperature->celsius = (int)celsius;
    return result;
}

NVML_CALL nvmlDeviceGetTemperatureThreshold(nvml_device device, unsigned threshold, unsigned *celsius) {
    struct gpu_view view;
    int result = device_enter(device, &view);
    if (result != NVML_SUCCESS) return result;
    if (threshold > 1)
        result = NVML_ERROR_NOT_SUPPORTED;
    else
        *celsius = threshold == 0 ? view.constants->shutdown_celsius : view.constants->slowdown_celsius;
    machine_leave();
    return result;
}

/* -- memory errors -------------------------------------------------------------------------------------------- */

static int errors_of(nvml_device device, unsigned type, unsigned counter, unsigned long long *count) {
    struct gpu_view view;
    int result;
    if (type > 1 || counter > 1) return NVML_ERROR_INVALID_ARGUMENT;
    result = device_enter(device, &view);
    if (result != NVML_SUCCESS) return result;
    if (!has(&view, MO_CHIP_ECC))
        result = NVML_ERROR_NOT_SUPPORTED;
    else
        *count = type == 0 ? view.state.ecc_corrected : view.state.ecc_uncorrected;
    machine_leave();
    return result;
}

NVML_CALL nvmlDeviceGetTotalEccErrors(nvml_device device, unsigned type, unsigned counter, unsigned long long *count) {
    return errors_of(device, type, counter, count);
}

/* All errors are the DRAM's. */
NVML_CALL nvmlDeviceGetMemoryErrorCounter(nvml_device device, unsigned type, unsigned counter, unsigned location,
                                          unsigned long long *count) {
    int result;
    if (location > 7) return NVML_ERROR_INVALID_ARGUMENT;
    result = errors_of(device, type, counter, count);
    if (result == NVML_SUCCESS && location != 2) *count = 0;
    return result;
}

NVML_CALL nvmlDeviceGetEccMode(nvml_device device, unsigned *current, unsigned *pending) {
    struct gpu_view view;
    int result = device_enter(device, &view);
    if (result != NVML_SUCCESS) return result;
    if (has(&view, MO_CHIP_ECC))
        *current = *pending = 1;
    else
        result = NVML_ERROR_NOT_SUPPORTED;
    machine_leave();
    return result;
}

NVML_CALL nvmlDeviceGetRemappedRows(nvml_device device, unsigned *correctable, unsigned *uncorrectable,
                                    unsigned *pending, unsigned *failed) {
    struct gpu_view view;
    int result = device_enter(device, &view);
    if (result != NVML_SUCCESS) return result;
    if (has(&view, MO_CHIP_ROW_REMAPPING)) {
        *correctable = (unsigned)view.state.remapped_correctable;
        *uncorrectable = (unsigned)view.state.remapped_uncorrectable;
        *pending = (unsigned)view.state.remapping_pending;
        *failed = (unsigned)view.state.remapping_failed;
    } else {
        result = NVML_ERROR_NOT_SUPPORTED;
    }
    machine_leave();
    return result;
}

/* Their addresses are made up: page n of the memory. */
NVML_CALL nvmlDeviceGetRetiredPages(nvml_device device, unsigned cause, unsigned *count,
                                    unsigned long long *addresses) {
    struct gpu_view view;
    unsigned pages;
    int result;
    if (cause > 1 || count == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    result = device_enter(device, &view);
    if (result != NVML_SUCCESS) return result;
    pages = (unsigned)(cause == 0 ? view.state.retired_single_bit : view.state.retired_double_bit);
    if (!has(&view, MO_CHIP_PAGE_RETIREMENT))
        result = NVML_ERROR_NOT_SUPPORTED;
    else if (pages > *count || (addresses == NULL && pages > 0))
        result = NVML_ERROR_INSUFFICIENT_SIZE;
    else
        for (unsigned i = 0; i < pages; ++i) addresses[i] = (i + 1) * 0x10000ull;
    *count = pages;
    machine_leave();
    return result;
}

NVML_CALL nvmlDeviceGetRetiredPagesPendingStatus(nvml_device device, unsigned *pending) {
    struct gpu_view view;
    int result = device_enter(device, &view);
    if (result != NVML_SUCCESS) return result;
    if (has(&view, MO_CHIP_PAGE_RETIREMENT))
        *pending = 0;
    else
        result = NVML_ERROR_NOT_SUPPORTED;
    machine_leave();
    return result;
}

NVML_CALL nvmlDeviceGetMigMode(nvml_device device, unsigned *current, unsigned *pending) {
    struct gpu_view view;
    const int result = device_enter(device, &view);
    (void)current;
    (void)pending;
    if (result != NVML_SUCCESS) return result;
    machine_leave();
    return NVML_ERROR_NOT_SUPPORTED;
}

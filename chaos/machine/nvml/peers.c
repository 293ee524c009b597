/* How GPUs are joined to each other. */
#include "machine_map.h"

enum { LEVEL_SYSTEM = 50, P2P_INDICES = 6, P2P_NVLINK = 2, P2P_OK = 0, P2P_NOT_SUPPORTED = 5 };

static int pair_enter(nvml_device first, nvml_device second, struct gpu_view *a, struct gpu_view *b) {
    int result = device_enter(first, a);
    if (result != NVML_SUCCESS) return result;
    result = machine_look(second, b);
    if (result != NVML_SUCCESS) machine_leave();
    return result;
}

NVML_CALL nvmlDeviceGetTopologyCommonAncestor(nvml_device first, nvml_device second, unsigned *level) {
    struct gpu_view a, b;
    const int result = pair_enter(first, second, &a, &b);
    if (result != NVML_SUCCESS) return result;
    *level = a.constants->ancestor[b.index];
    machine_leave();
    return NVML_SUCCESS;
}

NVML_CALL nvmlDeviceGetTopologyNearestGpus(nvml_device device, unsigned level, unsigned *count, nvml_device *nearest) {
    struct gpu_view view;
    unsigned found = 0;
    int result;
    if (level > LEVEL_SYSTEM) return NVML_ERROR_INVALID_ARGUMENT;
    result = device_enter(device, &view);
    if (result != NVML_SUCCESS) return result;
    for (unsigned i = 0; i < machine_gpus(); ++i) {
        if (i == view.index || view.constants->ancestor[i] > level) continue;
        if (nearest != NULL && found < *count) nearest[found] = (nvml_device)(uintptr_t)(i + 1);
        ++found;
    }
    *count = found;
    machine_leave();
    return NVML_SUCCESS;
}

NVML_CALL nvmlDeviceGetP2PStatus(nvml_device first, nvml_device second, unsigned index, unsigned *status) {
    struct gpu_view a, b;
    int result;
    if (index >= P2P_INDICES - 1) return NVML_ERROR_INVALID_ARGUMENT;
    result = pair_enter(first, second, &a, &b);
    if (result != NVML_SUCCESS) return result;
    if (a.index == b.index)
        result = NVML_ERROR_INVALID_ARGUMENT;
    else
        *status = index == P2P_NVLINK && !a.constants->nvlink_peers[b.index] ? P2P_NOT_SUPPORTED : P2P_OK;
    machine_leave();
    return result;
}

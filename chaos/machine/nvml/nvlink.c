#include "nvlink.h"

#include <stdio.h>
#include <string.h>

#include "pci.h"

enum { NVLINK_COUNTERS = 5, CAPABILITIES = 6, CAPABILITY_SLI_BRIDGE = 4 };

int nvlink_check(const struct gpu_view *view, unsigned link) {
    if (view->constants->nvlinks == 0) return NVML_ERROR_NOT_SUPPORTED;
    return link < view->constants->nvlinks ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

bool nvlink_active(const struct gpu_view *view, unsigned link) {
    return view->state.links[link].active != 0 && !fabric_is_down(view->constants->links[link].fabric_link);
}

uint64_t nvlink_errors(const struct gpu_view *view, unsigned link, enum nvlink_counter counter) {
    const struct mo_nvlink_state *state = &view->state.links[link];
    const uint64_t by_counter[NVLINK_COUNTERS] = {state->replay_errors, state->recovery_errors, state->crc_flit_errors,
                                                  state->crc_data_errors, state->ecc_data_errors};
    return by_counter[counter];
}

uint64_t nvlink_bytes(const struct gpu_view *view, unsigned link, bool sent) {
    const struct mo_nvlink_constants *constants = &view->constants->links[link];
    const struct mo_nvlink_state *state = &view->state.links[link];
    const uint64_t carried = fabric_bytes(constants->fabric_link, sent == (constants->toward_b != 0));
    const uint64_t mark = sent ? state->sent_mark : state->received_mark;
    const double since = carried > mark ? (double)(carried - mark) : 0.0;
    return (sent ? state->sent_bytes : state->received_bytes) +
           (uint64_t)(since * ((double)state->share_millionths / 1e6));
}

/* enter, look, and check the link. */
static int link_enter(nvml_device device, unsigned link, struct gpu_view *view) {
    int result = device_enter(device, view);
    if (result != NVML_SUCCESS) return result;
    result = nvlink_check(view, link);
    if (result != NVML_SUCCESS) machine_leave();
    return result;
}

NVML_CALL nvmlDeviceGetNvLinkState(nvml_device device, unsigned link, unsigned *active) {
    struct gpu_view view;
    const int result = link_enter(device, link, &view);
    if (result != NVML_SUCCESS) return result;
    *active = nvlink_active(&view, link);
    machine_leave();
    return NVML_SUCCESS;
}

NVML_CALL nvmlDeviceGetNvLinkVersion(nvml_device device, unsigned link, unsigned *version) {
    struct gpu_view view;
    const int result = link_enter(device, link, &view);
    if (result != NVML_SUCCESS) return result;
    *version = view.constants->nvlink_version;
    machine_leave();
    return NVML_SUCCESS;
}

NVML_CALL nvmlDeviceGetNvLinkCapability(nvml_device device, unsigned link, unsigned capability, unsigned *able) {
    struct gpu_view view;
    int result = link_enter(device, link, &view);
    if (result != NVML_SUCCESS) return result;
    if (capability < CAPABILITIES)
        *able = capability != CAPABILITY_SLI_BRIDGE && nvlink_active(&view, link);
    else
        result = NVML_ERROR_INVALID_ARGUMENT;
    machine_leave();
    return result;
}

NVML_CALL nvmlDeviceGetNvLinkRemotePciInfo_v2(nvml_device device, unsigned link, struct nvml_pci_info *pci) {
    struct gpu_view view;
    int result = link_enter(device, link, &view);
    if (result != NVML_SUCCESS) return result;
    if (view.constants->links[link].remote_bus_id[0] == '\0')
        result = NVML_ERROR_NOT_SUPPORTED;
    else
        fill_pci_info(pci, view.constants->links[link].remote_bus_id);
    machine_leave();
    return result;
}

NVML_CALL nvmlDeviceGetNvLinkRemotePciInfo(nvml_device device, unsigned link, struct nvml_pci_info *pci) {
    return nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, pci);
}

NVML_CALL nvmlDeviceGetNvLinkRemoteDeviceType(nvml_device device, unsigned link, unsigned *type) {
    struct gpu_view view;
    const int result = link_enter(device, link, &view);
    if (result != NVML_SUCCESS) return result;
    *type = view.constants->links[link].remote_type;
    machine_leave();
    return NVML_SUCCESS;
}

NVML_CALL nvmlDeviceGetNvLinkErrorCounter(nvml_device device, unsigned link, unsigned counter,
                                          unsigned long long *count) {
    struct gpu_view view;
    int result = link_enter(device, link, &view);
    if (result != NVML_SUCCESS) return result;
    if (counter < NVLINK_COUNTERS)
        *count = nvlink_errors(&view, link, (enum nvlink_counter)counter);
    else
        result = NVML_ERROR_INVALID_ARGUMENT;
    machine_leave();
    return result;
}

#include "pci.h"

#include <stdio.h>
#include <string.h>

#include "machine_map.h"

enum { SAMPLE_MILLISECONDS = 20, GENERATIONS = 7 };

static const unsigned MEGATRANSFERS[GENERATIONS] = {0, 2500, 5000, 8000, 16000, 32000, 64000};

bool parse_bus_id(const char *text, struct pci_address *address) {
    return sscanf(text, "%x:%x:%x.%x", &address->domain, &address->bus, &address->device, &address->function) == 4;
}

void fill_pci_info(struct nvml_pci_info *pci, const char *bus_id) {
    struct pci_address at = {0, 0, 0, 0};
    memset(pci, 0, sizeof *pci);
    parse_bus_id(bus_id, &at);
    pci->domain = at.domain;
    pci->bus = at.bus;
    pci->device = at.device;
    snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.%X", at.domain, at.bus, at.device, at.function);
    snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "%04X:%02X:%02X.%X", at.domain & 0xFFFF, at.bus & 0xFF,
             at.device & 0x1F, at.function & 7);
}

NVML_CALL nvmlDeviceGetPciInfo_v3(nvml_device device, struct nvml_pci_info *pci) {
    struct gpu_view view;
    const int result = device_enter(device, &view);
    if (result != NVML_SUCCESS) return result;
    fill_pci_info(pci, view.constants->bus_id);
    pci->pci_device_id = view.constants->pci_id;
    pci->pci_subsystem_id = view.constants->pci_subsystem_id;
    machine_leave();
    return NVML_SUCCESS;
}

NVML_CALL nvmlDeviceGetPciInfo_v2(nvml_device device, struct nvml_pci_info *pci) {
    return nvmlDeviceGetPciInfo_v3(device, pci);
}

/* A call that tells one number of the state or the constants. */
#define PCIE_NUMBER(name, expression)                         \
    NVML_CALL name(nvml_device device, unsigned *number) {    \
        struct gpu_view view;                                 \
        const int result = device_enter(device, &view);       \
        if (result != NVML_SUCCESS) return result;            \
        *number = (unsigned)(expression);                     \
        machine_leave();                                      \
        return NVML_SUCCESS;                                  \
    }

static unsigned megatransfers(uint64_t generation) {
    return generation < GENERATIONS ? MEGATRANSFERS[generation] : 0;
}

PCIE_NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, view.state.pcie_generation)
PCIE_NUMBER(nvmlDeviceGetCurrPcieLinkWidth, view.state.pcie_width)
PCIE_NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, view.constants->pcie_generation)
PCIE_NUMBER(nvmlDeviceGetMaxPcieLinkWidth, view.constants->pcie_width)
PCIE_NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, view.constants->pcie_generation)
PCIE_NUMBER(nvmlDeviceGetPcieReplayCounter, view.state.pcie_replays)
PCIE_NUMBER(nvmlDeviceGetPcieSpeed, megatransfers(view.state.pcie_generation))
PCIE_NUMBER(nvmlDeviceGetPcieLinkMaxSpeed, view.constants->pcie_generation)

static int pcie_bytes(nvml_device device, unsigned counter, uint64_t *bytes) {
    struct gpu_view view;
    const int result = device_enter(device, &view);
    if (result != NVML_SUCCESS) return result;
    *bytes = fabric_bytes(view.constants->pcie_fabric_link, (counter == 0) == (view.constants->pcie_toward_b != 0));
    machine_leave();
    return NVML_SUCCESS;
}

/* Blocks for 20 ms, as the real one does: it counts for so long. */
NVML_CALL nvmlDeviceGetPcieThroughput(nvml_device device, unsigned counter, unsigned *kilobytes_per_second) {
    const uint64_t began = monotonic_ns();
    uint64_t before, after;
    int result;
    if (counter > 1) return NVML_ERROR_INVALID_ARGUMENT;
    result = pcie_bytes(device, counter, &before);
    if (result != NVML_SUCCESS) return result;
    sleep_until_ns(began + SAMPLE_MILLISECONDS * 1000000u);
    result = pcie_bytes(device, counter, &after);
    if (result != NVML_SUCCESS) return result;
    *kilobytes_per_second = (unsigned)((double)(after - before) * 1e6 / (double)(monotonic_ns() - began));
    return NVML_SUCCESS;
}

/* PCI addresses as NVML writes them. */
#ifndef MEDIA_OBSERVATORY_PCI_H
#define MEDIA_OBSERVATORY_PCI_H

#include <stdbool.h>

#include "nvml_types.h"

struct pci_address {
    unsigned domain, bus, device, function;
};

bool parse_bus_id(const char *text, struct pci_address *address);
/* All but the ids, which stay 0. */
void fill_pci_info(struct nvml_pci_info *pci, const char *bus_id);

#endif

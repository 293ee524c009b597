/* nvmlDeviceGetFieldValues: many numbers in one call, each with a result of its own. */
#include <stddef.h>
#include <time.h>

#include "machine_map.h"
#include "nvlink.h"

enum {
    FIELD_ECC_CURRENT = 1,
    FIELD_ECC_SINGLE_BIT = 3,
    FIELD_ECC_DOUBLE_BIT = 4,
    FIELD_MEMORY_TEMPERATURE = 82,
    FIELD_ENERGY = 83,
    FIELD_NVLINK_SPEED_COMMON = 90,
    FIELD_NVLINK_COUNT = 91,
    FIELD_PCIE_REPLAYS = 94,
    FIELD_NVLINK_DATA_SENT = 138,
    FIELD_NVLINK_RAW_RECEIVED = 141,
    FIELD_REMAPPED_CORRECTABLE = 142,
    FIELD_REMAPPED_UNCORRECTABLE = 143,
    FIELD_REMAPPING_PENDING = 144,
    FIELD_REMAPPING_FAILED = 145,
    FIELD_NVSWITCH_LINKS = 147,
    FIELD_NVLINK_REPLAY = 161,
    FIELD_NVLINK_RECOVERY = 162,
    FIELD_NVLINK_CRC = 163,
    FIELD_NVLINK_SPEED = 164,
    FIELD_NVLINK_STATE = 165,
    FIELD_NVLINK_VERSION = 166,
    FIELD_PCIE_CORRECTABLE = 173,
    FIELD_PCIE_NONFATAL = 179,
    FIELD_PCIE_FATAL = 180,
    FIELD_POWER_AVERAGE = 185,
    FIELD_POWER_INSTANT = 186,
    FIELD_PCIE_SENT = 197,
    FIELD_PCIE_RECEIVED = 198,
    ALL_LINKS = -1,
    NOT_LEGACY = -2,
    KIBIBYTE = 1024
};

/* The counters of NVLink errors of chips before Hopper have a field for every link: two runs of each kind, of links 0
 * to 5 with their total, and of links 6 to 11. */
struct legacy_errors {
    unsigned first, total, later;
    enum nvlink_counter counter;
};
static const struct legacy_errors LEGACY[] = {{32, 38, 96, NVLINK_CRC_FLIT},
                                              {39, 45, 102, NVLINK_CRC_DATA},
                                              {46, 52, 108, NVLINK_REPLAY},
                                              {53, 59, 114, NVLINK_RECOVERY}};
enum { LEGACY_FIRST_LINKS = 6, LEGACY_ECC_FIRST = 148, LEGACY_ECC_TOTAL = 160 };

static int legacy_link(unsigned field, enum nvlink_counter *counter) {
    for (size_t i = 0; i < sizeof LEGACY / sizeof *LEGACY; ++i) {
        *counter = LEGACY[i].counter;
        if (field == LEGACY[i].total) return ALL_LINKS;
        if (field >= LEGACY[i].first && field < LEGACY[i].total) return (int)(field - LEGACY[i].first);
        if (field >= LEGACY[i].later && field < LEGACY[i].later + LEGACY_FIRST_LINKS)
            return (int)(field - LEGACY[i].later) + LEGACY_FIRST_LINKS;
    }
    *counter = NVLINK_ECC_DATA;
    if (field == LEGACY_ECC_TOTAL) return ALL_LINKS;
    if (field >= LEGACY_ECC_FIRST && field < LEGACY_ECC_TOTAL) return (int)(field - LEGACY_ECC_FIRST);
    return NOT_LEGACY;
}

static int answer(struct nvml_field_value *field, unsigned long long value) {
    field->value_type = NVML_UNSIGNED_LONG_LONG;
    field->value.ull = value;
    return NVML_SUCCESS;
}

static int answer_int(struct nvml_field_value *field, uint64_t value) {
    field->value_type = NVML_UNSIGNED_INT;
    field->value.ull = (unsigned)value;
    return NVML_SUCCESS;
}

/* On later chips these fields are there, and say 0 whatever happens. */
static int legacy_errors(const struct gpu_view *view, struct nvml_field_value *field, int link,
                         enum nvlink_counter counter) {
    unsigned long long sum = 0;
    if (view->constants->nvlinks == 0) return NVML_ERROR_NOT_SUPPORTED;
    if ((view->constants->chip_flags & MO_CHIP_LEGACY_NVLINK_ERRORS) == 0) return answer(field, 0);
    if (link >= 0) {
        const int result = nvlink_check(view, (unsigned)link);
        return result == NVML_SUCCESS ? answer(field, nvlink_errors(view, (unsigned)link, counter)) : result;
    }
    for (unsigned i = 0; i < view->constants->nvlinks; ++i) sum += nvlink_errors(view, i, counter);
    return answer(field, sum);
}

/* Of one link, or of all where the scope is none. */
static int throughput(const struct gpu_view *view, struct nvml_field_value *field) {
    const bool sent = (field->field_id - FIELD_NVLINK_DATA_SENT) % 2 == 0;
    unsigned long long sum = 0;
    if (view->constants->nvlinks == 0) return NVML_ERROR_NOT_SUPPORTED;
    if (field->scope_id != UINT32_MAX) {
        const int result = nvlink_check(view, field->scope_id);
        return result == NVML_SUCCESS ? answer(field, nvlink_bytes(view, field->scope_id, sent) / KIBIBYTE) : result;
    }
    for (unsigned i = 0; i < view->constants->nvlinks; ++i) sum += nvlink_bytes(view, i, sent);
    return answer(field, sum / KIBIBYTE);
}

static uint64_t common_speed(const struct gpu_view *view) {
    for (unsigned i = 0; i < view->constants->nvlinks; ++i)
        if (nvlink_active(view, i)) return view->state.links[i].speed_mbps;
    return 0;
}

static uint64_t switch_links(const struct gpu_view *view) {
    uint64_t count = 0;
    for (unsigned i = 0; i < view->constants->nvlinks; ++i)
        count += view->constants->links[i].remote_type == MO_REMOTE_SWITCH;
    return count;
}

static int nvlink_field(const struct gpu_view *view, struct nvml_field_value *field) {
    const unsigned link = field->scope_id;
    const bool legacy = (view->constants->chip_flags & MO_CHIP_LEGACY_NVLINK_ERRORS) != 0;
    const int result = nvlink_check(view, link);
    if (result != NVML_SUCCESS) return result;
    switch (field->field_id) {
        case FIELD_NVLINK_SPEED:
            return answer_int(field, nvlink_active(view, link) ? view->state.links[link].speed_mbps : 0);
        case FIELD_NVLINK_STATE: return answer_int(field, nvlink_active(view, link));
        case FIELD_NVLINK_VERSION: return answer_int(field, view->constants->nvlink_version);
        case FIELD_NVLINK_REPLAY:
            return legacy ? NVML_ERROR_NOT_SUPPORTED : answer(field, nvlink_errors(view, link, NVLINK_REPLAY));
        case FIELD_NVLINK_RECOVERY:
            return legacy ? NVML_ERROR_NOT_SUPPORTED : answer(field, nvlink_errors(view, link, NVLINK_RECOVERY));
        default:
            return legacy ? NVML_ERROR_NOT_SUPPORTED : answer(field, nvlink_errors(view, link, NVLINK_CRC_FLIT));
    }
}

static int pcie_bytes_field(const struct gpu_view *view, struct nvml_field_value *field, bool sent) {
    if ((view->constants->chip_flags & MO_CHIP_PCIE_BYTE_FIELDS) == 0) return NVML_ERROR_NOT_SUPPORTED;
    return answer(field, fabric_bytes(view->constants->pcie_fabric_link, sent == (view->constants->pcie_toward_b != 0)));
}

static int if_flag(const struct gpu_view *view, unsigned flag, struct nvml_field_value *field, uint64_t value) {
    return (view->constants->chip_flags & flag) != 0 ? answer(field, value) : NVML_ERROR_NOT_SUPPORTED;
}

static int device_field(const struct gpu_view *view, struct nvml_field_value *field) {
    const struct mo_gpu_state *state = &view->state;
    switch (field->field_id) {
        case FIELD_ECC_CURRENT: return answer_int(field, (view->constants->chip_flags & MO_CHIP_ECC) != 0);
        case FIELD_ECC_SINGLE_BIT: return if_flag(view, MO_CHIP_ECC, field, state->ecc_corrected);
        case FIELD_ECC_DOUBLE_BIT: return if_flag(view, MO_CHIP_ECC, field, state->ecc_uncorrected);
        case FIELD_MEMORY_TEMPERATURE:
            if (state->memory_temperature_celsius == MO_UNKNOWN_U64) return NVML_ERROR_NOT_SUPPORTED;
            return answer_int(field, state->memory_temperature_celsius);
        case FIELD_ENERGY: return answer(field, gpu_energy_millijoules(state));
        case FIELD_NVLINK_SPEED_COMMON:
            return view->constants->nvlinks == 0 ? NVML_ERROR_NOT_SUPPORTED : answer_int(field, common_speed(view));
        case FIELD_NVLINK_COUNT:
            return view->constants->nvlinks == 0 ? NVML_ERROR_NOT_SUPPORTED
                                                 : answer_int(field, view->constants->nvlinks);
        case FIELD_NVSWITCH_LINKS: return answer_int(field, switch_links(view));
        case FIELD_PCIE_REPLAYS: return answer_int(field, state->pcie_replays);
        case FIELD_REMAPPED_CORRECTABLE:
            return if_flag(view, MO_CHIP_ROW_REMAPPING, field, state->remapped_correctable);
        case FIELD_REMAPPED_UNCORRECTABLE:
            return if_flag(view, MO_CHIP_ROW_REMAPPING, field, state->remapped_uncorrectable);
        case FIELD_REMAPPING_PENDING: return if_flag(view, MO_CHIP_ROW_REMAPPING, field, state->remapping_pending);
        case FIELD_REMAPPING_FAILED: return if_flag(view, MO_CHIP_ROW_REMAPPING, field, state->remapping_failed);
        case FIELD_PCIE_CORRECTABLE: return answer(field, state->pcie_correctable_errors);
        case FIELD_PCIE_NONFATAL: return answer(field, state->pcie_nonfatal_errors);
        case FIELD_PCIE_FATAL: return answer(field, state->pcie_fatal_errors);
        case FIELD_POWER_AVERAGE:
        case FIELD_POWER_INSTANT: return answer_int(field, state->power_milliwatts);
        case FIELD_PCIE_SENT: return pcie_bytes_field(view, field, true);
        case FIELD_PCIE_RECEIVED: return pcie_bytes_field(view, field, false);
        default: return NVML_ERROR_NOT_SUPPORTED;
    }
}

static int field_value(const struct gpu_view *view, struct nvml_field_value *field) {
    enum nvlink_counter counter;
    const unsigned id = field->field_id;
    const int link = legacy_link(id, &counter);
    if (link != NOT_LEGACY) return legacy_errors(view, field, link, counter);
    if (id >= FIELD_NVLINK_DATA_SENT && id <= FIELD_NVLINK_RAW_RECEIVED) return throughput(view, field);
    if (id >= FIELD_NVLINK_REPLAY && id <= FIELD_NVLINK_VERSION) return nvlink_field(view, field);
    return device_field(view, field);
}

NVML_CALL nvmlDeviceGetFieldValues(nvml_device device, int count, struct nvml_field_value *fields) {
    struct gpu_view view;
    struct timespec now;
    int result;
    if (fields == NULL || count < 1) return NVML_ERROR_INVALID_ARGUMENT;
    result = device_enter(device, &view);
    if (result != NVML_SUCCESS) return result;
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < count; ++i) {
        fields[i].timestamp_us = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
        fields[i].latency_us = 0;
        fields[i].value.ull = 0;
        fields[i].nvml_return = field_value(&view, &fields[i]);
    }
    machine_leave();
    return NVML_SUCCESS;
}

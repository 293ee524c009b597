/* Event sets: who waits on one hears of the Xids of the GPUs that were registered with it. */
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "machine_map.h"

#define SLICE_NS 50000000u /* how late a waiter is at most to see that a GPU is lost, or that there is no machine */

struct event_set {
    uint64_t machine_id;
    uint64_t next; /* number of the event to look at next */
    unsigned long long wanted[MO_MACHINE_GPUS];
    unsigned long long told_lost; /* a bit for every GPU: 64 of them */
};

NVML_CALL nvmlEventSetCreate(struct event_set **set) {
    struct event_set *made;
    const int result = machine_enter();
    if (result != NVML_SUCCESS) return result;
    made = calloc(1, sizeof *made);
    if (made != NULL) {
        made->machine_id = machine_header()->machine_id;
        made->next = __atomic_load_n(&machine_header()->events_written, __ATOMIC_ACQUIRE);
        *set = made;
    }
    machine_leave();
    return made == NULL ? NVML_ERROR_MEMORY : NVML_SUCCESS;
}

NVML_CALL nvmlEventSetFree(struct event_set *set) {
    free(set);
    return NVML_SUCCESS;
}

NVML_CALL nvmlDeviceGetSupportedEventTypes(nvml_device device, unsigned long long *types) {
    struct gpu_view view;
    const int result = device_enter(device, &view);
    if (result != NVML_SUCCESS) return result;
    *types = NVML_SUPPORTED_EVENTS;
    machine_leave();
    return NVML_SUCCESS;
}

NVML_CALL nvmlDeviceRegisterEvents(nvml_device device, unsigned long long types, struct event_set *set) {
    struct gpu_view view;
    const int result = device_enter(device, &view);
    if (result != NVML_SUCCESS) return result;
    if (set != NULL && (types & ~(unsigned long long)NVML_SUPPORTED_EVENTS) == 0) set->wanted[view.index] |= types;
    machine_leave();
    if (set == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    return (types & ~(unsigned long long)NVML_SUPPORTED_EVENTS) == 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

/* The next event that the set wants, if there is one. */
static bool take_event(struct event_set *set, struct nvml_event_data *data) {
    const struct mo_machine_header *header = machine_header();
    for (;;) {
        const uint64_t written = __atomic_load_n(&header->events_written, __ATOMIC_ACQUIRE);
        const struct mo_machine_event *event;
        if (written - set->next > MO_MACHINE_EVENTS) set->next = written - MO_MACHINE_EVENTS;
        if (set->next == written) return false;
        event = &header->events[set->next % MO_MACHINE_EVENTS];
        ++set->next;
        if (event->gpu >= machine_gpus() || (set->wanted[event->gpu] & event->type) == 0) continue;
        data->device = (nvml_device)(uintptr_t)(event->gpu + 1);
        data->event_type = event->type;
        data->event_data = event->data;
        data->gpu_instance_id = data->compute_instance_id = UINT32_MAX; /* no MIG */
        return true;
    }
}

/* Whether a GPU of the set was lost since it was last said. */
static bool is_news_of_a_loss(struct event_set *set) {
    struct gpu_view view;
    for (unsigned i = 0; i < machine_gpus(); ++i) {
        const unsigned long long bit = 1ull << i;
        if (set->wanted[i] == 0) continue;
        if (machine_look((nvml_device)(uintptr_t)(i + 1), &view) == NVML_SUCCESS) {
            set->told_lost &= ~bit;
        } else if ((set->told_lost & bit) == 0) {
            set->told_lost |= bit;
            return true;
        }
    }
    return false;
}

/* One look: NVML_ERROR_TIMEOUT where there is nothing; `seen` is the count that was looked at, `word` where it is. */
static int look(struct event_set *set, struct nvml_event_data *data, uint32_t *seen, const uint32_t **word) {
    int result = machine_enter();
    if (result != NVML_SUCCESS) return result;
    if (machine_header()->machine_id != set->machine_id) { /* NVML was started anew, on another machine */
        machine_leave();
        return NVML_ERROR_UNINITIALIZED;
    }
    *word = (const uint32_t *)&machine_header()->events_written;
    *seen = __atomic_load_n(*word, __ATOMIC_ACQUIRE);
    if (take_event(set, data))
        result = NVML_SUCCESS;
    else
        result = is_news_of_a_loss(set) ? NVML_ERROR_GPU_IS_LOST : NVML_ERROR_TIMEOUT;
    machine_leave();
    return result;
}

NVML_CALL nvmlEventSetWait_v2(struct event_set *set, struct nvml_event_data *data, unsigned timeout_ms) {
    const uint64_t until = monotonic_ns() + timeout_ms * UINT64_C(1000000);
    if (set == NULL || data == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    for (;;) {
        const uint32_t *word = NULL;
        uint32_t seen = 0;
        uint64_t now, left;
        struct timespec slice;
        const int result = look(set, data, &seen, &word);
        if (result != NVML_ERROR_TIMEOUT) return result;
        now = monotonic_ns();
        if (now >= until) return NVML_ERROR_TIMEOUT;
        left = until - now < SLICE_NS ? until - now : SLICE_NS;
        slice = (struct timespec){(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
        /* Should the machine be unmapped meanwhile, this fails, and the next look says so. */
        if (syscall(SYS_futex, word, FUTEX_WAIT, seen, &slice, NULL, 0) != 0) {
            const uint64_t again = monotonic_ns();
            if (again - now < 100000u) sleep_until_ns(again + 1000000u);
        }
    }
}

NVML_CALL nvmlEventSetWait(struct event_set *set, struct nvml_event_data *data, unsigned timeout_ms) {
    return nvmlEventSetWait_v2(set, data, timeout_ms);
}

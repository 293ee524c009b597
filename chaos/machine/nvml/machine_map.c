#include "machine_map.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fabric.h"

#define PATH_VARIABLE "MEDIA_OBSERVATORY_MACHINE"
#define SCALE_ONE 1000000u

struct mapping {
    const char *data;
    size_t bytes;
};

static pthread_rwlock_t guard = PTHREAD_RWLOCK_INITIALIZER;
static unsigned users; /* nvmlInit less nvmlShutdown */
static struct mapping machine, fabric, traffic;

uint64_t monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void sleep_until_ns(uint64_t until) {
    const struct timespec at = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) {
    }
}

uint64_t gpu_energy_millijoules(const struct mo_gpu_state *state) {
    const uint64_t now = monotonic_ns();
    const double seconds = now > state->energy_at_ns ? (double)(now - state->energy_at_ns) / 1e9 : 0.0;
    return state->energy_millijoules + (uint64_t)(seconds * (double)state->power_milliwatts);
}

/* -- files ---------------------------------------------------------------------------------------------------- */

static struct mapping map_file(const char *path) {
    struct mapping found = {NULL, 0};
    struct stat about;
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return found;
    if (fstat(file, &about) == 0 && about.st_size > 0) {
        void *data = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_SHARED, file, 0);
        if (data != MAP_FAILED) {
            found.data = data;
            found.bytes = (size_t)about.st_size;
        }
    }
    close(file);
    return found;
}

static void unmap(struct mapping *mapping) {
    if (mapping->data != NULL) munmap((void *)mapping->data, mapping->bytes);
    mapping->data = NULL;
    mapping->bytes = 0;
}

static bool machine_path(char *path, size_t bytes) {
    const char *named = getenv(PATH_VARIABLE);
    Dl_info about;
    const char *slash;
    if (named != NULL && *named != '\0') return snprintf(path, bytes, "%s", named) < (int)bytes;
    if (dladdr(&guard, &about) == 0 || about.dli_fname == NULL) return false;
    slash = strrchr(about.dli_fname, '/');
    if (slash == NULL) return false;
    return snprintf(path, bytes, "%.*s/machine", (int)(slash - about.dli_fname), about.dli_fname) < (int)bytes;
}

static bool fits(const struct mapping *file, size_t header, uint64_t things, size_t bytes_of_one) {
    return file->bytes >= header && things <= (file->bytes - header) / bytes_of_one;
}

/* The fabric's two files; without them links carry nothing and are never down. */
static void open_fabric(const struct mo_machine_header *header) {
    const struct mo_fabric_header *links;
    const struct mo_traffic_header *ways;
    if (header->fabric_id == 0) return;
    fabric = map_file(header->fabric_path);
    traffic = map_file(header->traffic_path);
    links = (const struct mo_fabric_header *)fabric.data;
    ways = (const struct mo_traffic_header *)traffic.data;
    if (links != NULL && ways != NULL && fabric.bytes >= sizeof *links && traffic.bytes >= sizeof *ways &&
        links->magic == MO_FABRIC_MAGIC && ways->magic == MO_TRAFFIC_MAGIC && links->abi == MO_FABRIC_ABI &&
        ways->abi == MO_FABRIC_ABI && links->fabric_id == header->fabric_id && ways->fabric_id == header->fabric_id &&
        fits(&fabric, sizeof *links, links->links, sizeof(struct mo_link)) &&
        fits(&traffic, sizeof *ways, ways->ways, sizeof(struct mo_way)))
        return;
    unmap(&fabric);
    unmap(&traffic);
}

static int open_machine(void) {
    char path[PATH_MAX];
    const struct mo_machine_header *header;
    if (!machine_path(path, sizeof path)) return NVML_ERROR_DRIVER_NOT_LOADED;
    machine = map_file(path);
    header = (const struct mo_machine_header *)machine.data;
    if (header == NULL || machine.bytes < sizeof *header ||
        __atomic_load_n(&header->magic, __ATOMIC_ACQUIRE) != MO_MACHINE_MAGIC) {
        unmap(&machine);
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    if (header->abi != MO_MACHINE_ABI || header->gpu_bytes != sizeof(struct mo_gpu) ||
        header->gpus > MO_MACHINE_GPUS || !fits(&machine, sizeof *header, header->gpus, sizeof(struct mo_gpu))) {
        unmap(&machine);
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    }
    if (__atomic_load_n(&header->closed, __ATOMIC_ACQUIRE) != 0 ||
        (kill((pid_t)header->owner_pid, 0) != 0 && errno == ESRCH)) {
        unmap(&machine);
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    open_fabric(header);
    return NVML_SUCCESS;
}

int machine_open(void) {
    int result = NVML_SUCCESS;
    pthread_rwlock_wrlock(&guard);
    if (users == 0) result = open_machine();
    if (result == NVML_SUCCESS) ++users;
    pthread_rwlock_unlock(&guard);
    return result;
}

int machine_close(void) {
    int result = NVML_SUCCESS;
    pthread_rwlock_wrlock(&guard);
    if (users == 0) {
        result = NVML_ERROR_UNINITIALIZED;
    } else if (--users == 0) {
        unmap(&machine);
        unmap(&fabric);
        unmap(&traffic);
    }
    pthread_rwlock_unlock(&guard);
    return result;
}

int machine_enter(void) {
    pthread_rwlock_rdlock(&guard);
    if (users == 0) {
        pthread_rwlock_unlock(&guard);
        return NVML_ERROR_UNINITIALIZED;
    }
    if (__atomic_load_n(&machine_header()->closed, __ATOMIC_ACQUIRE) != 0) {
        pthread_rwlock_unlock(&guard);
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    return NVML_SUCCESS;
}

void machine_leave(void) { pthread_rwlock_unlock(&guard); }

/* -- what is in them ------------------------------------------------------------------------------------------ */

const struct mo_machine_header *machine_header(void) { return (const struct mo_machine_header *)machine.data; }

unsigned machine_gpus(void) { return machine_header()->gpus; }

static const struct mo_gpu *shared_gpu(unsigned index) {
    return (const struct mo_gpu *)(machine.data + sizeof(struct mo_machine_header)) + index;
}

const struct mo_gpu_constants *machine_gpu(unsigned index) { return &shared_gpu(index)->constants; }

/* See the latch in machine.h. Words are copied one by one, so that none is torn. */
static void copy_state(const struct mo_gpu *gpu, struct mo_gpu_state *state) {
    for (;;) {
        const uint64_t before = __atomic_load_n(&gpu->sequence, __ATOMIC_ACQUIRE);
        const uint64_t *from = (const uint64_t *)&gpu->states[before & 1];
        uint64_t *to = (uint64_t *)state;
        for (size_t i = 0; i < sizeof *state / sizeof *to; ++i) to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (__atomic_load_n(&gpu->sequence, __ATOMIC_RELAXED) == before) return;
    }
}

int machine_look(nvml_device device, struct gpu_view *view) {
    const uintptr_t number = (uintptr_t)device;
    if (number == 0 || number > machine_gpus()) return NVML_ERROR_INVALID_ARGUMENT;
    view->index = (unsigned)(number - 1);
    view->constants = machine_gpu(view->index);
    copy_state(shared_gpu(view->index), &view->state);
    return view->state.lost != 0 ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

int device_enter(nvml_device device, struct gpu_view *view) {
    int result = machine_enter();
    if (result != NVML_SUCCESS) return result;
    result = machine_look(device, view);
    if (result != NVML_SUCCESS) machine_leave();
    return result;
}

uint64_t fabric_bytes(uint32_t link, bool toward_b) {
    const struct mo_fabric_header *header = (const struct mo_fabric_header *)fabric.data;
    const struct mo_way *ways;
    const uint64_t way = 2 * (uint64_t)link + (toward_b ? 0 : 1);
    if (header == NULL || way >= ((const struct mo_traffic_header *)traffic.data)->ways) return 0;
    ways = (const struct mo_way *)(traffic.data + sizeof(struct mo_traffic_header));
    return (uint64_t)((double)__atomic_load_n(&ways[way].bytes, __ATOMIC_RELAXED) *
                      ((double)header->time_scale_millionths / SCALE_ONE));
}

bool fabric_is_down(uint32_t link) {
    const struct mo_fabric_header *header = (const struct mo_fabric_header *)fabric.data;
    const struct mo_link *shared;
    uint64_t before, flags;
    if (header == NULL || link >= header->links) return false;
    shared = (const struct mo_link *)(fabric.data + sizeof *header) + link;
    do {
        before = __atomic_load_n(&shared->sequence, __ATOMIC_ACQUIRE);
        flags = __atomic_load_n(&shared->states[before & 1].flags, __ATOMIC_ACQUIRE);
    } while (__atomic_load_n(&shared->sequence, __ATOMIC_RELAXED) != before);
    return flags == MO_LINK_DOWN;
}

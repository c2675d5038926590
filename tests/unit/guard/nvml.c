/* A stand-in for the driver's libnvidia-ml.so.1, as far as headway asks it. What it answers stands in the file that
   NVML_STATE names, and is read at each call:

       I RC                          nvmlInit
       D UUID NAME RC TOTAL FREE     a device, with what its memory info returns; RC 15 is "lost" for every question
       P DEVICE PID BYTES            a process of a device; BYTES -1: not known
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID = 2, TOO_SMALL = 7, LOST = 15, MOST = 8 };
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu, compute; } Process;
typedef struct { char uuid[80], name[80]; int rc; unsigned long long total, free; } Device;
static struct { int init, devices, processes; Device device[MOST]; int of[MOST]; Process process[MOST]; } state;

static void look(void) {
    char line[400];
    memset(&state, 0, sizeof state);
    FILE *file = fopen(getenv("NVML_STATE"), "r");
    while (file && fgets(line, sizeof line, file)) {
        Device *d = &state.device[state.devices];
        Process *p = &state.process[state.processes];
        long long used;
        if (sscanf(line, "I %d", &state.init) == 1) continue;
        if (sscanf(line, "D %79s %79s %d %llu %llu", d->uuid, d->name, &d->rc, &d->total, &d->free) == 5) {
            for (char *c = d->name; *c; c++) if (*c == '_') *c = ' ';
            state.devices++;
        } else if (sscanf(line, "P %d %u %lld", &state.of[state.processes], &p->pid, &used) == 3) {
            p->used = (unsigned long long)used, p->gpu = p->compute = 0xffffffff;
            state.processes++;
        }
    }
    if (file) fclose(file);
}

/* a handle is the number of its device, from 1 on */
static Device *of(void *handle) {
    look();
    return &state.device[(long)handle - 1];
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; look(); return state.init; }
int nvmlShutdown(void) { look(); return state.init; }
const char *nvmlErrorString(int rc) { (void)rc; return "an error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { look(); *count = state.devices; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    look();
    if (index >= (unsigned)state.devices) return INVALID;
    *handle = (void *)(long)(index + 1);
    return state.device[index].rc == LOST ? LOST : SUCCESS;
}

int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    snprintf(text, size, "%s", of(handle)->uuid);
    return of(handle)->rc == LOST ? LOST : SUCCESS;
}

int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    snprintf(text, size, "%s", of(handle)->name);
    return of(handle)->rc == LOST ? LOST : SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
    Device *d = of(handle);
    memory->total = d->total, memory->free = d->free, memory->used = d->total - d->free;
    return d->rc;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, Process *list) {
    unsigned found = 0, room = *count;
    if (of(handle)->rc == LOST) return LOST;
    for (int each = 0; each < state.processes; each++)
        if (state.of[each] == (long)handle - 1) {
            if (list && found < room) list[found] = state.process[each];
            found++;
        }
    *count = found;
    return found > room ? TOO_SMALL : SUCCESS;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, Process *list) {
    (void)list;
    *count = 0;
    return of(handle)->rc == LOST ? LOST : SUCCESS;
}

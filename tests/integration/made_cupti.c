/* A CUDA driver and a CUPTI in one library: `launch` is a call of the runtime that starts a kernel, `put` writes any
record.

MADE_CUPTI: `hangs` (a flush never returns), `taken` (another tool has subscribed).
MADE_VERSION: CUPTI's version (130001). MADE_FUNCTIONS: names of functions of the runtime, from number 1 on. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void (*request_t)(uint8_t **, size_t *, size_t *);
typedef void (*complete_t)(void *, uint32_t, uint8_t *, size_t, size_t);
enum { DRIVER = 4, RUNTIME = 5, KERNEL = 10, API_BYTES = 40, KERNEL_BYTES = 216 };

static pid_t initialised_in;
static request_t request;
static complete_t complete;
static uint64_t (*clock_ns)(void);
static uint8_t *buffer;
static size_t size, used, dropped;
static uint32_t correlation;
static int enabled[128], chosen[8][128];
static int length[128] = {[DRIVER] = API_BYTES, [RUNTIME] = API_BYTES, [KERNEL] = KERNEL_BYTES};
static __thread int thread;

__attribute__((constructor)) static void remember_thread(void) { thread = gettid(); } /* as CUPTI: a fork copies it */

static int is(const char *word) { const char *set = getenv("MADE_CUPTI"); return set && strcmp(set, word) == 0; }

static uint32_t version_of_cupti(void) { const char *set = getenv("MADE_VERSION"); return set ? atoi(set) : 130001; }

static uint8_t *record(size_t bytes) {
    size_t most;
    if (!request) return NULL;
    if (!buffer) request(&buffer, &size, &most);
    if (!buffer) { dropped++; return NULL; }
    uint8_t *at = buffer + used;
    used += bytes;
    return at;
}

static void call(uint32_t kind, uint32_t number, uint64_t start) {
    if (!enabled[kind] && !chosen[kind][number]) return;
    uint8_t *at = record(API_BYTES);
    if (!at) return;
    uint32_t head[2] = {kind, number}, tail[3] = {thread ? thread : gettid(), correlation, 0};
    uint64_t times[2] = {start, clock_ns()};
    memcpy(at, head, 8), memcpy(at + 8, times, 16), memcpy(at + 28, tail, 12);
}

void launch(void) {
    if (!clock_ns) return;
    uint64_t start = clock_ns(), times[2] = {start + 1, start + 1001};
    correlation++;
    call(RUNTIME, 13, start);
    uint8_t *at = enabled[KERNEL] ? record(KERNEL_BYTES) : NULL;
    if (!at) return;
    uint32_t kind = KERNEL;
    const char *name = "_ZN2ns4fillIfEEvPT_i";
    memcpy(at, &kind, 4), memcpy(at + 16, times, 16), memcpy(at + 92, &correlation, 4), memcpy(at + 104, &name, 8);
}

void put(const uint8_t *content, uint32_t bytes) {
    uint8_t *at = record(bytes);
    length[*(uint32_t *)content] = bytes;
    if (at) memcpy(at, content, bytes);
}

int is_chosen(int number) { return chosen[RUNTIME][number]; }
void wait_for_it(void) { if (clock_ns) correlation++, call(RUNTIME, 14, clock_ns()); }
void steal(void) { request = NULL; }

int cuInit(unsigned flags) { initialised_in = getpid(); return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return initialised_in == getpid() ? 0 : 3; }
int cuDriverGetVersion(int *version) {
    *version = version_of_cupti() < 1000 ? 12000 : 13000;
    if (clock_ns) call(DRIVER, 3, clock_ns());
    return 0;
}
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetName(char *name, int length, int device) { strcpy(name, "Made GPU"); return 0; }
int cuDeviceGetPCIBusId(char *name, int length, int device) { strcpy(name, "0000:01:00.0"); return 0; }
int cuDeviceGetUuid(uint8_t *uuid, int device) { memset(uuid, 7, 16); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 1 << 30; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = 8; return 0; }

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = *active = 0; return 0; }

int cuptiGetVersion(uint32_t *version) { *version = version_of_cupti(); return 0; }
int cuptiGetResultString(int code, const char **text) { *text = "made up"; return 0; }
int cuptiSubscribe(void **subscriber, void *callback, void *data) { return is("taken") ? 39 : 0; }
int cuptiActivitySetAttribute(int attribute, size_t *bytes, void *value) { return *bytes == 1 ? 0 : 1; }
int cuptiSetThreadIdType(int type) { return 0; }
int cuptiActivityRegisterTimestampCallback(uint64_t (*clock)(void)) { clock_ns = clock; return 0; }
int cuptiActivityRegisterCallbacks(request_t r, complete_t c) { request = r, complete = c; return 0; }
int cuptiActivityEnable(int kind) { enabled[kind] = 1; return 0; }
int cuptiActivityDisable(int kind) { enabled[kind] = 0; return 0; }
int cuptiActivityEnableRuntimeApi(uint32_t number, uint8_t on) { chosen[RUNTIME][number] = on; return 0; }
int cuptiActivityEnableDriverApi(uint32_t number, uint8_t on) { chosen[DRIVER][number] = on; return 0; }
int cuptiGetCallbackName(int domain, uint32_t number, const char **name) {
    static char names[4096];
    const char *given = getenv("MADE_FUNCTIONS");
    *name = domain == 1 ? (number == 3 ? "cuDriverGetVersion" : NULL)
        : given ? strtok(number == 1 ? strcpy(names, given) : NULL, " ")
        : number == 13 ? "cudaLaunchKernel_v7000" : number == 14 ? "cudaStreamSynchronize_v3020"
        : number == 15 ? "cudaGetDevice_v3020" : NULL;
    return *name ? 0 : 1;
}
int cuptiActivityFlushAll(uint32_t flags) {
    while (is("hangs")) pause();
    if (buffer && request) complete(NULL, 0, buffer, size, used);
    buffer = NULL, used = 0;
    return 0;
}
int cuptiActivityGetNextRecord(uint8_t *start, size_t valid, uint8_t **at) {
    uint8_t *next = *at ? *at + length[*(uint32_t *)*at] : start;
    if (next >= start + valid) return 12;
    *at = next;
    return 0;
}
int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *count) { *count = dropped; return 0; }

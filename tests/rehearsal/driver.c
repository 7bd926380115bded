/* A fake driver: libcuda.so.1 and libnvidia-ml.so.1 in one file, of a machine with idle H100s.

   It logs CUDA's calls to the file that REHEARSAL_LOG names, one line each: "cuInit PID", and before that the GPUs that
   CUDA would see: "sees GPU-...,GPU-... PID". All other functions are NVML's, and their answers are fixed here.
   REHEARSAL_CARDS is the number of GPUs. A GPU's handle is its number, from 1. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } Memory2;

static const unsigned long long USED = 512ull << 20;
static int opened;

/* Bytes of the GPU: of an H100 unless REHEARSAL_BYTES says otherwise. */
static unsigned long long total(void) {
    const char *asked = getenv("REHEARSAL_BYTES");
    return asked ? strtoull(asked, NULL, 10) : 85520809984ull;
}

static void record(const char *call) {
    const char *path = getenv("REHEARSAL_LOG");
    int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT, 0600) : -1;
    if (file >= 0) {
        char line[512];
        int length = snprintf(line, sizeof line, "%s %d\n", call, (int)getpid());
        if (write(file, line, length) != length) abort();
        close(file);
    }
}

/* 100: no device. Nothing can run here; the tests only look at who calls. */
#define NO_DEVICE(call) \
    int call(void) { record(#call); return 100; }
int cuInit(unsigned int flags) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    char seen[448];
    (void)flags;
    snprintf(seen, sizeof seen, "sees %s", visible ? visible : "all");
    record(seen);
    record("cuInit");
    return 100;
}
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
/* The CUDA runtime gets every function from here, including cuInit. 500: no function has that name. */
int cuGetProcAddress_v2(const char *name, void **found, int version, unsigned long long flags, int *status) {
    (void)version, (void)flags;
    *found = dlsym(RTLD_DEFAULT, name);
    if (status) *status = *found ? 0 : 1;
    return *found ? 0 : 500;
}
int cuGetProcAddress(const char *name, void **found, int version, unsigned long long flags) {
    return cuGetProcAddress_v2(name, found, version, flags, NULL);
}
/* What extensions of torch and vLLM are linked against: they are not loaded without. */
NO_DEVICE(cuCtxGetCurrent)
NO_DEVICE(cuCtxSetCurrent)
NO_DEVICE(cuDeviceGet)
NO_DEVICE(cuDeviceGetAttribute)
NO_DEVICE(cuDevicePrimaryCtxGetState)
NO_DEVICE(cuDevicePrimaryCtxRetain)
NO_DEVICE(cuFuncGetAttribute)
NO_DEVICE(cuFuncSetAttribute)
NO_DEVICE(cuFuncSetCacheConfig)
NO_DEVICE(cuGetErrorString)
NO_DEVICE(cuLaunchCooperativeKernel)
NO_DEVICE(cuLaunchKernel)
NO_DEVICE(cuLinkAddData_v2)
NO_DEVICE(cuLinkComplete)
NO_DEVICE(cuLinkCreate_v2)
NO_DEVICE(cuMemAddressFree)
NO_DEVICE(cuMemAddressReserve)
NO_DEVICE(cuMemCreate)
NO_DEVICE(cuMemGetAllocationGranularity)
NO_DEVICE(cuMemMap)
NO_DEVICE(cuMemRelease)
NO_DEVICE(cuMemSetAccess)
NO_DEVICE(cuMemUnmap)
NO_DEVICE(cuModuleGetFunction)
NO_DEVICE(cuModuleLoad)
NO_DEVICE(cuModuleLoadData)
NO_DEVICE(cuModuleLoadDataEx)
NO_DEVICE(cuModuleUnload)
NO_DEVICE(cuOccupancyMaxActiveBlocksPerMultiprocessor)
NO_DEVICE(cuPointerGetAttribute)
NO_DEVICE(cuTensorMapEncodeTiled)

int nvmlInit(void) { opened++; record("nvmlInit by torch"); return 0; } /* which never closes it */
int nvmlInit_v2(void) { opened++; record("nvmlInit"); return 0; }
int nvmlInitWithFlags(unsigned int flags) { (void)flags; return nvmlInit_v2(); }
int nvmlShutdown(void) { opened--; record("nvmlShutdown"); return 0; }
const char *nvmlErrorString(int code) { (void)code; return "made up"; }
int nvmlSystemGetDriverVersion(char *text, unsigned int length) { snprintf(text, length, "580.65.06"); return 0; }
static unsigned int cards(void) {
    const char *asked = getenv("REHEARSAL_CARDS");
    return asked ? (unsigned int)strtoul(asked, NULL, 10) : 1;
}
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = cards(); return opened > 0 ? 0 : 1; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle) {
    *handle = (void *)(uintptr_t)(index + 1);
    return opened <= 0 ? 1 : index >= cards() ? 2 : 0;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    unsigned long number = strlen(uuid) == 40 ? strtoul(uuid + 28, NULL, 10) : 0;
    *handle = (void *)(uintptr_t)number;
    return number >= 1 && number <= cards() ? 0 : 6; /* not found */
}
int nvmlDeviceGetIndex(void *handle, unsigned int *index) {
    *index = (unsigned int)(uintptr_t)handle - 1;
    return 0;
}
int nvmlDeviceGetP2PStatus(void *one, void *other, int what, int *status) { /* all are linked */
    (void)one, (void)other, (void)what;
    *status = 0;
    return 0;
}
int nvmlDeviceGetName(void *handle, char *text, unsigned int length) {
    (void)handle;
    snprintf(text, length, total() < 100000000000ull ? "NVIDIA H100 80GB HBM3" : "NVIDIA H200");
    return 0;
}
int nvmlDeviceGetUUID(void *handle, char *text, unsigned int length) {
    snprintf(text, length, "GPU-00000000-0000-0000-0000-%012u", (unsigned int)(uintptr_t)handle);
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
    (void)handle;
    memory->total = total(), memory->used = USED, memory->free = total() - USED;
    return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void *handle, Memory2 *memory) {
    (void)handle;
    memory->total = total(), memory->used = USED, memory->free = total() - USED, memory->reserved = 0;
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    (void)handle;
    *major = 9, *minor = 0;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned int *count, void *processes) {
    (void)handle, (void)processes;
    *count = 0;
    return 0;
}

// What cuDNN asks of CUDA's driver while it plans for a device that is not here: it loads the kernels that it has compiled.
// Anything else is refused. Stands as libcuda.so.1 in the process of the test.
#include <cstddef>

namespace {
int thing;                         // what handles point to
constexpr int kNotPermitted = 34;  // CUDA_ERROR_STUB_LIBRARY
int give(void** handle) {
    *handle = &thing;
    return 0;
}
}  // namespace

#define ANSWER extern "C" __attribute__((visibility("default"))) int
#define REFUSES(name) \
    ANSWER name() { return kNotPermitted; }

ANSWER cuInit(unsigned) { return 0; }
ANSWER cuDriverGetVersion(int* version) {
    *version = 13000;
    return 0;
}
ANSWER cuLibraryLoadData(void** library, const void*, void*, void**, unsigned, void*, void**, unsigned) { return give(library); }
ANSWER cuLibraryUnload(void*) { return 0; }
ANSWER cuLibraryGetKernel(void** kernel, void*, const char*) { return give(kernel); }
ANSWER cuLibraryGetModule(void** module, void*) { return give(module); }
ANSWER cuKernelGetFunction(void** function, void*) { return give(function); }
ANSWER cuModuleLoadData(void** module, const void*) { return give(module); }
ANSWER cuModuleGetFunction(void** function, void*, const char*) { return give(function); }
ANSWER cuModuleUnload(void*) { return 0; }
ANSWER cuKernelSetAttribute(int, int, void*, int) { return 0; }
ANSWER cuFuncSetAttribute(void*, int, int) { return 0; }
ANSWER cuKernelGetAttribute(int* value, int, void*, int) {
    *value = 0;
    return 0;
}
ANSWER cuFuncGetAttribute(int* value, int, void*) {
    *value = 0;
    return 0;
}

REFUSES(cuCtxGetCurrent);
REFUSES(cuCtxGetDevice);
REFUSES(cuCtxGetLimit);
REFUSES(cuCtxPopCurrent);
REFUSES(cuCtxPushCurrent);
REFUSES(cuDeviceGet);
REFUSES(cuDeviceGetAttribute);
REFUSES(cuDeviceGetCount);
REFUSES(cuDevicePrimaryCtxRelease);
REFUSES(cuDevicePrimaryCtxReset);
REFUSES(cuDevicePrimaryCtxRetain);
REFUSES(cuGetErrorName);
REFUSES(cuGetErrorString);
REFUSES(cuGetExportTable);
REFUSES(cuLaunchCooperativeKernel);
REFUSES(cuLaunchKernel);
REFUSES(cuLaunchKernelEx);
REFUSES(cuLibraryLoadFromFile);
REFUSES(cuLinkAddData);
REFUSES(cuLinkAddData_v2);
REFUSES(cuLinkAddFile_v2);
REFUSES(cuLinkComplete);
REFUSES(cuLinkCreate);
REFUSES(cuLinkCreate_v2);
REFUSES(cuLinkDestroy);
REFUSES(cuMemcpyDtoH_v2);
REFUSES(cuModuleGetGlobal_v2);
REFUSES(cuModuleLoadDataEx);
REFUSES(cuModuleLoadFatBinary);
REFUSES(cuOccupancyMaxActiveBlocksPerMultiprocessor);
REFUSES(cuOccupancyMaxPotentialClusterSize);
REFUSES(cuStreamGetCtx);
REFUSES(cuStreamSynchronize);
REFUSES(cuTensorMapEncodeTiled);

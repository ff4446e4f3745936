// A driver for graph_library_test, built as libcuda.so.1: it knows no device, and accepts every
// program that is compiled for one. Signatures are those of the CUDA driver API reference;
// functions that are never called exist only by name, since cuDNN looks for them.

extern "C" {

constexpr int kOk = 0;
constexpr int kStub = 34;  // CUDA_ERROR_STUB_LIBRARY

static int something;  // what every handle points to

int cuInit(unsigned int) { return kOk; }
int cuDriverGetVersion(int* version) {
  // cuDNN refuses drivers that are older than the toolkit it was built with.
  *version = 13000;
  return kOk;
}
int cuLibraryLoadData(void** library, const void*, void*, void**, unsigned int, void*, void**,
                      unsigned int) {
  // Every handle is the same address, as nothing is ever loaded.
  *library = &something;
  return kOk;
}
int cuLibraryUnload(void*) { return kOk; }
int cuLibraryGetKernel(void** kernel, void*, const char*) {
  *kernel = &something;
  return kOk;
}
int cuKernelGetFunction(void** function, void*) {
  *function = &something;
  return kOk;
}
// Attributes are accepted and forgotten, as no kernel is ever launched.
int cuKernelSetAttribute(int, int, void*, int) { return kOk; }
int cuFuncSetAttribute(void*, int, int) { return kOk; }
int cuKernelGetAttribute(int* value, int, void*, int) {
  *value = 0;
  return kOk;
}
int cuFuncGetAttribute(int* value, int, void*) {
  *value = 0;
  return kOk;
}

int cuCtxGetCurrent() { return kStub; }
int cuCtxGetLimit() { return kStub; }
int cuCtxPopCurrent() { return kStub; }
int cuCtxPushCurrent() { return kStub; }
int cuDeviceGet() { return kStub; }
int cuDeviceGetCount() { return kStub; }
int cuGetErrorName() { return kStub; }
int cuGetErrorString() { return kStub; }
int cuGetExportTable() { return kStub; }
int cuLaunchCooperativeKernel() { return kStub; }
int cuLaunchKernel() { return kStub; }
int cuLaunchKernelEx() { return kStub; }
int cuLibraryLoadFromFile() { return kStub; }
int cuLinkAddData() { return kStub; }
int cuLinkComplete() { return kStub; }
int cuLinkCreate() { return kStub; }
int cuLinkDestroy() { return kStub; }
int cuOccupancyMaxPotentialClusterSize() { return kStub; }
int cuStreamGetCtx() { return kStub; }

}  // extern "C"

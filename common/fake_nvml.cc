// NVML's functions for tests, of a machine with two GPUs. Built as libnvidia-ml.so.1.
#include <cstdio>

namespace {

struct Memory {
  unsigned long long total, free, used;
};
int devices[2] = {0, 1};

}  // namespace

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned int bytes) {
  std::snprintf(text, bytes, "580.1");
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, int** device) {
  *device = &devices[index];
  return 0;
}
int nvmlDeviceGetName(int*, char* text, unsigned int bytes) {
  std::snprintf(text, bytes, "Fake GPU");
  return 0;
}
int nvmlDeviceGetUUID(int* device, char* text, unsigned int bytes) {
  std::snprintf(text, bytes, "GPU-%d", *device);
  return 0;
}
int nvmlDeviceGetMemoryInfo(int*, Memory* memory) {
  memory->total = 80ull << 30;
  memory->free = 79ull << 30;
  memory->used = 1ull << 30;
  return 0;
}
const char* nvmlErrorString(int) { return "an error"; }

}  // extern "C"

#include "worker/device/profiler_range.h"

// NVTX is a package of its own among NVIDIA's wheels.
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define TERCIO_HAS_NVTX
#endif

namespace tercio::device {

#ifdef TERCIO_HAS_NVTX

void PushProfilerRange(const char* name, int64_t number) {
  nvtxEventAttributes_t attributes = {};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;
  attributes.payloadType = NVTX_PAYLOAD_TYPE_INT64;
  attributes.payload.llValue = number;
  nvtxRangePushEx(&attributes);
}
void PopProfilerRange() { nvtxRangePop(); }

#else

void PushProfilerRange(const char*, int64_t) {}
void PopProfilerRange() {}

#endif

}  // namespace tercio::device

// The part of NVTX (version 3) that Tercio uses, with its names and numbers, for programs without
// CUDA: ranges of the calling thread, which emulation/nvtx_control.h shows to tests. NVTX does
// nothing unless a profiler is attached; this one nothing unless a test records.
#pragma once

#include <cstddef>
#include <cstdint>

#define NVTX_VERSION 3
#define NVTX_EVENT_ATTRIB_STRUCT_SIZE (static_cast<uint16_t>(sizeof(nvtxEventAttributes_t)))

enum nvtxPayloadType_t { NVTX_PAYLOAD_UNKNOWN = 0, NVTX_PAYLOAD_TYPE_INT64 = 2 };
enum nvtxMessageType_t { NVTX_MESSAGE_UNKNOWN = 0, NVTX_MESSAGE_TYPE_ASCII = 1 };

struct nvtxEventAttributes_t {
  uint16_t version;
  uint16_t size;
  uint32_t category;
  int32_t colorType;
  uint32_t color;
  int32_t payloadType;
  int32_t reserved0;
  union {
    int64_t llValue;
    double dValue;
  } payload;
  int32_t messageType;
  union {
    const char* ascii;
    const wchar_t* unicode;
  } message;
};

// The level of the range, from 0; negative: an error.
int nvtxRangePushEx(const nvtxEventAttributes_t* attributes);
int nvtxRangePop();

// Faults of a GPU, with texts that say how to fix them. Pure.
//
// XID numbers and the actions that NVIDIA recommends: "Xid Catalog" in NVIDIA's documentation of
// Xid errors (docs.nvidia.com/deploy/xid-errors), column "Immediate Action", for Ampere and newer.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/gpus/gpus.h"

namespace tercio {

enum class XidEffect {
  kNone,       // recorded only, or unknown
  kProcess,    // ends the affected process; the GPU is fine
  kNoNewWork,  // the GPU must be reset, but running work may continue
  kEndsAll,    // no work on the GPU can continue
};
XidEffect EffectOfXid(int xid);
// Whether the device, and not a program, caused the XID.
bool IsOfDevice(int xid);
// "XID 79 (the GPU has fallen off the bus)".
std::string DescribeXid(int xid);

struct GpuFault {
  std::string text;
  bool ends_runs = false;  // running work on the GPU cannot continue
};

// Circumstances of a GPU that its sample does not contain.
struct GpuCircumstances {
  std::vector<int> xids;     // that it has reported
  bool shared = false;       // several of our processes have to use it at the same time
  bool in_use = false;       // by our processes: then memory cannot be attributed
  int64_t others_bytes = 0;  // memory that other processes may use
};

// Why no work can be scheduled on the GPU; nullopt if it can.
std::optional<GpuFault> FaultOf(const Gpu& gpu, const GpuSample& sample,
                                const GpuCircumstances& circumstances);

// FAILED_PRECONDITION if a driver of this CUDA version cannot run programs that are linked with
// this runtime. Within a major version every driver runs every runtime ("CUDA minor version
// compatibility"). 0: not known, OK.
absl::Status CheckDriver(const std::string& driver, int driver_cuda, int runtime);

// 13020 -> "13.2".
std::string CudaVersionText(int version);

// The CUDA error that `text` names in parentheses, as worker/device/cuda_status.h writes it; "" if
// there is none, or if a program can cause it on a healthy GPU.
std::string_view DeviceErrorIn(std::string_view text);

// "3.2 GiB".
std::string GibibytesText(int64_t bytes);

}  // namespace tercio

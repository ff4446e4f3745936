// What is wrong with a GPU, in words that say how to mend it. Pure.
//
// XID numbers and what NVIDIA says to do about them: "Xid Catalog" in NVIDIA's documentation of Xid
// errors (docs.nvidia.com/deploy/xid-errors), column "Immediate Action", for Ampere and newer.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/gpus/gpus.h"

namespace tercio {

enum class XidEffect {
  kNone,       // recorded only, or not known to us
  kProcess,    // ends the process that it befell; the GPU is well
  kNoNewWork,  // the GPU must be reset, but what runs may go on
  kEndsAll,    // nothing on the GPU can go on
};
XidEffect EffectOfXid(int xid);
// Whether no program can have caused it.
bool IsOfDevice(int xid);
// "XID 79 (the GPU has fallen off the bus)".
std::string DescribeXid(int xid);

struct GpuFault {
  std::string text;
  bool ends_runs = false;  // what is on the GPU cannot go on
};

// What the sample of a GPU does not tell.
struct GpuCircumstances {
  std::vector<int> xids;     // that it has had
  bool shared = false;       // several processes of ours are to use it at the same time
  bool in_use = false;       // by processes of ours: then nobody can tell whose memory is whose
  int64_t others_bytes = 0;  // memory that processes of others may have
};

// Why the GPU can take no work; nothing: it can.
std::optional<GpuFault> FaultOf(const Gpu& gpu, const GpuSample& sample,
                                const GpuCircumstances& circumstances);

// FAILED_PRECONDITION where a driver of this CUDA version cannot run programs that are linked with
// this runtime. Within a major version every driver runs every runtime ("CUDA minor version
// compatibility"). 0: not known, OK.
absl::Status CheckDriver(const std::string& driver, int driver_cuda, int runtime);

// 13020 -> "13.2".
std::string CudaVersionText(int version);

// The error of CUDA's that `text` names in parentheses, as worker/device/cuda_status.h writes it;
// "" where there is none, or it is one that a program can cause on a GPU that is well.
std::string_view DeviceErrorIn(std::string_view text);

// "3.2 GiB".
std::string GibibytesText(int64_t bytes);

}  // namespace tercio

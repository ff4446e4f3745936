#include <nvtx3/nvToolsExt.h>

#include <mutex>
#include <utility>

#include "emulation/nvtx_control.h"

namespace tercio::emulation {
namespace {

struct Ranges {
  std::mutex mutex;
  bool on = false;
  std::vector<std::string> lines;
  int open = 0;
};
Ranges& TheRanges() {
  static Ranges* ranges = new Ranges();  // threads may use it until the process ends
  return *ranges;
}

thread_local int depth = 0;

int Push(const nvtxEventAttributes_t& attributes) {
  Ranges& ranges = TheRanges();
  std::lock_guard lock(ranges.mutex);
  if (!ranges.on) return depth++;
  ++ranges.open;
  ranges.lines.push_back(std::string(static_cast<size_t>(2 * depth), ' ') +
                         attributes.message.ascii + " " +
                         std::to_string(attributes.payload.llValue));
  return depth++;
}

int Pop() {
  Ranges& ranges = TheRanges();
  std::lock_guard lock(ranges.mutex);
  if (depth == 0) {
    if (ranges.on) ranges.lines.emplace_back("an end without a range");
    return -1;
  }
  if (ranges.on) --ranges.open;
  return --depth;
}

}  // namespace

void RecordRanges(bool on) {
  Ranges& ranges = TheRanges();
  std::lock_guard lock(ranges.mutex);
  ranges.on = on;
  ranges.open = 0;
}

std::vector<std::string> TakeRanges() {
  Ranges& ranges = TheRanges();
  std::lock_guard lock(ranges.mutex);
  if (ranges.open != 0) {
    ranges.lines.push_back(std::to_string(std::exchange(ranges.open, 0)) +
                           " ranges without an end");
  }
  return std::exchange(ranges.lines, {});
}

}  // namespace tercio::emulation

int nvtxRangePushEx(const nvtxEventAttributes_t* attributes) {
  // A structure of another version would be misread by a profiler.
  const bool is_usable = attributes != nullptr && attributes->version == NVTX_VERSION &&
                         attributes->size == NVTX_EVENT_ATTRIB_STRUCT_SIZE &&
                         attributes->messageType == NVTX_MESSAGE_TYPE_ASCII &&
                         attributes->payloadType == NVTX_PAYLOAD_TYPE_INT64;
  return is_usable ? tercio::emulation::Push(*attributes) : -1;
}

int nvtxRangePop() { return tercio::emulation::Pop(); }

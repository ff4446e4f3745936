// CUDA's functions for capturing streams and for graphs. A graph is a line of nodes for each stream
// that took part, with waits between lines; an execution randomly chooses the line that continues.
#include <algorithm>
#include <numeric>

#include "emulation/device.h"

using tercio::emulation::Capture;
using tercio::emulation::Enter;
using tercio::emulation::FindStream;
using tercio::emulation::GraphLines;
using tercio::emulation::GraphNode;
using tercio::emulation::Process;
using tercio::emulation::Return;
using tercio::emulation::Submit;

namespace tercio::emulation {
namespace {

// An execution of a graph, from its first node to its last.
struct Execution {
  std::shared_ptr<const GraphLines> lines;
  std::shared_ptr<bool> busy;
  uint64_t random;
  bool started = false;
  std::vector<size_t> positions = std::vector<size_t>(lines->size());

  bool Finished() const {
    for (size_t i = 0; i < positions.size(); ++i) {
      if (positions[i] < (*lines)[i].size()) return false;
    }
    return true;
  }

  // One step of one line.
  bool RunOne() {
    // The first line is drawn, so that lines that do not wait for each other change places.
    const size_t first = NextRandom(random) % lines->size();
    for (size_t i = 0; i < lines->size(); ++i) {
      const size_t line = (first + i) % lines->size();
      if (positions[line] == (*lines)[line].size()) continue;
      const GraphNode& node = (*lines)[line][positions[line]];
      // Nodes of a line that has not come that far may still be missing.
      if (node.wait_line >= 0 && positions[static_cast<size_t>(node.wait_line)] < node.wait_count) {
        continue;
      }
      const Progress progress = node.work.step();
      // A node may need several steps, for instance a collective.
      if (progress == Progress::kDone) ++positions[line];
      if (progress != Progress::kWaiting) return true;
    }
    return false;
  }

  Progress Step() {
    // CUDA runs the launches of one executable one after the other.
    if (!started && *busy) return Progress::kWaiting;
    started = *busy = true;
    const bool progress = Finished() || RunOne();
    if (Finished()) {
      *busy = false;
      return Progress::kDone;
    }
    return progress ? Progress::kMore : Progress::kWaiting;
  }
};

}  // namespace

// The seed makes an execution repeatable.
Work GraphWork(const CUgraphExec_st& executable, uint64_t seed) {
  // The execution holds the nodes, so the executable may be destroyed or updated meanwhile.
  auto execution = std::make_shared<Execution>(Execution{executable.lines, executable.busy, seed});
  return {WorkKind::kGraph, [execution] { return execution->Step(); }};
}

}  // namespace tercio::emulation

namespace {

// Every line but the first must be waited for, to its end, by another one.
bool Joined(const GraphLines& lines) {
  for (size_t line = 1; line < lines.size(); ++line) {
    const bool awaited = std::any_of(lines.begin(), lines.end(), [&](const auto& other) {
      return std::any_of(other.begin(), other.end(), [&](const GraphNode& node) {
        return node.wait_line == static_cast<int>(line) && node.wait_count == lines[line].size();
      });
    });
    if (!awaited) return false;
  }
  return true;
}

cudaGraphExecUpdateResult Compare(const GraphLines& before, const GraphLines& after) {
  // CUDA only updates graphs of the same shape.
  if (before.size() != after.size()) return cudaGraphExecUpdateErrorTopologyChanged;
  for (size_t line = 0; line < before.size(); ++line) {
    if (before[line].size() != after[line].size()) return cudaGraphExecUpdateErrorTopologyChanged;
    for (size_t i = 0; i < before[line].size(); ++i) {
      const GraphNode& a = before[line][i];
      const GraphNode& b = after[line][i];
      if (a.wait_line != b.wait_line || a.wait_count != b.wait_count) {
        return cudaGraphExecUpdateErrorTopologyChanged;
      }
      // Only parameters may differ, and the kind is none.
      if (a.work.kind != b.work.kind) return cudaGraphExecUpdateErrorNodeTypeChanged;
    }
  }
  return cudaGraphExecUpdateSuccess;
}

}  // namespace

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  if (const cudaError_t error = Enter("cudaStreamBeginCapture"); error != cudaSuccess) {
    return Return(error);
  }
  CUstream_st* stream = FindStream(handle);
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  // A stream can only be in one capture.
  if (stream->capture != nullptr) return Return(cudaErrorInvalidValue);
  auto capture = std::make_shared<Capture>();
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = stream;
  capture->lines.resize(1);
  // The first stream is the one at which the capture has to end.
  capture->streams = {stream};
  stream->capture = capture;
  stream->line = 0;
  Process& process = Process::Get();
  // The process knows all captures, since some calls are forbidden during any of them.
  std::lock_guard lock(process.mutex);
  process.captures.push_back(capture);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  *graph = nullptr;
  if (const cudaError_t error = Enter("cudaStreamEndCapture"); error != cudaSuccess) {
    return Return(error);
  }
  CUstream_st* stream = FindStream(handle);
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  // The pointer keeps the capture while its streams forget it.
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr) return Return(cudaErrorInvalidValue);
  if (capture->origin != stream) {
    capture->invalid = true;
    return Return(cudaErrorStreamCaptureUnmatched);
  }
  // CUDA binds a capture to its thread, unless it is relaxed.
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id()) {
    return Return(cudaErrorStreamCaptureWrongThread);
  }
  // The streams are free again even if the capture has failed.
  for (CUstream_st* part : capture->streams) part->capture = nullptr;
  if (capture->invalid) return Return(cudaErrorStreamCaptureInvalidated);
  // A stream that was never joined would be missing in the graph.
  if (!Joined(capture->lines)) return Return(cudaErrorStreamCaptureUnjoined);
  auto made = std::make_unique<CUgraph_st>();
  made->lines = std::make_shared<GraphLines>(std::move(capture->lines));
  *graph = made.get();
  Process& process = Process::Get();
  std::lock_guard lock(process.mutex);
  process.graphs[made.get()] = std::move(made);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  if (const cudaError_t error = Enter("cudaStreamIsCapturing"); error != cudaSuccess) {
    return Return(error);
  }
  CUstream_st* stream = FindStream(handle);
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  *status = stream->capture == nullptr ? cudaStreamCaptureStatusNone
            : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long flags) {
  if (const cudaError_t error = Enter("cudaGraphInstantiate"); error != cudaSuccess) {
    return Return(error);
  }
  Process& process = Process::Get();
  std::lock_guard lock(process.mutex);
  const auto found = process.graphs.find(graph);
  if (found == process.graphs.end() || flags != 0) return Return(cudaErrorInvalidValue);
  auto made = std::make_unique<CUgraphExec_st>();
  // The nodes are shared and never changed, so a graph may be instantiated again and again.
  made->lines = found->second->lines;
  *executable = made.get();
  process.executables[made.get()] = std::move(made);
  return cudaSuccess;
}

cudaError_t cudaGraphExecUpdate(cudaGraphExec_t executable, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo* result) {
  if (const cudaError_t error = Enter("cudaGraphExecUpdate"); error != cudaSuccess) {
    return Return(error);
  }
  Process& process = Process::Get();
  std::lock_guard lock(process.mutex);
  const auto found = process.graphs.find(graph);
  const auto target = process.executables.find(executable);
  if (found == process.graphs.end() || target == process.executables.end()) {
    return Return(cudaErrorInvalidValue);
  }
  *result = {Compare(*target->second->lines, *found->second->lines), nullptr, nullptr};
  // The executable stays as it was, so that the caller can make a new one.
  if (result->result != cudaGraphExecUpdateSuccess) return Return(cudaErrorGraphExecUpdateFailure);
  target->second->lines = found->second->lines;
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  if (const cudaError_t error = Enter("cudaGraphLaunch"); error != cudaSuccess)
    return Return(error);
  CUstream_st* stream = FindStream(handle);
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  // A graph within a graph is not supported.
  if (stream->capture != nullptr) return Return(cudaErrorStreamCaptureUnsupported);
  Process& process = Process::Get();
  tercio::emulation::Work work;
  {
    std::lock_guard lock(process.mutex);
    const auto found = process.executables.find(executable);
    if (found == process.executables.end()) return Return(cudaErrorInvalidValue);
    // Each launch has another seed, so that lines change places between launches.
    work = tercio::emulation::GraphWork(*found->second, process.settings.seed + stream->enqueued);
    ++process.graph_launches;
  }
  return Return(Submit(handle, std::move(work)));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  Process& process = Process::Get();
  std::lock_guard lock(process.mutex);
  return Return(process.graphs.erase(graph) == 1 ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  Process& process = Process::Get();
  std::lock_guard lock(process.mutex);
  return Return(process.executables.erase(executable) == 1 ? cudaSuccess : cudaErrorInvalidValue);
}

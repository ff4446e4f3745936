// CUDA's functions for streams and events.
#include "emulation/device.h"

using tercio::emulation::Capture;
using tercio::emulation::Device;
using tercio::emulation::Enter;
using tercio::emulation::FindEvent;
using tercio::emulation::FindStream;
using tercio::emulation::Process;
using tercio::emulation::Progress;
using tercio::emulation::Return;
using tercio::emulation::Submit;
using tercio::emulation::TheThread;
using tercio::emulation::WorkKind;

namespace {

constexpr int kGreatestPriority = -5;

// Tickets tell one recording of an event from the next.
bool Reached(CUevent_st::State& state, uint64_t ticket) {
  std::lock_guard lock(state.mutex);
  return state.completed >= ticket;
}

uint64_t LastRecord(CUevent_st::State& state) {
  std::lock_guard lock(state.mutex);
  return state.recorded;
}

// Refuses a call that is not allowed on a capturing stream.
cudaError_t RefuseCapture(CUstream_st& stream) {
  if (stream.capture == nullptr) return cudaSuccess;
  // CUDA invalidates the capture, not only the call.
  stream.capture->invalid = true;
  return cudaErrorStreamCaptureUnsupported;
}

// The stream waits for the captured event: it becomes part of the capture, if it is not yet.
cudaError_t WaitInCapture(CUstream_st& stream, const CUevent_st& event,
                          const std::shared_ptr<Capture>& capture) {
  if (capture->invalid) return cudaErrorStreamCaptureInvalidated;
  if (stream.capture == nullptr) {
    stream.capture = capture;
    stream.line = static_cast<int>(capture->lines.size());
    capture->lines.emplace_back();
    capture->streams.push_back(&stream);
  } else if (stream.capture != capture) {
    // Two captures cannot become one graph.
    capture->invalid = stream.capture->invalid = true;
    return cudaErrorStreamCaptureMerge;
  }
  // The wait itself does nothing: the node's place in its line is what counts.
  capture->lines[static_cast<size_t>(stream.line)].push_back(
      {{WorkKind::kEventWait, [] { return Progress::kDone; }}, event.line, event.count});
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = kGreatestPriority;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int) {
  if (const cudaError_t error = Enter("cudaStreamCreate"); error != cudaSuccess) {
    return Return(error);
  }
  // Streams that synchronize with the default stream would hide missing waits.
  if (flags != cudaStreamNonBlocking) {
    tercio::emulation::Misuse("only streams with cudaStreamNonBlocking are supported");
  }
  auto made = std::make_unique<CUstream_st>();
  made->device = TheThread().device;
  *stream = made.get();
  Process& process = Process::Get();
  Device& device = *process.CurrentDevice();
  // The device must know the stream before the handle can be used.
  {
    std::lock_guard lock(device.mutex);
    device.streams.insert(made.get());
  }
  std::lock_guard lock(process.mutex);
  process.streams[made.get()] = std::move(made);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

// The stream's remaining work is still done.
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  if (const cudaError_t error = Enter("cudaStreamDestroy"); error != cudaSuccess) {
    return Return(error);
  }
  CUstream_st* stream = FindStream(handle);
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  if (const cudaError_t error = RefuseCapture(*stream); error != cudaSuccess) return Return(error);
  // The order of locks is process, then device.
  Process& process = Process::Get();
  std::lock_guard process_lock(process.mutex);
  Device& device = process.device(stream->device);
  std::lock_guard lock(device.mutex);
  stream->destroyed = true;
  // The last work to finish removes a stream that still has some.
  if (stream->queue.empty()) device.streams.erase(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  if (const cudaError_t error = Enter("cudaStreamSynchronize"); error != cudaSuccess) {
    return Return(error);
  }
  CUstream_st* stream = FindStream(handle);
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  if (const cudaError_t error = RefuseCapture(*stream); error != cudaSuccess) return Return(error);
  Device& device = Process::Get().device(stream->device);
  // What is enqueued from now on is not waited for.
  uint64_t last = 0;
  {
    std::lock_guard lock(device.mutex);
    last = stream->enqueued;
  }
  return Return(device.RunUntil(stream, [&] { return stream->finished >= last; }));
}

// A caller that polls makes the work progress.
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  if (const cudaError_t error = Enter("cudaStreamQuery"); error != cudaSuccess)
    return Return(error);
  CUstream_st* stream = FindStream(handle);
  if (stream == nullptr) return Return(cudaErrorInvalidResourceHandle);
  if (const cudaError_t error = RefuseCapture(*stream); error != cudaSuccess) return Return(error);
  // A caller that polls and never waits would see nothing happen otherwise.
  Device& device = Process::Get().device(stream->device);
  device.RunOne(stream);
  if (device.fault() != cudaSuccess) return Return(device.fault());
  std::lock_guard lock(device.mutex);
  return Return(stream->queue.empty() ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event_handle, unsigned int flags) {
  if (const cudaError_t error = Enter("cudaStreamWaitEvent"); error != cudaSuccess) {
    return Return(error);
  }
  CUstream_st* stream = FindStream(handle);
  CUevent_st* event = FindEvent(event_handle);
  if (stream == nullptr || event == nullptr) return Return(cudaErrorInvalidResourceHandle);
  if (flags != 0) return Return(cudaErrorInvalidValue);
  // An event of a capture stands for a place in the graph, and not for a moment.
  if (event->captured) {
    const std::shared_ptr<Capture> capture = event->capture.lock();
    if (capture == nullptr) return Return(cudaErrorInvalidValue);
    return Return(WaitInCapture(*stream, *event, capture));
  }
  // Captured work cannot wait for what happens outside of the graph.
  if (stream->capture != nullptr) {
    stream->capture->invalid = true;
    return Return(cudaErrorStreamCaptureIsolation);
  }
  // A wait is for the recording that is the last one now.
  const uint64_t ticket = LastRecord(*event->state);
  const int device = stream->device;
  // Waiting is not bound to the current device.
  return Return(Process::Get().device(device).Enqueue(
      *stream, {WorkKind::kEventWait, [state = event->state, ticket, device] {
                  if (Reached(*state, ticket)) return Progress::kDone;
                  if (state->stream->device != device) tercio::emulation::WaitsForOtherDevice();
                  return Progress::kWaiting;
                }}));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* user_data) {
  if (const cudaError_t error = Enter("cudaLaunchHostFunc"); error != cudaSuccess) {
    return Return(error);
  }
  // The function runs on whichever thread runs the work, as CUDA promises no thread either.
  return Return(Submit(stream, {WorkKind::kHostFunction, [function, user_data] {
                                  function(user_data);
                                  return Progress::kDone;
                                }}));
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  if (const cudaError_t error = Enter("cudaEventCreate"); error != cudaSuccess)
    return Return(error);
  if ((flags & ~cudaEventDisableTiming) != 0) return Return(cudaErrorInvalidValue);
  auto made = std::make_unique<CUevent_st>();
  made->device = TheThread().device;
  made->timing = flags != cudaEventDisableTiming;
  *event = made.get();
  Process& process = Process::Get();
  std::lock_guard lock(process.mutex);
  process.events[made.get()] = std::move(made);
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (const cudaError_t error = Enter("cudaEventDestroy"); error != cudaSuccess) {
    return Return(error);
  }
  Process& process = Process::Get();
  std::lock_guard lock(process.mutex);
  return Return(process.events.erase(event) == 1 ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  if (const cudaError_t error = Enter("cudaEventRecord"); error != cudaSuccess)
    return Return(error);
  CUstream_st* stream = FindStream(stream_handle);
  CUevent_st* event = FindEvent(handle);
  // CUDA demands that an event and its stream belong to one device.
  if (stream == nullptr || event == nullptr || event->device != stream->device) {
    return Return(cudaErrorInvalidResourceHandle);
  }
  event->captured = stream->capture != nullptr;
  if (event->captured) {
    // The event may outlive the capture, so it does not keep it.
    event->capture = stream->capture;
    event->line = stream->line;
    event->count = stream->capture->lines[static_cast<size_t>(stream->line)].size();
    return cudaSuccess;
  }
  // The ticket is taken when the call is made, and reached when the work runs.
  uint64_t ticket = 0;
  {
    std::lock_guard lock(event->state->mutex);
    ticket = ++event->state->recorded;
    event->state->stream = stream;
  }
  return Return(Process::Get()
                    .device(stream->device)
                    .Enqueue(*stream, {WorkKind::kEventRecord, [state = event->state, ticket] {
                                         std::lock_guard lock(state->mutex);
                                         // Recordings on several streams may finish in any order,
                                         // and the latest one counts.
                                         state->completed = std::max(state->completed, ticket);
                                         const int device = state->stream->device;
                                         // The time is the device's virtual one, so that timings
                                         // repeat.
                                         state->microseconds =
                                             Process::Get().device(device).clock();
                                         return Progress::kDone;
                                       }}));
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  if (const cudaError_t error = Enter("cudaEventSynchronize"); error != cudaSuccess) {
    return Return(error);
  }
  CUevent_st* event = FindEvent(handle);
  if (event == nullptr) return Return(cudaErrorInvalidResourceHandle);
  if (event->captured) return Return(cudaErrorCapturedEvent);
  // The state outlives the event, which may be destroyed during the wait.
  const std::shared_ptr<CUevent_st::State> state = event->state;
  const uint64_t ticket = LastRecord(*state);
  // An event that was never recorded counts as reached, as in CUDA.
  if (ticket == 0) return cudaSuccess;
  Device& device = Process::Get().device(state->stream->device);
  return Return(device.RunUntil(state->stream, [&] { return Reached(*state, ticket); }));
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  if (const cudaError_t error = Enter("cudaEventQuery"); error != cudaSuccess) return Return(error);
  CUevent_st* event = FindEvent(handle);
  if (event == nullptr) return Return(cudaErrorInvalidResourceHandle);
  if (event->captured) return Return(cudaErrorCapturedEvent);
  const uint64_t ticket = LastRecord(*event->state);
  if (ticket == 0) return cudaSuccess;
  Device& device = Process::Get().device(event->state->stream->device);
  device.RunOne(event->state->stream);
  if (device.fault() != cudaSuccess) return Return(device.fault());
  return Return(Reached(*event->state, ticket) ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  if (const cudaError_t error = Enter("cudaEventElapsedTime"); error != cudaSuccess) {
    return Return(error);
  }
  CUevent_st* first = FindEvent(start);
  CUevent_st* second = FindEvent(end);
  if (first == nullptr || second == nullptr || !first->timing || !second->timing) {
    return Return(cudaErrorInvalidResourceHandle);
  }
  for (CUevent_st* event : {first, second}) {
    const uint64_t ticket = LastRecord(*event->state);
    // A time needs two recordings that have happened.
    if (ticket == 0) return Return(cudaErrorInvalidResourceHandle);
    if (!Reached(*event->state, ticket)) return Return(cudaErrorNotReady);
  }
  *milliseconds =
      static_cast<float>(second->state->microseconds - first->state->microseconds) * 1e-3f;
  return cudaSuccess;
}

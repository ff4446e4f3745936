// Captured streams and graphs.
#include <set>
#include <thread>

#include "emulation/control.h"
#include "gtest/gtest.h"
#include "kernels/cuda/primitives/launch.cuh"

namespace tercio::emulation {
namespace {

using kernels::cuda::Launch;

__global__ void AddTo(int* value, int amount) { *value += amount; }
__global__ void Multiply(int* value, int factor) { *value *= factor; }

class Graph : public ::testing::Test {
 protected:
  void SetUp() override {
    Configure({});
    stream_ = NewStream();
    ASSERT_EQ(cudaMalloc(&value_, sizeof(int)), cudaSuccess);
    ASSERT_EQ(cudaMemsetAsync(value_, 0, sizeof(int), stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }
  void TearDown() override { Configure({}); }

  static cudaStream_t NewStream() {
    cudaStream_t stream = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    return stream;
  }
  static cudaEvent_t NewEvent() {
    cudaEvent_t event = nullptr;
    EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    return event;
  }
  void Begin() {
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  }
  cudaGraph_t End() {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    return graph;
  }
  static cudaGraphExec_t Instantiate(cudaGraph_t graph) {
    cudaGraphExec_t executable = nullptr;
    EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    return executable;
  }
  int Value() {
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    int value = 0;
    EXPECT_EQ(cudaMemcpy(&value, value_, sizeof(value), cudaMemcpyDeviceToHost), cudaSuccess);
    return value;
  }

  cudaStream_t stream_ = nullptr;
  int* value_ = nullptr;
};

TEST_F(Graph, RunsWhenLaunchedAsOftenAsLaunched) {
  Begin();
  Launch(AddTo, {1, 1}, stream_, value_, 1);
  Launch(Multiply, {1, 1}, stream_, value_, 3);
  const cudaGraph_t graph = End();
  EXPECT_EQ(Value(), 0);
  const cudaGraphExec_t executable = Instantiate(graph);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(Value(), 39);
  EXPECT_EQ(cudaGraphLaunch(executable, stream_), cudaErrorInvalidValue);
}

TEST_F(Graph, EmptyGraphsAreAllowed) {
  Begin();
  EXPECT_EQ(cudaGraphLaunch(Instantiate(End()), stream_), cudaSuccess);
  EXPECT_EQ(Value(), 0);
}

TEST_F(Graph, OtherParametersReplaceThoseBefore) {
  Begin();
  Launch(AddTo, {1, 1}, stream_, value_, 1);
  const cudaGraphExec_t executable = Instantiate(End());
  Begin();
  Launch(AddTo, {1, 1}, stream_, value_, 10);
  cudaGraphExecUpdateResultInfo result;
  EXPECT_EQ(cudaGraphExecUpdate(executable, End(), &result), cudaSuccess);
  EXPECT_EQ(result.result, cudaGraphExecUpdateSuccess);
  EXPECT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
  EXPECT_EQ(Value(), 10);
  Begin();
  Launch(AddTo, {1, 1}, stream_, value_, 10);
  Launch(AddTo, {1, 1}, stream_, value_, 10);
  EXPECT_EQ(cudaGraphExecUpdate(executable, End(), &result), cudaErrorGraphExecUpdateFailure);
  EXPECT_EQ(result.result, cudaGraphExecUpdateErrorTopologyChanged);
  Begin();
  EXPECT_EQ(cudaMemsetAsync(value_, 0, 4, stream_), cudaSuccess);
  EXPECT_EQ(cudaGraphExecUpdate(executable, End(), &result), cudaErrorGraphExecUpdateFailure);
  EXPECT_EQ(result.result, cudaGraphExecUpdateErrorNodeTypeChanged);
}

// Two streams in one graph; what does not wait comes in any order.
TEST_F(Graph, StreamsForkAndJoin) {
  const auto results = [&](bool wait) {
    std::set<int> seen;
    const cudaStream_t other = NewStream();
    const cudaEvent_t fork = NewEvent(), join = NewEvent(), done = NewEvent();
    Begin();
    EXPECT_EQ(cudaEventRecord(fork, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(other, fork, 0), cudaSuccess);
    Launch(AddTo, {1, 1}, other, value_, 1);
    EXPECT_EQ(cudaEventRecord(join, other), cudaSuccess);
    if (wait) {
      EXPECT_EQ(cudaStreamWaitEvent(stream_, join, 0), cudaSuccess);
    }
    Launch(Multiply, {1, 1}, stream_, value_, 5);
    EXPECT_EQ(cudaStreamWaitEvent(stream_, join, 0), cudaSuccess);
    const cudaGraphExec_t executable = Instantiate(End());
    EXPECT_EQ(cudaEventQuery(fork), cudaErrorCapturedEvent);
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(cudaMemsetAsync(value_, 0, 4, stream_), cudaSuccess);
      EXPECT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
      EXPECT_EQ(cudaEventRecord(done, stream_), cudaSuccess);
      EXPECT_EQ(cudaEventSynchronize(done), cudaSuccess);
      seen.insert(Value());
    }
    return seen;
  };
  EXPECT_EQ(results(true), (std::set<int>{5}));
  EXPECT_EQ(results(false), (std::set<int>{1, 5}));
}

TEST_F(Graph, WhatMayNotBeCapturedIsRefused) {
  const cudaStream_t other = NewStream();
  const cudaEvent_t outside = NewEvent(), inside = NewEvent();
  EXPECT_EQ(cudaEventRecord(outside, other), cudaSuccess);
  cudaGraph_t graph = nullptr;
  const auto expect_spoilt = [&](cudaError_t end) {
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), end);
    EXPECT_EQ(graph, nullptr);
  };
  Begin();
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorStreamCaptureUnsupported);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  EXPECT_EQ(cudaStreamIsCapturing(stream_, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated);
  expect_spoilt(cudaErrorStreamCaptureInvalidated);
  Begin();
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 4), cudaErrorStreamCaptureUnsupported);
  expect_spoilt(cudaErrorStreamCaptureInvalidated);
  Begin();
  EXPECT_EQ(cudaStreamWaitEvent(stream_, outside, 0), cudaErrorStreamCaptureIsolation);
  expect_spoilt(cudaErrorStreamCaptureInvalidated);
  Begin();
  EXPECT_EQ(cudaEventRecord(inside, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(other, inside, 0), cudaSuccess);
  Launch(AddTo, {1, 1}, other, value_, 1);
  EXPECT_EQ(cudaStreamEndCapture(other, &graph), cudaErrorStreamCaptureUnmatched);
  expect_spoilt(cudaErrorStreamCaptureInvalidated);
  Begin();
  EXPECT_EQ(cudaEventRecord(inside, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(other, inside, 0), cudaSuccess);
  Launch(AddTo, {1, 1}, other, value_, 1);
  expect_spoilt(cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(cudaStreamWaitEvent(other, inside, 0), cudaErrorInvalidValue);
  EXPECT_EQ(Value(), 0);
}

TEST_F(Graph, OtherThreadsAreNotDisturbed) {
  Begin();
  std::thread([] {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, 4), cudaSuccess);
  }).join();
  Launch(AddTo, {1, 1}, stream_, value_, 2);
  EXPECT_EQ(cudaGraphLaunch(Instantiate(End()), stream_), cudaSuccess);
  EXPECT_EQ(Value(), 2);
}

// A library's work that waits takes part in graphs, and an execution waits for the one before it.
TEST_F(Graph, WorkThatPollsIsRepeated) {
  int calls = 0;
  Begin();
  EXPECT_EQ(EnqueueWork(stream_, "poll", [&] { return ++calls % 3 == 0; }), cudaSuccess);
  Launch(AddTo, {1, 1}, stream_, value_, 1);
  const cudaGraphExec_t executable = Instantiate(End());
  const cudaStream_t other = NewStream();
  EXPECT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(executable, other), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
  EXPECT_EQ(Value(), 2);
  EXPECT_EQ(calls, 6);
}

TEST_F(Graph, FaultsHappenInGraphs) {
  Begin();
  Launch(AddTo, {1, 1}, stream_, value_, 1);
  const cudaGraphExec_t executable = Instantiate(End());
  InjectFault({.error = cudaErrorLaunchFailure, .after = 1});
  EXPECT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorLaunchFailure);
}

}  // namespace
}  // namespace tercio::emulation

// Streams on which everything has run when the call returns, events, and graphs: a list of what was put on a stream.
#include <cuda_runtime_api.h>

#include <chrono>
#include <utility>
#include <vector>

#include "runtime.hpp"

namespace emulator = tessera::emulator;
using emulator::result;

using Steps = std::vector<std::function<cudaError_t()>>;

struct CUstream_st {
  bool captures = false;
  Steps steps;
};
struct CUevent_st {
  std::chrono::steady_clock::time_point time;
};
struct CUgraph_st {
  Steps steps;
};
struct CUgraphExec_st {
  Steps steps;
};

namespace {
thread_local int captured_streams = 0;
}

namespace tessera::emulator {

cudaError_t submit(cudaStream_t stream, std::function<cudaError_t()> work) {
  if (stream == nullptr || !stream->captures) return work();
  stream->steps.push_back(std::move(work));
  return cudaSuccess;
}

cudaError_t refuse_while_capturing() { return captured_streams > 0 ? cudaErrorStreamCaptureUnsupported : cudaSuccess; }

}  // namespace tessera::emulator

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return cudaStreamCreate(stream); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return result(emulator::refuse_while_capturing()); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st{};
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event->time = std::chrono::steady_clock::now();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return result(emulator::refuse_while_capturing()); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - begin->time).count();
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (stream == nullptr || stream->captures) return result(cudaErrorIllegalState);
  stream->captures = true;
  ++captured_streams;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (stream == nullptr || !stream->captures) return result(cudaErrorIllegalState);
  stream->captures = false;
  --captured_streams;
  *graph = new CUgraph_st{std::exchange(stream->steps, {})};
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new CUgraphExec_st{graph->steps};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t) {
  for (const auto& step : executable->steps) {
    if (const cudaError_t error = step()) return error;
  }
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

// tessera_check_metadata for CUDA: the arrays of lengths and pages copied to the host, then the CPU's rules. Blocking,
// and the only call of the library that waits for a stream.
#include <cstring>
#include <new>
#include <vector>

#include "device.hpp"
#include "kernel_entry.hpp"

namespace tessera::core {
namespace {

struct Copied {
  std::vector<int32_t> cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, page_table, leftpad, batch_idx, cu_seqlens_new;
};

class Fetch {
 public:
  explicit Fetch(cudaStream_t stream) : stream_(stream) {}
  // Points *pointer at a host copy of `count` elements of it.
  void operator()(const int32_t** pointer, int64_t count, std::vector<int32_t>* copy) {
    if (*pointer == nullptr || count <= 0 || error_ != cudaSuccess) return;
    copy->resize(static_cast<size_t>(count));
    error_ = cudaMemcpyAsync(copy->data(), *pointer, sizeof(int32_t) * copy->size(), cudaMemcpyDeviceToHost, stream_);
    *pointer = copy->data();
  }
  cudaError_t finish() { return error_ == cudaSuccess ? cudaStreamSynchronize(stream_) : error_; }

 private:
  cudaStream_t stream_;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace

int check_metadata_cuda(const Plan& plan, const tessera_tensors& tensors, const tessera_exec* exec,
                        tessera_status* status) {
  const Problem& p = plan.problem;
  try {
    cuda::DeviceScope scope(p.device);
    if (scope.error() != cudaSuccess)
      return scope.finish(scope.error(), "check_metadata: making the device current", status);
    Fetch fetch(exec != nullptr ? static_cast<cudaStream_t>(exec->cuda_stream) : nullptr);
    tessera_tensors host = tensors;
    Copied copied;
    const int64_t pages = p.batch > 0 ? (p.batch - 1) * p.page_table_stride + p.max_pages : 0;
    fetch(&host.cu_seqlens_q, p.layout_q == TESSERA_PACKED ? p.batch + 1 : 0, &copied.cu_seqlens_q);
    fetch(&host.cu_seqlens_k, p.layout_kv == TESSERA_PACKED ? p.batch + 1 : 0, &copied.cu_seqlens_k);
    fetch(&host.seqused_q, p.has(TESSERA_FLAG_SEQUSED_Q) ? p.batch : 0, &copied.seqused_q);
    fetch(&host.seqused_k, p.has(TESSERA_FLAG_SEQUSED_K) ? p.batch : 0, &copied.seqused_k);
    fetch(&host.page_table, p.layout_kv == TESSERA_PAGED ? pages : 0, &copied.page_table);
    fetch(&host.leftpad, p.has(TESSERA_FLAG_LEFTPAD) ? p.batch : 0, &copied.leftpad);
    fetch(&host.batch_idx, p.has(TESSERA_FLAG_BATCH_IDX) ? p.batch : 0, &copied.batch_idx);
    tessera_append_args append{};
    if (tensors.append != nullptr) {
      append = *tensors.append;
      fetch(&append.cu_seqlens_new, p.batch + 1, &copied.cu_seqlens_new);
      host.append = &append;
    }
    if (const int code = scope.finish(fetch.finish(), "check_metadata: copying lengths from the device", status))
      return code;
    return check_metadata_cpu(p, host, status);
  } catch (const std::bad_alloc&) {
    return fail(status, TESSERA_OUT_OF_MEMORY,
                "check_metadata: not enough host memory for the lengths of %lld sequences",
                static_cast<long long>(p.batch));
  }
}

}  // namespace tessera::core

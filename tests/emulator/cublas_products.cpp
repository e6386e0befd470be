// cublas_v2.h of this folder: plain loops on the host, put on a stream like any other work.
#include <cublas_v2.h>

#include <vector>

#include "device_memory.hpp"
#include "half.hpp"
#include "runtime.hpp"

namespace emulator = tessera::emulator;

struct cublasContext {
  cudaStream_t stream = nullptr;
};

namespace {

struct Factor {
  const uint16_t* data;
  bool transposed;
  int rows, columns, leading;  // of op(factor); leading of what is stored
  size_t stored_bytes() const {
    const int inner = transposed ? columns : rows, outer = transposed ? rows : columns;
    return 2 * (static_cast<size_t>(outer - 1) * static_cast<size_t>(leading) + static_cast<size_t>(inner));
  }
  float at(int row, int column) const {
    const int64_t index = transposed ? int64_t{row} * leading + column : int64_t{column} * leading + row;
    return emulator::from_f16(data[index]);
  }
};

cudaError_t multiply(const Factor& a, const Factor& b, float* c, int ldc) {
  const size_t c_bytes =
      4 * (static_cast<size_t>(b.columns - 1) * static_cast<size_t>(ldc) + static_cast<size_t>(a.rows));
  if (!emulator::owns(a.data, a.stored_bytes()) || !emulator::owns(b.data, b.stored_bytes()) ||
      !emulator::owns(c, c_bytes))
    return emulator::result(cudaErrorInvalidValue);
  std::vector<float> column(static_cast<size_t>(a.columns));
  for (int n = 0; n < b.columns; ++n) {
    for (int k = 0; k < a.columns; ++k) column[static_cast<size_t>(k)] = b.at(k, n);
    for (int m = 0; m < a.rows; ++m) {
      float sum = 0.0f;
      for (int k = 0; k < a.columns; ++k) sum += a.at(m, k) * column[static_cast<size_t>(k)];
      c[int64_t{n} * ldc + m] = sum;
    }
  }
  return cudaSuccess;
}

}  // namespace

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace(cublasHandle_t, void* workspace, size_t bytes) {
  return emulator::owns(workspace, bytes) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n,
                            int k, const void* alpha, const void* a, cudaDataType_t a_type, int lda, const void* b,
                            cudaDataType_t b_type, int ldb, const void* beta, void* c, cudaDataType_t c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t) {
  const bool served = a_type == CUDA_R_16F && b_type == CUDA_R_16F && c_type == CUDA_R_32F &&
                      compute == CUBLAS_COMPUTE_32F && *static_cast<const float*>(alpha) == 1.0f &&
                      *static_cast<const float*>(beta) == 0.0f;
  if (!served) return CUBLAS_STATUS_NOT_SUPPORTED;
  const Factor left{static_cast<const uint16_t*>(a), transa == CUBLAS_OP_T, m, k, lda};
  const Factor right{static_cast<const uint16_t*>(b), transb == CUBLAS_OP_T, k, n, ldb};
  const bool wide_enough = lda >= (left.transposed ? k : m) && ldb >= (right.transposed ? n : k) && ldc >= m;
  if (m < 1 || n < 1 || k < 1 || !wide_enough) return CUBLAS_STATUS_INVALID_VALUE;
  const cudaError_t error =
      emulator::submit(handle->stream, [=] { return multiply(left, right, static_cast<float*>(c), ldc); });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

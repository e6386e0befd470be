// cuBLAS for cuda.textbook: loaded at run time, one handle a device. Products of row-major matrices, many at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "tessera/tessera.h"

namespace tessera::baselines {

// Whether libcublas.so.13 could be loaded.
bool have_cublas();

// Makes the device's handle, once. A status code.
int prepare_cublas(int device, tessera_status* status);

// Row-major matrices, one a product of a batch, of 16-bit elements; a result also in float32. `row_stride` and `stride`
// (from one product's matrix to the next one's, 0: all share it) in elements.
struct Factor {
  const void* data;
  int64_t stride, row_stride;
  bool transposed;  // what is stored is the transposed factor
};
struct Result {
  void* data;
  int64_t stride, row_stride;
  int32_t dtype;
};

// out [rows, columns] = alpha * left [rows, inner] * right [inner, columns], `count` times.
struct Product {
  Factor left, right;
  Result out;
  int64_t rows, columns, inner, count;
  int32_t dtype;  // of left and right
  float alpha = 1.0f;
};

// The handle of a device for one run: cuBLAS takes one caller a handle at a time.
class CublasRun {
 public:
  // After prepare_cublas(device).
  CublasRun(int device, cudaStream_t stream);
  ~CublasRun();
  CublasRun(const CublasRun&) = delete;
  CublasRun& operator=(const CublasRun&) = delete;
  // Sums in float32. A status code.
  int multiply(const Product& product, tessera_status* status) const;

 private:
  void* handle_ = nullptr;
};

}  // namespace tessera::baselines

// Memory and products of the CUDA decoder: arrays that own what they hold, errors as Failure, cuBLAS on one stream.
#pragma once

#include <cublas_v2.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <string>
#include <utility>
#include <vector>

#include "decoder.hpp"

inline void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) throw Failure(4, std::string(call) + ": " + cudaGetErrorString(error));
}
inline void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Failure(4, std::string(call) + ": cuBLAS status " + std::to_string(status));
}

// `count` elements of device memory, all bytes 0xff to begin with: NaN as a float of any size.
template <class T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(size_t count) : count_(count) {
    if (count == 0) return;
    check(cudaMalloc(reinterpret_cast<void**>(&data_), bytes()), "cudaMalloc");
    check(cudaMemset(data_, 0xff, bytes()), "cudaMemset");
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    check(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  DeviceArray(DeviceArray&& other) noexcept { *this = std::move(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_), std::swap(count_, other.count_);
    return *this;
  }
  ~DeviceArray() { cudaFree(data_); }
  T* data() const { return data_; }
  size_t size() const { return count_; }
  size_t bytes() const { return count_ * sizeof(T); }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

// Weights of a product in f16, [outputs, inputs], so that both factors lie along the sum; the bias in float32.
struct DeviceLinear {
  int64_t inputs = 0, outputs = 0;
  DeviceArray<__half> weight;
  DeviceArray<float> bias;
};
struct DeviceNorm {
  DeviceArray<float> gain, bias;
};
DeviceArray<__half> upload_half(const std::vector<float>& values);
// Several of the same inputs are one product, their outputs side by side.
DeviceLinear upload(const std::vector<const Linear*>& parts);
DeviceNorm upload(const Norm& norm);

class Products {
 public:
  explicit Products(cudaStream_t stream);
  ~Products() { cublasDestroy(handle_); }
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;
  // result [count, outputs] = rows [count, inputs] times the weights, without the bias.
  void apply(const __half* weight, int64_t inputs, int64_t outputs, const __half* rows, int64_t count,
             float* result) const;
  void apply(const DeviceLinear& linear, const __half* rows, int64_t count, float* result) const {
    apply(linear.weight.data(), linear.inputs, linear.outputs, rows, count, result);
  }

 private:
  cublasHandle_t handle_ = nullptr;
  DeviceArray<char> workspace_;
};

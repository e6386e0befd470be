// What the tests of the Hopper encodings share. Included by CUDA sources only.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <sstream>
#include <type_traits>

#include "gpu_support.hpp"

namespace tessera::tests {

// Elements that host and device both reach; every byte is 0xff at first, which is NaN in every float type.
template <class T>
class Managed {
 public:
  explicit Managed(size_t size) : size_(size) {
    if (cudaMallocManaged(&data_, size * sizeof(T)) != cudaSuccess) throw std::bad_alloc();
    std::fill_n(reinterpret_cast<unsigned char*>(data_), size * sizeof(T), 0xff);
  }
  ~Managed() { cudaFree(data_); }
  Managed(const Managed&) = delete;
  Managed& operator=(const Managed&) = delete;
  T* data() const { return data_; }
  size_t size() const { return size_; }
  T& operator[](size_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
  size_t size_;
};

// What the launch before it left, after all that the device has to do.
inline void expect_finished() {
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  const cudaError_t error = cudaDeviceSynchronize();
  ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
}

// Runs a kernel to its end.
template <class... Parameters>
void launch(void (*kernel)(Parameters...), uint32_t blocks, uint32_t threads, int shared_bytes,
            std::type_identity_t<Parameters>... values) {
  void* arguments[] = {&values...};
  ASSERT_EQ(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes), cudaSuccess);
  ASSERT_EQ(
      cudaLaunchKernel(kernel, dim3(blocks), dim3(threads), arguments, static_cast<size_t>(shared_bytes), nullptr),
      cudaSuccess);
  expect_finished();
}

// Counts what differs and says where the first difference is.
class Differences {
 public:
  template <class T>
  void compare(T found, T expected, int64_t row, int64_t column) {
    if (found == expected) return;
    if (count_++ == 0) {
      first_ << "row " << row << ", column " << column << ": " << found << " instead of " << expected;
    }
  }
  ~Differences() { EXPECT_EQ(count_, 0) << "the first at " << first_.str(); }

 private:
  int64_t count_ = 0;
  std::ostringstream first_;
};

}  // namespace tessera::tests

// First line of a test of what only Hopper has: skips with the reason elsewhere.
#define TESSERA_NEEDS_HOPPER() \
  TESSERA_NEEDS_GPU();         \
  if (!::tessera::tests::runs_here("cuda.sm90.forward")) GTEST_SKIP() << "device 0 is not of compute capability 9.0"

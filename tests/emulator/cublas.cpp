// The products of cuda.textbook where there is no cuBLAS: plain loops, sums in float32 as cuBLAS was asked for.
#include <utility>

#include "baselines/cuda_blas.hpp"
#include "half.hpp"
#include "runtime.hpp"

namespace tessera::baselines {
namespace {

float load(const void* data, int32_t dtype, int64_t at) {
  const uint16_t bits = static_cast<const uint16_t*>(data)[at];
  return dtype == TESSERA_BF16 ? emulator::from_bf16(bits) : emulator::from_f16(bits);
}

void store(const Result& out, int64_t at, float value) {
  if (out.dtype == TESSERA_F32) {
    static_cast<float*>(out.data)[at] = value;
  } else {
    static_cast<uint16_t*>(out.data)[at] =
        out.dtype == TESSERA_BF16 ? emulator::to_bf16(value) : emulator::to_f16(value);
  }
}

int64_t element(const Factor& factor, int64_t number, int64_t row, int64_t column) {
  if (factor.transposed) std::swap(row, column);
  return number * factor.stride + row * factor.row_stride + column;
}

void multiply_all(const Product& p) {
  for (int64_t i = 0; i < p.count * p.rows * p.columns; ++i) {
    const int64_t number = i / (p.rows * p.columns), row = i / p.columns % p.rows, column = i % p.columns;
    float sum = 0.0f;
    for (int64_t k = 0; k < p.inner; ++k) {
      sum += load(p.left.data, p.dtype, element(p.left, number, row, k)) *
             load(p.right.data, p.dtype, element(p.right, number, k, column));
    }
    store(p.out, number * p.out.stride + row * p.out.row_stride + column, p.alpha * sum);
  }
}

}  // namespace

bool have_cublas() { return true; }
int prepare_cublas(int, tessera_status*) { return TESSERA_OK; }

CublasRun::CublasRun(int, cudaStream_t stream) : handle_(stream) {}
CublasRun::~CublasRun() = default;

int CublasRun::multiply(const Product& product, tessera_status*) const {
  const cudaError_t error = emulator::submit(static_cast<cudaStream_t>(handle_), [product] {
    multiply_all(product);
    return cudaSuccess;
  });
  return error == cudaSuccess ? TESSERA_OK : TESSERA_DEVICE_ERROR;
}

}  // namespace tessera::baselines

#include "cuda_blas.hpp"

#include <cublas_v2.h>
#include <dlfcn.h>

#include <array>
#include <mutex>

#include "status.hpp"

namespace tessera::baselines {
namespace {

constexpr const char* kLibrary = "libcublas.so.13";
constexpr int kMaxDevices = 64;

// cublasGemmStridedBatchedEx, which the header overloads.
using Gemm = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*,
                                const void*, cudaDataType, int, long long, const void*, cudaDataType, int, long long,
                                const void*, void*, cudaDataType, int, long long, int, cublasComputeType_t,
                                cublasGemmAlgo_t);

struct Cublas {
  decltype(&cublasCreate_v2) create = nullptr;
  decltype(&cublasSetStream_v2) set_stream = nullptr;
  Gemm gemm = nullptr;
  std::array<cublasHandle_t, kMaxDevices> handles{};
  std::mutex mutex;
};

// Null where the library or a symbol is missing.
Cublas* cublas() {
  static Cublas* const loaded = []() -> Cublas* {
    void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return nullptr;
    static Cublas functions;
    functions.create = reinterpret_cast<decltype(&cublasCreate_v2)>(dlsym(library, "cublasCreate_v2"));
    functions.set_stream = reinterpret_cast<decltype(&cublasSetStream_v2)>(dlsym(library, "cublasSetStream_v2"));
    functions.gemm = reinterpret_cast<Gemm>(dlsym(library, "cublasGemmStridedBatchedEx"));
    return functions.create != nullptr && functions.set_stream != nullptr && functions.gemm != nullptr ? &functions
                                                                                                       : nullptr;
  }();
  return loaded;
}

cudaDataType type_of(int32_t dtype) {
  return dtype == TESSERA_F32 ? CUDA_R_32F : dtype == TESSERA_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

// The stride of a single row is never used, but cuBLAS wants one that holds the row.
int leading(int64_t row_stride, int64_t row) { return static_cast<int>(row_stride > row ? row_stride : row); }

}  // namespace

bool have_cublas() { return cublas() != nullptr; }

int prepare_cublas(int device, tessera_status* status) {
  Cublas& blas = *cublas();
  if (device >= kMaxDevices)
    return core::fail(status, TESSERA_UNSUPPORTED, "device is %d; expected below %d", device, kMaxDevices);
  const std::lock_guard<std::mutex> lock(blas.mutex);
  cublasHandle_t& handle = blas.handles[static_cast<size_t>(device)];
  int previous = 0;
  if (handle != nullptr) return TESSERA_OK;
  if (cudaGetDevice(&previous) != cudaSuccess || cudaSetDevice(device) != cudaSuccess) {
    return core::fail(status, TESSERA_DEVICE_ERROR, "cuda.textbook: device %d cannot be made current", device);
  }
  const cublasStatus_t code = blas.create(&handle);
  cudaSetDevice(previous);
  if (code == CUBLAS_STATUS_SUCCESS) return TESSERA_OK;
  handle = nullptr;
  return core::fail(status, TESSERA_DEVICE_ERROR, "cuda.textbook: cublasCreate returned %d", static_cast<int>(code));
}

CublasRun::CublasRun(int device, cudaStream_t stream) {
  cublas()->mutex.lock();
  handle_ = cublas()->handles[static_cast<size_t>(device)];
  cublas()->set_stream(static_cast<cublasHandle_t>(handle_), stream);
}

CublasRun::~CublasRun() { cublas()->mutex.unlock(); }

// cuBLAS counts columns first, so it is asked for out^T = right^T left^T.
int CublasRun::multiply(const Product& p, tessera_status* status) const {
  const float zero = 0.0f;
  const cudaDataType input = type_of(p.dtype);
  const auto operation = [](const Factor& factor) { return factor.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
  const int left_ld = leading(p.left.row_stride, p.left.transposed ? p.rows : p.inner);
  const int right_ld = leading(p.right.row_stride, p.right.transposed ? p.inner : p.columns);
  const cublasStatus_t code =
      cublas()->gemm(static_cast<cublasHandle_t>(handle_), operation(p.right), operation(p.left),
                     static_cast<int>(p.columns), static_cast<int>(p.rows), static_cast<int>(p.inner), &p.alpha,
                     p.right.data, input, right_ld, p.right.stride, p.left.data, input, left_ld, p.left.stride, &zero,
                     p.out.data, type_of(p.out.dtype), leading(p.out.row_stride, p.columns), p.out.stride,
                     static_cast<int>(p.count), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  if (code == CUBLAS_STATUS_SUCCESS) return TESSERA_OK;
  return core::fail(status, TESSERA_DEVICE_ERROR, "cuda.textbook: cublasGemmStridedBatchedEx returned %d",
                    static_cast<int>(code));
}

}  // namespace tessera::baselines

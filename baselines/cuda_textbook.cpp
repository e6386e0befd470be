// Host side of cuda.textbook: cuBLAS loaded at run time, one handle a device, two batched products around the softmax.
#include "cuda_textbook.hpp"

#include <cublas_v2.h>
#include <dlfcn.h>

#include <array>
#include <mutex>

#include "status.hpp"

namespace tessera::baselines {
namespace {

using core::Problem;

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

int64_t pairs(const Problem& p) { return p.batch * p.heads_q * p.seqlen_q * p.seqlen_k; }
int64_t align_256(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// Row-major operands as the columns of cuBLAS: C^T = A^T B^T, so the right factor comes first.
struct Product {
  const void *first, *second;
  void* out;
  int64_t first_stride, second_stride, out_stride;  // between the products of a batch
  int m, n, k, first_ld, second_ld, out_ld, count;
  cublasOperation_t first_op;
  cudaDataType input, output;
};

int multiply(Cublas& blas, cublasHandle_t handle, const Product& p, tessera_status* status) {
  const float one = 1.0f, zero = 0.0f;
  const cublasStatus_t code =
      blas.gemm(handle, p.first_op, CUBLAS_OP_N, p.m, p.n, p.k, &one, p.first, p.input, p.first_ld, p.first_stride,
                p.second, p.input, p.second_ld, p.second_stride, &zero, p.out, p.output, p.out_ld, p.out_stride,
                p.count, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  if (code == CUBLAS_STATUS_SUCCESS) return TESSERA_OK;
  return core::fail(status, TESSERA_DEVICE_ERROR, "cuda.textbook: cublasGemmStridedBatchedEx returned %d",
                    static_cast<int>(code));
}

const std::byte* at(const void* base, int64_t elements) { return static_cast<const std::byte*>(base) + 2 * elements; }

// The stride of a single row is never used, but cuBLAS wants one that holds the row.
int leading(const core::Operand& operand, int32_t dim) {
  return operand.row_stride > dim ? static_cast<int>(operand.row_stride) : dim;
}

// The products of one batch row and key/value head (group 1: of all heads at once).
struct Slice {
  int64_t batch, head_kv;
  int count;
};

int multiply_scores(Cublas& blas, cublasHandle_t handle, const Problem& p, const core::RunContext& c, const Slice& s) {
  const cudaDataType type = p.q.dtype == TESSERA_BF16 ? CUDA_R_16BF : CUDA_R_16F;
  const int64_t head = s.head_kv * p.group, matrix = p.seqlen_q * p.seqlen_k;
  const Product product{at(c.tensors->k, s.batch * p.k.batch_stride + s.head_kv * p.k.head_stride),
                        at(c.tensors->q, s.batch * p.q.batch_stride + head * p.q.head_stride),
                        reinterpret_cast<float*>(c.workspace) + (s.batch * p.heads_q + head) * matrix,
                        p.group == 1 ? p.k.head_stride : 0,
                        p.q.head_stride,
                        matrix,
                        static_cast<int>(p.seqlen_k),
                        static_cast<int>(p.seqlen_q),
                        p.head_dim_qk,
                        leading(p.k, p.head_dim_qk),
                        leading(p.q, p.head_dim_qk),
                        static_cast<int>(p.seqlen_k),
                        s.count,
                        CUBLAS_OP_T,
                        type,
                        CUDA_R_32F};
  return multiply(blas, handle, product, c.status);
}

int multiply_values(Cublas& blas, cublasHandle_t handle, const Problem& p, const core::RunContext& c, const Slice& s) {
  const cudaDataType type = p.q.dtype == TESSERA_BF16 ? CUDA_R_16BF : CUDA_R_16F;
  const int64_t head = s.head_kv * p.group, matrix = p.seqlen_q * p.seqlen_k;
  const int64_t o_offset = s.batch * p.o.batch_stride + head * p.o.head_stride;
  const bool wide = p.o.dtype == TESSERA_F32;
  const Product product{at(c.tensors->v, s.batch * p.v.batch_stride + s.head_kv * p.v.head_stride),
                        at(c.workspace + align_256(4 * pairs(p)), (s.batch * p.heads_q + head) * matrix),
                        static_cast<std::byte*>(c.tensors->o) + (wide ? 4 : 2) * o_offset,
                        p.group == 1 ? p.v.head_stride : 0,
                        matrix,
                        p.o.head_stride,
                        p.head_dim_v,
                        static_cast<int>(p.seqlen_q),
                        static_cast<int>(p.seqlen_k),
                        leading(p.v, p.head_dim_v),
                        static_cast<int>(p.seqlen_k),
                        leading(p.o, p.head_dim_v),
                        s.count,
                        CUBLAS_OP_N,
                        type,
                        wide ? CUDA_R_32F : type};
  return multiply(blas, handle, product, c.status);
}

template <class Multiply>
int for_slices(const Problem& p, Multiply&& multiply_slice) {
  const int64_t slices = p.group == 1 ? 1 : p.heads_kv;
  for (int64_t batch = 0; batch < p.batch; ++batch) {
    for (int64_t head_kv = 0; head_kv < slices; ++head_kv) {
      if (const int code = multiply_slice(Slice{batch, head_kv, p.group == 1 ? p.heads_q : p.group})) return code;
    }
  }
  return TESSERA_OK;
}

SoftmaxParams softmax_params(const Problem& p, const core::RunContext& c) {
  SoftmaxParams out{};
  out.scores = reinterpret_cast<const float*>(c.workspace);
  out.probs = c.workspace + align_256(4 * pairs(p));
  out.lse = p.has(TESSERA_FLAG_LSE) ? static_cast<float*>(c.tensors->lse) : nullptr;
  out.alibi_slopes = p.has(TESSERA_FLAG_ALIBI) ? c.tensors->alibi_slopes : nullptr;
  out.sinks = p.has(TESSERA_FLAG_SINKS) ? c.tensors->sinks : nullptr;
  out.rows = p.batch * p.heads_q * p.seqlen_q;
  out.seqlen_q = p.seqlen_q;
  out.seqlen_k = p.seqlen_k;
  out.alibi_stride = p.alibi_stride;
  out.left = p.left;
  out.right = p.right;
  out.heads_q = p.heads_q;
  out.scale = static_cast<float>(p.scale);
  out.softcap = static_cast<float>(p.softcap);
  out.top_left = p.top_left;
  out.bf16 = p.q.dtype == TESSERA_BF16;
  return out;
}

}  // namespace

core::Refusal refuse_cuda_textbook(const Problem& p, const core::DeviceInfo& device) {
  if (device.is_cpu) return {"runs on CUDA devices only"};
  if (cublas() == nullptr) return {"needs libcublas.so.13, which could not be loaded"};
  if (p.pass != TESSERA_FORWARD) return {"computes the forward pass only"};
  if (p.q.dtype != TESSERA_F16 && p.q.dtype != TESSERA_BF16) return {"takes f16 and bf16", "q.dtype", p.q.dtype};
  if (p.k.dtype != p.q.dtype || p.v.dtype != p.q.dtype) return {"takes k and v of q's dtype", "k.dtype", p.k.dtype};
  if (p.o.dtype != p.q.dtype && p.o.dtype != TESSERA_F32) return {"writes o in q's dtype or f32", "o.dtype", p.o.dtype};
  if (p.layout_q != TESSERA_DENSE || p.layout_kv != TESSERA_DENSE)
    return {"takes dense layouts only", "layout_kv", p.layout_kv};
  constexpr uint64_t kTaken = TESSERA_FLAG_LSE | TESSERA_FLAG_ALIBI | TESSERA_FLAG_SINKS | TESSERA_FLAG_DETERMINISTIC |
                              TESSERA_FLAG_BATCH_INVARIANT;
  if ((p.flags & ~kTaken) != 0) return {"takes neither used lengths, cache rows, left padding nor bias"};
  if (p.batch < 1 || p.seqlen_q < 1 || p.seqlen_k < 1) return {"takes at least one query and one key"};
  if (p.num_splits > 1) return {"does not split keys", "num_splits", p.num_splits};
  constexpr int64_t kMostInt = 0x7fffffff;
  for (const int64_t number :
       {p.seqlen_q, p.seqlen_k, p.q.row_stride, p.k.row_stride, p.v.row_stride, p.o.row_stride}) {
    if (number > kMostInt) return {"takes lengths and row strides below 2^31", "number", number};
  }
  return {};
}

core::Launch configure_cuda_textbook(const Problem& p, const core::DeviceInfo& device) {
  core::Launch launch;
  launch.workspace_bytes = align_256(4 * pairs(p)) + align_256(2 * pairs(p));
  launch.schedule = "S and P in device memory";
  launch.instructions = "cuBLAS";
  // S written once and read three times in 4 bytes, P written and read once in 2.
  launch.seconds = device.bandwidth > 0 ? 20.0 * static_cast<double>(pairs(p)) / device.bandwidth : 0;
  return launch;
}

int prepare_cuda_textbook(const core::Plan& plan, tessera_status* status) {
  Cublas& blas = *cublas();
  const int device = plan.problem.device;
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

int run_cuda_textbook(const core::Plan& plan, const core::RunContext& context) {
  const Problem& p = plan.problem;
  Cublas& blas = *cublas();
  const std::lock_guard<std::mutex> lock(blas.mutex);
  const auto stream = static_cast<cudaStream_t>(context.cuda_stream);
  cublasHandle_t handle = blas.handles[static_cast<size_t>(p.device)];
  blas.set_stream(handle, stream);
  const auto scores = [&](const Slice& slice) { return multiply_scores(blas, handle, p, context, slice); };
  const auto values = [&](const Slice& slice) { return multiply_values(blas, handle, p, context, slice); };
  if (const int code = for_slices(p, scores)) return code;
  if (const cudaError_t error = launch_softmax(softmax_params(p, context), stream)) {
    return core::fail(context.status, TESSERA_DEVICE_ERROR, "cuda.textbook: %s", cudaGetErrorString(error));
  }
  return for_slices(p, values);
}

}  // namespace tessera::baselines

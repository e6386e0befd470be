#include "cuda_support.hpp"

namespace {
// What cuBLAS is given to work in. Its own would be allocated at the first product, which a capture does not allow.
constexpr size_t kWorkspaceBytes = 32 << 20;
}  // namespace

DeviceArray<__half> upload_half(const std::vector<float>& values) {
  std::vector<__half> halves;
  halves.reserve(values.size());
  for (const float value : values) halves.push_back(__float2half(value));
  return DeviceArray<__half>(halves);
}

DeviceLinear upload(const std::vector<const Linear*>& parts) {
  DeviceLinear made;
  made.inputs = parts.front()->inputs;
  std::vector<float> weight, bias;
  for (const Linear* part : parts) {
    made.outputs += part->outputs;
    for (int64_t o = 0; o < part->outputs; ++o)
      for (int64_t i = 0; i < part->inputs; ++i)
        weight.push_back(part->weight[static_cast<size_t>(i * part->outputs + o)]);
    bias.insert(bias.end(), part->bias.begin(), part->bias.end());
  }
  made.weight = upload_half(weight);
  made.bias = DeviceArray<float>(bias);
  return made;
}

DeviceNorm upload(const Norm& norm) { return {DeviceArray<float>(norm.gain), DeviceArray<float>(norm.bias)}; }

Products::Products(cudaStream_t stream) : workspace_(kWorkspaceBytes) {
  check(cublasCreate(&handle_), "cublasCreate");
  check(cublasSetStream(handle_, stream), "cublasSetStream");
  check(cublasSetWorkspace(handle_, workspace_.data(), workspace_.bytes()), "cublasSetWorkspace");
}

// cuBLAS counts columns first, so it is asked for the transposed result: [outputs, count] of [outputs, inputs] times
// [inputs, count], the first as it is stored, the second transposed to it.
void Products::apply(const __half* weight, int64_t inputs, int64_t outputs, const __half* rows, int64_t count,
                     float* result) const {
  const float one = 1, zero = 0;
  const int m = static_cast<int>(outputs), n = static_cast<int>(count), k = static_cast<int>(inputs);
  check(cublasGemmEx(handle_, CUBLAS_OP_T, CUBLAS_OP_N, m, n, k, &one, weight, CUDA_R_16F, k, rows, CUDA_R_16F, k,
                     &zero, result, CUDA_R_32F, m, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx");
}

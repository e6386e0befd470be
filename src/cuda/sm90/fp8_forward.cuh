// Attention forward for Hopper on e4m3:
//   q [seqlen_q, head_dim_qk], k [seqlen_k, head_dim_qk], v [seqlen_k, head_dim_v] of one (sequence, head), float32
//   scales -> o, lse
// The roles of forward.cuh, of the producer's warpgroup warp 0 copies, warp 1 schedules, warps 2 and 3 transpose V or
// copy V^T.
// Shared memory at d 128: 2 x 16 KB Q, 3 x (16 KB K, 16 KB V, 17 KB V^T), 2 KB barriers and views,
// 24 KB notes, 205 KB together; at d 256 32 KB Q, 2 x 32 KB K, 32 KB V, 2 x 33 KB V^T, 12 KB notes, 208 KB.
// Work: 4 kTileM kTileN d FLOPs a step, 128 x 128 x 128 in 1024 cycles of the tensor cores, 1024 of the exponential
// unit (16 a cycle): neither bounds it alone, the chain from one to the other does.
// Source: Shah et al., FlashAttention-3, section 3.3; two levels of accumulation as in DeepSeek-V3, section 3.3.2.
#pragma once

#include "../ptx/tensor_map.cuh"
#include "fp8_ordered.cuh"
#include "fp8_transposer.cuh"
#include "fp8_wide_loop.cuh"
#include "producer.cuh"
#include "schedule.cuh"

namespace tessera::cuda::sm90 {

// The rows below every tile of V^T, which nothing writes to after this. By `threads` threads.
template <class Config>
__device__ __forceinline__ void fill_ones(char* shared, int thread, int threads) {
  constexpr uint32_t kOnes = 0x38383838u;  // e4m3
  constexpr int kSpans = Config::kTileN / kFp8KeySpan, kChunks = 8 * kFp8KeySpan / 16;
  for (int i = thread; i < Config::kStages * kSpans * kChunks; i += threads) {
    const int span = i / kChunks, stage = span / kSpans;
    char* const rows = shared + Config::kTransposedOffset + stage * Config::kTransposedBytes +
                       ((span - stage * kSpans) * Config::kValueRows + Config::kDimV) * kFp8KeySpan;
    reinterpret_cast<uint4*>(rows)[i - span * kChunks] = make_uint4(kOnes, kOnes, kOnes, kOnes);
  }
}

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) fp8_forward_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) char shared[];
  static_assert(sizeof(Fp8Control<Config>) <= Config::kControlBytes && sizeof(Fp8Notes) == Config::kNotesBytes);
  Fp8Control<Config>& control = *reinterpret_cast<Fp8Control<Config>*>(shared + Config::kControlOffset);
  const int warp = uniform(static_cast<int>(threadIdx.x / 32)), group = warp / 4;
  if (threadIdx.x == 0) control.init();
  if (warp == 2 && threadIdx.x % 32 < 3) {
    ptx::prefetch_tensor_map(threadIdx.x % 32 == 0 ? &p.q_map : threadIdx.x % 32 == 1 ? &p.k_map : &p.v_map);
  }
  if (group == 0) {
    ptx::shrink_registers<Config::kProducerRegisters>();
    if (warp == 1) {
      schedule_tiles<Config, true>(p, control);
    } else {
      __syncthreads();
      if (warp == 0) Producer<Config>{p, control, shared}.run();
      if (warp >= 2 && !p.fp8.v_ordered) Transposer<Config>{control, ptx::shared_address(shared), warp - 2}.run();
      if (warp >= 2 && p.fp8.v_ordered) OrderedValues<Config>{p, control, shared, warp - 2}.run();
    }
  } else {
    fill_ones<Config>(shared, static_cast<int>(threadIdx.x) - 128, Config::kThreads - 128);
    ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
    __syncthreads();
    ptx::grow_registers<Config::kConsumerRegisters>();
    Fp8Consumer<Config>{p, control, shared, ptx::shared_address(shared), group - 1}.run();
  }
}

}  // namespace tessera::cuda::sm90

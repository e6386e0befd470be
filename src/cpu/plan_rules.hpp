// What planning does alike for the forward and the backward rows of the CPU: the operands that they refuse, and the
// estimate from FLOPs, bytes and threads.
#pragma once

#include <algorithm>

#include "kernel_entry.hpp"

namespace tessera::cpu {

// Types of q, k and v but for quantised ones.
inline core::Refusal refuse_types(const core::Problem& problem) {
  const int32_t dtype = problem.q.dtype;
  if (dtype != TESSERA_F64 && dtype != TESSERA_F32 && dtype != TESSERA_F16 && dtype != TESSERA_BF16) {
    return {"takes q in f64, f32, f16 or bf16", "q.dtype", dtype};
  }
  if (problem.k.dtype != dtype) return {"takes k in q's dtype", "k.dtype", problem.k.dtype};
  if (problem.v.dtype != dtype) return {"takes v in q's dtype", "v.dtype", problem.v.dtype};
  return {};
}
// Head sizes that neither pass takes.
inline core::Refusal refuse_head_dims(const core::Problem& problem) {
  if (problem.head_dim_qk > 576) return {"head_dim_qk above 576", "head_dim_qk", problem.head_dim_qk};
  if (problem.head_dim_v > 512) return {"head_dim_v above 512", "head_dim_v", problem.head_dim_v};
  return {};
}

inline core::Refusal refuse_operands(const core::Problem& problem) {
  const core::Refusal refusal = refuse_types(problem);
  return refusal ? refusal : refuse_head_dims(problem);
}

// Seconds of `flops` at `efficiency` of the FMA peak of the CPUs that `threads` keep busy, or of the bytes if longer.
inline double estimate_seconds(const core::Problem& problem, const core::DeviceInfo& device, double flops, double bytes,
                               int32_t threads, double efficiency) {
  const double share = std::min(1.0, double(threads) / std::max(device.units, 1)),
               peak = device.peak_f32 * (problem.q.dtype == TESSERA_F64 ? 0.5 : 1.0);
  return std::max(flops / std::max(peak * efficiency * share, 1.0), bytes / std::max(device.bandwidth, 1.0));
}

}  // namespace tessera::cpu

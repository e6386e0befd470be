// The judge: attention in float64 by plain loops, forward and backward, for every part of the semantics. It shares no
// code with the kernels but the scalar rules of semantics.hpp, and derives rows, pages and lengths on its own.
#pragma once

#include <vector>

#include "problem.hpp"
#include "tessera/tessera.h"

namespace tessera::baselines {

// Logical contiguous arrays, whatever the operands' strides:
// o [batch, seqlen_q, heads_q, head_dim_v] or packed [total_q, ...]; lse [batch, heads_q, seqlen_q] or [heads_q,
// total_q]; dq as q; dk, dv [batch_kv, seqlen_k, heads_kv, dim] or packed [total_k, ...]; d_bias as its broadcast
// extents; d_sinks [heads_q]. Elements that the call must not touch (packed rows past the last cu_seqlens) hold
// kUntouched.
struct Results {
  std::vector<double> o, lse, dq, dk, dv, d_bias, d_sinks;
};
inline constexpr double kUntouched = -7.0e77;

enum class Precision {
  exact,  // everything in float64
  naive  // the yardstick of the tolerance rule: S, P and in backward dS in float32 (float64 for f64), P, dS and outputs
         // rounded to the input dtype
};

// Reads the inputs of `tensors` (checked metadata); for backward it computes o and lse itself in the same precision
// and reads d_o, d_lse. `threads` only splits heads and batches.
Results reference(const core::Problem& problem, const tessera_tensors& tensors, Precision precision, int threads = 1);

}  // namespace tessera::baselines

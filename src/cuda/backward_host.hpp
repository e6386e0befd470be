// What the host sides of the CUDA backward kernels share: what all of them refuse, the workspace, the parameters, and
// the launches before and after the main kernel. A kernel's own planning is in its architecture's folder.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backward_params.hpp"
#include "forward_host.hpp"

namespace tessera::cuda {

// Dtypes, head dims and features that no CUDA backward takes; counts and layouts that it does not take.
core::Refusal refuse_backward(const core::Problem& p);

// Where each piece of the workspace begins, and its size, for dq sums of `dq_dim` columns.
struct BackwardWorkspace {
  int64_t lse, delta, dq_sum, sink_sums, turns, ticket, bytes;
};
BackwardWorkspace lay_out_workspace(const core::Problem& p, int32_t dq_dim);

// The parameters of all launches of one run, without the schedule.
BackwardParams make_backward_params(const core::Problem& p, const tessera_tensors& tensors, std::byte* workspace,
                                    int32_t dq_dim);

// Key/value heads of one batch after another, as many together as leave Q, dO and dq's sums in half of L2.
int32_t heads_together_backward(const core::Problem& p, int64_t l2_bytes);

}  // namespace tessera::cuda

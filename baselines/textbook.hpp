// The textbook method, the baseline of every CPU benchmark: S = Q K^T as a whole, softmax by rows, O = P V, with a BLAS
// for the two products.
#pragma once

#include "kernel_entry.hpp"

namespace tessera::baselines {

core::Refusal refuse_textbook(const core::Problem& problem, const core::DeviceInfo& device);
core::Launch configure_textbook(const core::Problem& problem, const core::DeviceInfo& device);
int run_textbook(const core::Plan& plan, const core::RunContext& context);

}  // namespace tessera::baselines

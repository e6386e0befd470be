// The instruction-set independent half of the CPU backward kernel: which problems it takes, its tiles and workspace,
// and the run that hands tasks to threads.
#pragma once

#include "cpu/backward_call.hpp"
#include "kernel_entry.hpp"

namespace tessera::cpu {

// Why no build of the kernel takes `problem`, whatever the instruction set.
core::Refusal refuse_backward(const core::Problem& problem);

// Tiles, threads, workspace and estimate; `efficiency` is the measured share of the FMA peak.
core::Launch configure_backward(const core::Problem& problem, const core::DeviceInfo& device,
                                const BackwardKernel& kernel, double efficiency);

int run_backward(const core::Plan& plan, const core::RunContext& context, const BackwardKernel& kernel);

}  // namespace tessera::cpu

// The instruction-set independent half of the CPU forward kernel: which problems it takes, its tiles and workspace, and
// the run that hands blocks of work to threads.
#pragma once

#include "cpu/forward_call.hpp"
#include "kernel_entry.hpp"

namespace tessera::cpu {

// Why no build of the kernel takes `problem`, whatever the instruction set.
core::Refusal refuse_forward(const core::Problem& problem);

// Tiles, threads, workspace and estimate; `efficiency` is the measured share of the FMA peak.
core::Launch configure_forward(const core::Problem& problem, const core::DeviceInfo& device,
                               const ForwardKernel& kernel, double efficiency);

int run_forward(const core::Plan& plan, const core::RunContext& context, const ForwardKernel& kernel);

}  // namespace tessera::cpu

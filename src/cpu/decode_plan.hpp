// The instruction-set independent half of the CPU decode kernel: which problems it takes, its splits and workspace, and
// the run that hands splits to threads and then merges them.
#pragma once

#include "cpu/decode_call.hpp"
#include "kernel_entry.hpp"

namespace tessera::cpu {

core::Refusal refuse_decode(const core::Problem& problem);

// `efficiency` is the measured share of the memory bandwidth.
core::Launch configure_decode(const core::Problem& problem, const core::DeviceInfo& device, const DecodeKernel& kernel,
                              double efficiency);

int run_decode(const core::Plan& plan, const core::RunContext& context, const DecodeKernel& kernel);

}  // namespace tessera::cpu

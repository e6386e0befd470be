// Planning and launch of a portable forward by its instance: what cuda.sm80.forward and its ablations share.
#pragma once

#include "kernel_entry.hpp"
#include "launch.hpp"

namespace tessera::cuda::sm80 {

// The architecture, sizes, layouts and strides that an instance does not take on this device.
core::Refusal refuse_forward_launch(const core::Problem& p, const core::DeviceInfo& device,
                                    const ForwardInstance& instance);
// A launch but for the words about its instructions.
core::Launch configure_forward_launch(const core::Problem& p, const core::DeviceInfo& device,
                                      const ForwardInstance& instance);
int run_forward_launch(const core::Plan& plan, const core::RunContext& context, const ForwardInstance& instance);
int prepare_forward_launch(const core::Plan& plan, const ForwardInstance& instance, tessera_status* status);

}  // namespace tessera::cuda::sm80

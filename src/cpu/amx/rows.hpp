// The rows of the tile kernels, for the list of CPU kernels.
#pragma once

#include "kernel_entry.hpp"

namespace tessera::cpu::amx {

core::Refusal refuse_native(const core::Problem& problem, const core::DeviceInfo& device);
core::Launch configure_native(const core::Problem& problem, const core::DeviceInfo& device);
int run_native(const core::Plan& plan, const core::RunContext& context);

core::Refusal refuse_emulated(const core::Problem& problem, const core::DeviceInfo& device);
core::Launch configure_emulated(const core::Problem& problem, const core::DeviceInfo& device);
int run_emulated(const core::Plan& plan, const core::RunContext& context);

core::Refusal refuse_decode_native(const core::Problem& problem, const core::DeviceInfo& device);
core::Launch configure_decode_native(const core::Problem& problem, const core::DeviceInfo& device);
int run_decode_native(const core::Plan& plan, const core::RunContext& context);

core::Refusal refuse_decode_emulated(const core::Problem& problem, const core::DeviceInfo& device);
core::Launch configure_decode_emulated(const core::Problem& problem, const core::DeviceInfo& device);
int run_decode_emulated(const core::Plan& plan, const core::RunContext& context);

core::Refusal refuse_backward_native(const core::Problem& problem, const core::DeviceInfo& device);
core::Launch configure_backward_native(const core::Problem& problem, const core::DeviceInfo& device);
int run_backward_native(const core::Plan& plan, const core::RunContext& context);

core::Refusal refuse_backward_emulated(const core::Problem& problem, const core::DeviceInfo& device);
core::Launch configure_backward_emulated(const core::Problem& problem, const core::DeviceInfo& device);
int run_backward_emulated(const core::Plan& plan, const core::RunContext& context);

inline constexpr core::KernelEntry kForward{
    .name = "cpu.amx.forward", .refuse = refuse_native, .configure = configure_native, .run = run_native};
// The same packing, masks and loops on any machine, for tests; chosen only by name.
inline constexpr core::KernelEntry kForwardEmulated{.name = "cpu.amx_emulated.forward",
                                                    .refuse = refuse_emulated,
                                                    .configure = configure_emulated,
                                                    .run = run_emulated,
                                                    .pinned_only = true};
inline constexpr core::KernelEntry kDecode{.name = "cpu.amx.decode",
                                           .refuse = refuse_decode_native,
                                           .configure = configure_decode_native,
                                           .run = run_decode_native};
inline constexpr core::KernelEntry kDecodeEmulated{.name = "cpu.amx_emulated.decode",
                                                   .refuse = refuse_decode_emulated,
                                                   .configure = configure_decode_emulated,
                                                   .run = run_decode_emulated,
                                                   .pinned_only = true};
inline constexpr core::KernelEntry kBackward{.name = "cpu.amx.backward",
                                             .refuse = refuse_backward_native,
                                             .configure = configure_backward_native,
                                             .run = run_backward_native};
inline constexpr core::KernelEntry kBackwardEmulated{.name = "cpu.amx_emulated.backward",
                                                     .refuse = refuse_backward_emulated,
                                                     .configure = configure_backward_emulated,
                                                     .run = run_backward_emulated,
                                                     .pinned_only = true};

}  // namespace tessera::cpu::amx

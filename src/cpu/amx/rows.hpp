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

inline constexpr core::KernelEntry kForward{"cpu.amx.forward", refuse_native, configure_native, run_native};
inline constexpr core::KernelEntry kDecode{"cpu.amx.decode", refuse_decode_native, configure_decode_native,
                                           run_decode_native};
inline constexpr core::KernelEntry kBackward{"cpu.amx.backward", refuse_backward_native, configure_backward_native,
                                             run_backward_native};
// The same packing, masks and loops on any machine, for tests.
inline constexpr bool kPinnedOnly = true;
inline constexpr core::KernelEntry kForwardEmulated{"cpu.amx_emulated.forward", refuse_emulated, configure_emulated,
                                                    run_emulated, kPinnedOnly};
inline constexpr core::KernelEntry kDecodeEmulated{"cpu.amx_emulated.decode", refuse_decode_emulated,
                                                   configure_decode_emulated, run_decode_emulated, kPinnedOnly};
inline constexpr core::KernelEntry kBackwardEmulated{"cpu.amx_emulated.backward", refuse_backward_emulated,
                                                     configure_backward_emulated, run_backward_emulated, kPinnedOnly};

}  // namespace tessera::cpu::amx

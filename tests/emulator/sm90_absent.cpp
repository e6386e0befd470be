// The rows of architectures that the emulator does not run: they refuse, as they do on its device.
#include "cuda/kernels.hpp"

namespace tessera::cuda::sm90 {
namespace {

core::Refusal refuse(const core::Problem&, const core::DeviceInfo&) { return {"is not emulated"}; }
core::Launch configure(const core::Problem&, const core::DeviceInfo&) { return {}; }
int run(const core::Plan&, const core::RunContext&) { return TESSERA_INTERNAL; }

}  // namespace

const core::KernelEntry kForward{"cuda.sm90.forward", refuse, configure, run, false, nullptr};
const core::KernelEntry kBackward{"cuda.sm90.backward", refuse, configure, run, true, nullptr};

}  // namespace tessera::cuda::sm90

// The probe's loops for portable.
// The base of the architecture: SSE2 without FMA on x86-64 (a multiply and an add a step), NEON on aarch64.
namespace tessera::cli {
namespace {
constexpr int kVectorBytes = 16, kChains = 10;
}  // namespace
}  // namespace tessera::cli

#include "cli/probe_loops.hpp"

namespace tessera::cli {

const ProbeLoops kProbePortable = {"portable", fma_loop<float>, fma_loop<double>, read_loop};

}  // namespace tessera::cli

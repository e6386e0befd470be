// The probe's loops for avx512.
namespace tessera::cli {
namespace {
constexpr int kVectorBytes = 64, kChains = 16;
}  // namespace
}  // namespace tessera::cli

#include "cli/probe_loops.hpp"

namespace tessera::cli {

#if defined(__x86_64__)
const ProbeLoops kProbeAvx512 = {"avx512", fma_loop<float>, fma_loop<double>, read_loop};
#endif

}  // namespace tessera::cli

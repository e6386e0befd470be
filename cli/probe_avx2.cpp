// The probe's loops for avx2.
namespace tessera::cli {
namespace {
constexpr int kVectorBytes = 32, kChains = 12;
}  // namespace
}  // namespace tessera::cli

#include "cli/probe_loops.hpp"

namespace tessera::cli {

#if defined(__x86_64__)
const ProbeLoops kProbeAvx2 = {"avx2", fma_loop<float>, fma_loop<double>, read_loop};
#endif

}  // namespace tessera::cli

// The probe's loops for avx2.
#if defined(__x86_64__)
namespace tessera::cli {
namespace {
constexpr int kVectorBytes = 32, kChains = 12;
}  // namespace
}  // namespace tessera::cli

#include "cli/probe_loops.hpp"

namespace tessera::cli {

const ProbeLoops kProbeAvx2 = {"avx2", fma_loop<float>, fma_loop<double>, read_loop};

}  // namespace tessera::cli
#endif

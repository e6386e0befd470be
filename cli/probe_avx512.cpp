// The probe's loops for avx512.
#if defined(__x86_64__)
namespace tessera::cli {
namespace {
constexpr int kVectorBytes = 64, kChains = 16;
}  // namespace
}  // namespace tessera::cli

#include "cli/probe_loops.hpp"

namespace tessera::cli {

const ProbeLoops kProbeAvx512 = {"avx512", fma_loop<float>, fma_loop<double>, read_loop};

}  // namespace tessera::cli
#endif

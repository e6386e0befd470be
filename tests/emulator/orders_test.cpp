// What the library promises to repeat bitwise is the same in every order of threads and blocks that the seed draws.
#include <algorithm>

#include "gpu_support.hpp"
#include "launch.hpp"

namespace tessera::tests {
namespace {

constexpr uint64_t kSeeds = 12;

class EmulatorOrders : public ::testing::TestWithParam<const char*> {};

TEST_P(EmulatorOrders, GiveTheSameBits) {
  GpuCase gpu(std::string(GetParam()) + " cuda");
  std::vector<std::byte> first;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    emulator::set_seed(1000 * seed);
    tessera_status status{};
    ASSERT_EQ(gpu.run("", &status), TESSERA_OK) << status.message;
    const std::vector<std::byte> found = output_bytes(gpu.set);
    if (seed == 0) first = found;
    ASSERT_EQ(found, first) << "seed " << 1000 * seed;
  }
}

// Every tile shape, the general scores, pages, and the merge of splits.
INSTANTIATE_TEST_SUITE_P(
    Forward, EmulatorOrders,
    ::testing::Values("fwd bf16 b1 hq2 sq130 sk200 d64 causal", "fwd f16 b1 hq1 sq130 sk200 d96",
                      "fwd bf16 b1 hq1 sq130 sk200 d128 window=30,5", "fwd f16 b1 hq1 sq70 sk200 d192",
                      "fwd bf16 b1 hq1 sq70 sk200 d256 causal", "fwd bf16 b1 hq2 sq70 sk200 d64 softcap=5 alibi",
                      "fwd f16 b1 hq1 sq70 sk200 d256 bias=bh",
                      "fwd bf16 b2 hq2 hkv1 sq20 sk300 d128 paged=16 pages=shuffled splits=3 sinks"));

}  // namespace
}  // namespace tessera::tests

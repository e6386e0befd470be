// A decode launch that begins before the one before it has written the lengths sees what it writes.
#include <utility>

#include "gpu_support.hpp"
#include "launch.hpp"

namespace tessera::tests {
namespace {

class EmulatorOverlap : public ::testing::TestWithParam<const char*> {};

TEST_P(EmulatorOverlap, SeesLengthsWrittenMeanwhile) {
  const std::string text = std::string("fwd ") + GetParam() + " cuda";
  for (const auto& [before, after] : {std::pair(400, 100), {100, 400}, {0, 64}, {64, 0}, {399, 400}}) {
    SCOPED_TRACE(text + ", " + std::to_string(before) + " then " + std::to_string(after));
    baselines::OperandSet operands = operands_of(text);
    operands.problem.flags &= ~uint64_t{TESSERA_FLAG_SEQUSED_Q};  // else nothing is looked up ahead of its time
    operands.tensors.seqused_q = nullptr;
    GpuCase gpu(std::move(operands));
    auto* lengths = const_cast<int32_t*>(gpu.set.tensors.seqused_k);
    lengths[0] = before;
    auto* on_device = const_cast<int32_t*>(gpu.mirror.translate(gpu.set.tensors).seqused_k);
    bool written = false;
    emulator::set_launch_before([&, length = after] { on_device[0] = length, written = true; });
    tessera_status status{};
    ASSERT_EQ(gpu.run("cuda.sm80.decode", &status), TESSERA_OK) << status.message;
    ASSERT_TRUE(written);
    ASSERT_EQ(lengths[0], after);
    const auto comparisons = baselines::compare(gpu.plan.problem, gpu.set.tensors);
    EXPECT_TRUE(baselines::worst(comparisons).passed) << baselines::worst(comparisons).max_abs_error;
    EXPECT_TRUE(gpu.set.canaries_intact());
  }
}

// The first block to wait is the one that had begun; of several splits the others come later. Pages that a warp's keys
// share and that they do not, none, the wider tiles, bytes.
INSTANTIATE_TEST_SUITE_P(
    Words, EmulatorOverlap,
    ::testing::Values("bf16 b1 hq4 hkv1 sq1 sk400 d128 paged=16 pages=shuffled lens=400 splits=1",
                      "f16 b1 hq2 hkv1 sq2 sk400 d64 paged=3 pages=shuffled lens=400 splits=1 causal",
                      "bf16 b1 hq16 hkv1 sq1 sk400 d256 paged=64 pages=shuffled lens=400 splits=1",
                      "bf16 b1 hq4 hkv1 sq1 sk400 d128 paged=16 pages=shuffled lens=400 splits=3",
                      "f16 b1 hq4 hkv1 sq1 sk400 d128 lens=400 splits=1",
                      "bf16 b1 hq4 hkv1 sq1 sk400 d128 kv=int8 paged=16 pages=shuffled lens=400 splits=1"));

}  // namespace
}  // namespace tessera::tests

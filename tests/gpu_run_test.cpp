// How CUDA plans run: repeatable bits, graphs whose lengths change, streams, workspaces, errors that stay whose they
// are, and grids past 65535.
#include <algorithm>
#include <cstring>
#include <vector>

#include "gpu_support.hpp"

namespace tessera::tests {
namespace {

std::vector<std::byte> bytes_of(const baselines::OperandSet& set) {
  std::vector<std::byte> all;
  for (const size_t index : set.outputs) {
    const baselines::Buffer& buffer = set.buffers[index];
    all.insert(all.end(), buffer.data(), buffer.data() + buffer.bytes());
  }
  return all;
}

TEST(GpuRun, RepeatsBitwiseOnAnyStream) {
  TESSERA_NEEDS_GPU();
  for (const char* text :
       {"fwd bf16 b2 hq4 hkv2 sq500 sk700 d128 causal cuda", "fwd f16 b2 hq2 sq1 sk3000 d64 splits=7 cuda"}) {
    GpuCase gpu(text);
    tessera_status status{};
    ASSERT_EQ(gpu.run("", &status), TESSERA_OK) << status.message;
    const auto first = bytes_of(gpu.set);
    ASSERT_EQ(cudaStreamCreate(&gpu.stream), cudaSuccess);
    for (int i = 0; i < 10; ++i) {
      ASSERT_EQ(gpu.run("", &status), TESSERA_OK) << status.message;
      ASSERT_EQ(bytes_of(gpu.set), first) << text << " run " << i;
    }
    cudaStreamDestroy(gpu.stream);
  }
}

// A sequence's result does not depend on its batch mates.
TEST(GpuRun, BatchMatesChangeNothing) {
  TESSERA_NEEDS_GPU();
  GpuCase many("fwd bf16 b4 hq2 sq200 sk300 d64 causal seed=3 cuda"),
      one("fwd bf16 b1 hq2 sq200 sk300 d64 causal seed=3 cuda");
  const size_t row_bytes = 200 * 2 * 64 * 2, key_bytes = 300 * 2 * 64 * 2;
  std::memcpy(const_cast<void*>(one.set.tensors.q), static_cast<const std::byte*>(many.set.tensors.q) + 2 * row_bytes,
              row_bytes);
  std::memcpy(const_cast<void*>(one.set.tensors.k), static_cast<const std::byte*>(many.set.tensors.k) + 2 * key_bytes,
              key_bytes);
  std::memcpy(const_cast<void*>(one.set.tensors.v), static_cast<const std::byte*>(many.set.tensors.v) + 2 * key_bytes,
              key_bytes);
  tessera_status status{};
  ASSERT_EQ(many.run("", &status), TESSERA_OK) << status.message;
  ASSERT_EQ(one.run("", &status), TESSERA_OK) << status.message;
  EXPECT_EQ(std::memcmp(one.set.tensors.o, static_cast<std::byte*>(many.set.tensors.o) + 2 * row_bytes, row_bytes), 0);
}

// The graph is captured once; used lengths and page table change on the device between replays.
TEST(GpuRun, GraphFollowsChangedLengths) {
  TESSERA_NEEDS_GPU();
  GpuCase gpu("fwd bf16 b3 hq4 hkv2 sq40 sk300 d128 paged=16 pages=shuffled lens=longtail causal cuda");
  tessera_status status{};
  ASSERT_EQ(gpu.run("", &status), TESSERA_OK) << status.message;
  const tessera_tensors tensors = gpu.mirror.device(gpu.set.tensors);
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  const tessera_exec exec{sizeof(tessera_exec), stream, nullptr};
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  ASSERT_EQ(core::run_plan(gpu.plan, &tensors, nullptr, 0, &exec, &status), TESSERA_OK) << status.message;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
  core::Problem problem;
  ASSERT_EQ(core::validate(gpu.set.problem, &problem, &status), TESSERA_OK);
  auto* lengths = const_cast<int32_t*>(gpu.set.tensors.seqused_k);
  const std::vector<int32_t> given(lengths, lengths + 3);
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 3; ++i) lengths[i] = std::max(0, given[static_cast<size_t>(i)] - 37 * round);
    gpu.set.poison_outputs();
    gpu.mirror.upload();
    ASSERT_EQ(cudaGraphLaunch(replay, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    gpu.mirror.download();
    const auto comparisons = baselines::compare(problem, gpu.set.tensors);
    EXPECT_TRUE(baselines::worst(comparisons).passed)
        << "replay " << round << ": " << baselines::worst(comparisons).max_abs_error;
  }
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST(GpuRun, MetadataIsCheckedOnRequest) {
  TESSERA_NEEDS_GPU();
  GpuCase gpu("fwd bf16 b3 hq2 sq40 sk300 d64 paged=16 lens=longtail cuda");
  tessera_status status{};
  ASSERT_EQ(gpu.run("", &status), TESSERA_OK) << status.message;
  const tessera_tensors tensors = gpu.mirror.device(gpu.set.tensors);
  EXPECT_EQ(core::check_metadata(gpu.plan, &tensors, nullptr, &status), TESSERA_OK) << status.message;
  const_cast<int32_t*>(gpu.set.tensors.page_table)[0] = 1 << 20;
  gpu.mirror.upload();
  EXPECT_EQ(core::check_metadata(gpu.plan, &tensors, nullptr, &status), TESSERA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(status.message).find("1048576"), std::string::npos) << status.message;
}

// Whatever lengths and pages hold, nothing outside the arrays is read or written: wrong ones may give wrong rows, no
// fault.
TEST(GpuRun, WildMetadataStaysInside) {
  TESSERA_NEEDS_GPU();
  for (const char* text : {"fwd bf16 b3 hq2 sq40 sk300 d64 paged=16 lens=longtail cuda",
                           "fwd bf16 b3 hq2 sq40 sk300 d64 packed lens=longtail cuda"}) {
    for (const int32_t wild : {-1, 0x7fffffff, -0x7fffffff, 1 << 20}) {
      GpuCase gpu(text);
      const tessera_tensors& t = gpu.set.tensors;
      for (const int32_t* array : {t.cu_seqlens_q, t.cu_seqlens_k, t.seqused_k, t.page_table}) {
        if (array != nullptr) const_cast<int32_t*>(array)[1] = wild;
      }
      tessera_status status{};
      ASSERT_EQ(gpu.run("", &status), TESSERA_OK) << status.message;
      EXPECT_TRUE(gpu.set.canaries_intact());
    }
  }
}

TEST(GpuRun, ErrorsBelongToTheirCaller) {
  TESSERA_NEEDS_GPU();
  GpuCase gpu("fwd bf16 b1 hq1 sq64 d64 cuda");
  tessera_status status{};
  ASSERT_EQ(gpu.run("", &status), TESSERA_OK);
  const tessera_tensors tensors = gpu.mirror.device(gpu.set.tensors);
  // A pending error of the caller: our run succeeds and the error is still there.
  ASSERT_NE(cudaMemcpy(nullptr, nullptr, 8, static_cast<cudaMemcpyKind>(77)), cudaSuccess);
  EXPECT_EQ(core::run_plan(gpu.plan, &tensors, nullptr, 0, nullptr, &status), TESSERA_OK) << status.message;
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidMemcpyDirection);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  // An error of ours is a status and leaves nothing behind.
  core::Plan broken = gpu.plan;
  broken.problem.device = 999;
  EXPECT_EQ(core::run_plan(broken, &tensors, nullptr, 0, nullptr, &status), TESSERA_DEVICE_ERROR);
  EXPECT_NE(status.message[0], '\0');
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(core::run_plan(gpu.plan, &tensors, nullptr, 0, nullptr, &status), TESSERA_OK) << status.message;
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST(GpuRun, AnAbsentDeviceIsNamed) {
  TESSERA_NEEDS_GPU();
  tessera_status status{};
  baselines::OperandSet set = baselines::make_operands("fwd bf16 sq64 d64 cuda", &status);
  set.problem.device = 63;
  core::Plan plan;
  EXPECT_EQ(core::make_plan(set.problem, {}, &plan, &status), TESSERA_NO_DEVICE);
  EXPECT_NE(std::string(status.message).find("63"), std::string::npos) << status.message;
}

TEST(GpuRun, EmptyProblemsRun) {
  TESSERA_NEEDS_GPU();
  for (const char* text :
       {"fwd bf16 b0 hq2 sq64 d64 cuda", "fwd bf16 b2 hq2 sq0 sk64 d64 cuda", "fwd bf16 b2 hq2 sq64 sk0 d64 cuda"}) {
    EXPECT_GT(check_on_gpu(text), 0) << text;
  }
}

// More heads and batches than a grid's second dim holds.
TEST(GpuRun, ManyHeadsAndBatches) {
  TESSERA_NEEDS_GPU();
  for (const char* text : {"fwd bf16 b70000 hq1 sq2 sk3 d8 cuda", "fwd bf16 b1 hq70000 hkv7 sq2 sk3 d8 causal cuda"}) {
    EXPECT_GT(check_on_gpu(text), 0) << text;
  }
}

}  // namespace
}  // namespace tessera::tests

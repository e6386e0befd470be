// How CUDA plans run: repeatable bits, graphs whose lengths change, streams, workspaces, errors that stay whose they
// are, and grids past 65535.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
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
    for (int i = 0; i < repeats(10); ++i) {
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

// The plan's first run is captured, so it neither loads, allocates nor waits; used lengths and page table change on the
// device between replays.
TEST(GpuRun, GraphFollowsChangedLengths) {
  TESSERA_NEEDS_GPU();
  for (const char* text : {"fwd bf16 b3 hq4 hkv2 sq40 sk300 d128 paged=16 pages=shuffled lens=longtail causal cuda",
                           "fwd f16 b3 hq4 hkv2 sq1 sk300 d96 paged=16 pages=shuffled lens=longtail splits=3 cuda"}) {
    SCOPED_TRACE(text);
    GpuCase gpu(text);
    tessera_status status{};
    ASSERT_EQ(core::make_plan(gpu.set.problem, {}, &gpu.plan, &status), TESSERA_OK) << status.message;
    const auto bytes = static_cast<size_t>(gpu.plan.launch.workspace_bytes);
    const baselines::DeviceBuffer workspace(0, bytes);
    const tessera_tensors tensors = gpu.mirror.translate(gpu.set.tensors);
    cudaStream_t stream;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    const tessera_exec exec{sizeof(tessera_exec), stream, nullptr};
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    EXPECT_EQ(core::run_plan(gpu.plan, &tensors, workspace.data(), bytes, &exec, &status), TESSERA_OK)
        << status.message;
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
    const core::Problem problem = validated(gpu.set.problem);
    auto* lengths = const_cast<int32_t*>(gpu.set.tensors.seqused_k);
    auto* pages = const_cast<int32_t*>(gpu.set.tensors.page_table);
    const std::vector<int32_t> given(lengths, lengths + 3);
    for (int round = 0; round < 4; ++round) {
      for (int i = 0; i < 3; ++i) lengths[i] = std::max(0, given[static_cast<size_t>(i)] - 37 * round);
      std::swap(pages[0], pages[1]);
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
}

// The workspace belongs to the run in stream order alone: overwritten right behind the call, it changes nothing.
TEST(GpuRun, WorkspaceIsFreeBehindTheRun) {
  TESSERA_NEEDS_GPU();
  GpuCase gpu("fwd bf16 b4 hq8 hkv2 sq3 sk3000 d128 splits=5 cuda");
  tessera_status status{};
  ASSERT_EQ(gpu.run("", &status), TESSERA_OK) << status.message;
  const auto expected = bytes_of(gpu.set);
  const tessera_tensors tensors = gpu.mirror.translate(gpu.set.tensors);
  const auto bytes = static_cast<size_t>(gpu.plan.launch.workspace_bytes);
  const baselines::DeviceBuffer workspace(0, bytes);
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  const tessera_exec exec{sizeof(tessera_exec), stream, nullptr};
  for (int i = 0; i < repeats(20); ++i) {
    ASSERT_EQ(core::run_plan(gpu.plan, &tensors, workspace.data(), bytes, &exec, &status), TESSERA_OK);
    ASSERT_EQ(cudaMemsetAsync(workspace.data(), i % 2 == 0 ? 0xff : 0, bytes, stream), cudaSuccess);
  }
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  gpu.mirror.download();
  EXPECT_EQ(bytes_of(gpu.set), expected);
  cudaStreamDestroy(stream);
}

// One plan, four threads at once, each with a stream, operands and a workspace of its own.
TEST(GpuRun, ThreadsShareAPlan) {
  TESSERA_NEEDS_GPU();
  const char* text = "fwd bf16 b2 hq4 hkv2 sq5 sk900 d64 splits=4 causal cuda";
  constexpr int kThreads = 4;
  std::vector<std::unique_ptr<GpuCase>> cases;
  std::vector<std::vector<std::byte>> expected;
  for (int t = 0; t < kThreads; ++t) {
    cases.push_back(std::make_unique<GpuCase>(text + (" seed=" + std::to_string(t))));
    tessera_status status{};
    ASSERT_EQ(cases.back()->run("", &status), TESSERA_OK) << status.message;
    expected.push_back(bytes_of(cases.back()->set));
  }
  const core::Plan& plan = cases[0]->plan;
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const tessera_tensors tensors =
          cases[static_cast<size_t>(t)]->mirror.translate(cases[static_cast<size_t>(t)]->set.tensors);
      const auto bytes = static_cast<size_t>(plan.launch.workspace_bytes);
      const baselines::DeviceBuffer workspace(0, bytes);
      const baselines::DeviceClock clock(0);
      const tessera_exec exec{sizeof(tessera_exec), clock.stream(), nullptr};
      for (int i = 0; i < repeats(200); ++i)
        failures += core::run_plan(plan, &tensors, workspace.data(), bytes, &exec, nullptr) != TESSERA_OK;
      clock.synchronize();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  for (int t = 0; t < kThreads; ++t) {
    cases[static_cast<size_t>(t)]->mirror.download();
    EXPECT_EQ(bytes_of(cases[static_cast<size_t>(t)]->set), expected[static_cast<size_t>(t)]) << "thread " << t;
  }
}

// The plan's device is made current for the call alone, whichever the caller's is; streams and operands are its own.
TEST(GpuRun, EachPlanRunsOnItsDevice) {
  TESSERA_NEEDS_GPU();
  if (core::cuda_device_count() < 2) {
    GTEST_SKIP() << "needs two CUDA devices; this machine has " << core::cuda_device_count();
  }
  for (const int caller : {0, 1}) {
    for (const int32_t device : {0, 1}) {
      SCOPED_TRACE(testing::Message() << "caller on " << caller << ", plan on " << device);
      ASSERT_EQ(cudaSetDevice(caller), cudaSuccess);
      GpuCase gpu(operands_of("fwd bf16 b2 hq4 hkv2 sq100 sk300 d64 splits=3 causal cuda"), device);
      const Judged judged = judge(gpu.set);
      tessera_status status{};
      ASSERT_EQ(gpu.run("", &status), TESSERA_OK) << status.message;
      int current = -1;
      ASSERT_EQ(cudaGetDevice(&current), cudaSuccess);
      EXPECT_EQ(current, caller);
      cudaPointerAttributes attributes;
      ASSERT_EQ(cudaPointerGetAttributes(&attributes, gpu.mirror.translate(gpu.set.tensors.o)), cudaSuccess);
      EXPECT_EQ(attributes.device, device);
      const auto comparisons = baselines::compare(gpu.plan.problem, gpu.set.tensors, &judged.exact, &judged.naive);
      EXPECT_TRUE(baselines::worst(comparisons).passed) << baselines::worst(comparisons).max_abs_error;
      const tessera_tensors tensors = gpu.mirror.translate(gpu.set.tensors);
      EXPECT_EQ(core::check_metadata(gpu.plan, &tensors, nullptr, &status), TESSERA_OK) << status.message;
      ASSERT_EQ(cudaGetDevice(&current), cudaSuccess);
      EXPECT_EQ(current, caller);
    }
  }
  cudaSetDevice(0);
}

TEST(GpuRun, MetadataIsCheckedOnRequest) {
  TESSERA_NEEDS_GPU();
  GpuCase gpu("fwd bf16 b3 hq2 sq40 sk300 d64 paged=16 lens=longtail cuda");
  tessera_status status{};
  ASSERT_EQ(gpu.run("", &status), TESSERA_OK) << status.message;
  const tessera_tensors tensors = gpu.mirror.translate(gpu.set.tensors);
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
      expect_wild_metadata_stays_inside(text, wild);
    }
  }
}

TEST(GpuRun, ErrorsBelongToTheirCaller) {
  TESSERA_NEEDS_GPU();
  GpuCase gpu("fwd bf16 b1 hq1 sq64 d64 cuda");
  tessera_status status{};
  ASSERT_EQ(gpu.run("", &status), TESSERA_OK);
  const tessera_tensors tensors = gpu.mirror.translate(gpu.set.tensors);
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
  TESSERA_NEEDS_MANY_BLOCKS();
  for (const char* text : {"fwd bf16 b70000 hq1 sq2 sk3 d8 cuda", "fwd bf16 b1 hq70000 hkv7 sq2 sk3 d8 causal cuda"}) {
    EXPECT_GT(check_on_gpu(text), 0) << text;
  }
}

}  // namespace
}  // namespace tessera::tests

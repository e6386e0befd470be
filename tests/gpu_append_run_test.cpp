// How appends run on CUDA devices: in graphs whose lengths change, on the caller's stream, with attention in one call;
// what is refused before a launch, and what tessera_check_metadata finds.
#include <cuda_runtime_api.h>

#include "append_case.hpp"
#include "baselines/operands.hpp"
#include "gpu_mirror.hpp"

namespace tessera::test {
namespace {

#define SKIP_WITHOUT_GPU() \
  if (const char* reason = no_gpu()) GTEST_SKIP() << "no GPU test here: " << reason

// A decoding step of three sequences in pages, one new row each.
AppendCase decoding_case() {
  const Shape shape{.batch = 3, .seqlen_q = 1, .seqlen_k = 96, .heads_q = 4, .heads_kv = 2, .head_dim_qk = 64};
  AppendCase a;
  a.c = Case::paged(TESSERA_BF16, shape, 16, 18, backwards(18));
  a.c.randomize(61);
  a.c.set_causal();
  a.c.seqused_k = {40, 0, 90};
  a.make_rows(TESSERA_BF16, 1, 62);
  a.make_rotary(64, 96, 0, true);
  return a;
}

// The plan's first run is captured, so the append loads nothing then; lengths and pages change between replays.
TEST(GpuAppendRun, GraphFollowsGrowingLengths) {
  SKIP_WITHOUT_GPU();
  const OnGpu target;
  AppendCase a = decoding_case();
  tessera_tensors host = a.bind();
  const tessera_append_args rows = a.args();
  host.append = &rows;
  tessera_plan* plan = nullptr;
  tessera_status status{};
  ASSERT_EQ(tessera_plan_create(&a.c.problem, &plan, &status), TESSERA_OK) << status.message;
  const Storage workspace(tessera_plan_workspace(plan));
  DeviceCall call(host, workspace.data());
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  const tessera_exec exec{sizeof(tessera_exec), stream, nullptr};
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  void* memory = workspace.bytes() > 0 ? call.mirror.translate(workspace.data()) : nullptr;
  EXPECT_EQ(tessera_plan_run(plan, &call.tensors, memory, workspace.bytes(), &exec, &status), TESSERA_OK)
      << status.message;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
  for (int step = 0; step < 6; ++step) {
    SCOPED_TRACE(step);
    if (step == 3) std::swap(a.c.page_table[0], a.c.page_table[1]);
    AppendCase alone = a;
    alone.c.k = a.c.k.clone(), alone.c.v = a.c.v.clone(), alone.q_rotated = a.q_rotated.clone();
    alone.c.o = a.c.o.clone(), alone.c.lse = a.c.lse.clone();
    ASSERT_EQ(alone.attend(&status), TESSERA_OK) << status.message;
    a.c.o.poison(), a.c.lse.poison();
    call.mirror.upload();
    ASSERT_EQ(cudaGraphLaunch(replay, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    call.mirror.download();
    EXPECT_TRUE(a.c.k.same_bits(alone.c.k) && a.c.v.same_bits(alone.c.v));
    EXPECT_TRUE(a.c.o.same_bits(alone.c.o) && a.c.lse.same_bits(alone.c.lse));
    for (size_t b = 0; b < 3; ++b) ++a.c.seqused_k[b];
  }
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  tessera_plan_destroy(plan);
}

// Attention over what the device appended, against float64; the third sequence's second row has no room, is dropped,
// and its queries see a full cache.
TEST(GpuAppendRun, AttentionSeesTheNewRowsAndAFullCache) {
  SKIP_WITHOUT_GPU();
  const OnGpu target;
  for (const int32_t dtype : kHalfTypes) {
    AppendCase a = serving_case("paged", dtype);
    a.make_rows(dtype, 2, 63);
    a.c.seqused_k = {40, 0, 95};
    a.make_rotary(32, 99, 1, true);
    tessera_status status{};
    ASSERT_EQ(a.attend(&status), TESSERA_OK) << status.message;
    Case seen = a.c;
    seen.q = a.q_rotated;
    seen.seqused_k = {42, 2, 96};
    expect_close(seen, judge(seen));
  }
}

// Everything that attention reads was quantised in its call.
TEST(GpuAppendRun, QuantisedCachesAgainstFloat64) {
  SKIP_WITHOUT_GPU();
  const OnGpu target;
  for (const int32_t cache : {TESSERA_INT8, TESSERA_E4M3}) {
    SCOPED_TRACE(name_of(cache));
    AppendCase a = decoding_case();
    a.c.k = Tensor(cache, a.c.k.dims()), a.c.v = Tensor(cache, a.c.v.dims());
    a.c.seqused_k = {0, 0, 0};
    make_scales(a, 0);
    a.make_packed_rows(TESSERA_F32, {0, 30, 31, 90}, 64);
    a.make_rotary(64, 96, 0, true);
    const tessera_tensors host = a.bind();
    tessera_status status{};
    ASSERT_EQ(a.attend(&status), TESSERA_OK) << status.message;
    Case seen = a.c;
    seen.q = a.q_rotated;
    seen.seqused_k = {30, 1, 59};
    tessera_tensors tensors = seen.bind();
    tensors.k_scale = host.k_scale, tensors.v_scale = host.v_scale;
    core::Problem problem;
    ASSERT_EQ(core::validate(seen.problem, &problem, &status), TESSERA_OK) << status.message;
    const auto comparisons = baselines::compare(problem, tensors);
    EXPECT_TRUE(baselines::worst(comparisons).passed) << baselines::worst(comparisons).max_abs_error;
  }
}

TEST(GpuAppendRun, WhatIsWrongIsRefusedBeforeTheLaunch) {
  SKIP_WITHOUT_GPU();
  const auto expect_refused = [](AppendCase a, int code, const char* words,
                                 const std::function<void(tessera_append_args&)>& change) {
    tessera_problem problem = a.c.problem;
    const tessera_tensors tensors = a.bind();
    problem = a.c.problem;
    problem.device = 0;
    tessera_append_args args = a.args();
    change(args);
    tessera_status status{};  // host pointers: a launch would fault
    EXPECT_EQ(tessera_append(&problem, &tensors, &args, nullptr, &status), code) << status.message;
    EXPECT_NE(std::string(status.message).find(words), std::string::npos) << status.message;
  };
  const auto nothing = [](tessera_append_args&) {};
  AppendCase wide;
  wide.c = Case::dense(TESSERA_F64, {.seqlen_k = 8});
  wide.c.seqused_k = {0};
  wide.make_rows(TESSERA_F64, 1, 1);
  expect_refused(wide, TESSERA_UNSUPPORTED, "k.dtype is f64", nothing);
  expect_refused(decoding_case(), TESSERA_INVALID_ARGUMENT, "rotary_seqlen is 0",
                 [](tessera_append_args& args) { args.rotary_seqlen = 0; });
  expect_refused(decoding_case(), TESSERA_INVALID_ARGUMENT, "k_new_data is NULL",
                 [](tessera_append_args& args) { args.k_new_data = nullptr; });
  expect_refused(decoding_case(), TESSERA_INVALID_ARGUMENT, "overlaps",
                 [](tessera_append_args& args) { args.q_rotated = args.k_cache; });
}

TEST(GpuAppendRun, MetadataAreCheckedOnRequest) {
  SKIP_WITHOUT_GPU();
  const OnGpu target;
  AppendCase a = decoding_case();
  a.make_packed_rows(TESSERA_BF16, {0, 1, 2, 3}, 62);
  const auto check = [&](int code, const char* words) {
    tessera_tensors tensors = a.bind();
    const tessera_append_args rows = a.args();
    tensors.append = &rows;
    tessera_plan* plan = nullptr;
    tessera_status status{};
    ASSERT_EQ(tessera_plan_create(&a.c.problem, &plan, &status), TESSERA_OK) << status.message;
    EXPECT_EQ(gpu_target->check_metadata(plan, tensors, &status), code) << status.message;
    EXPECT_NE(std::string(status.message).find(words), std::string::npos) << status.message;
    tessera_plan_destroy(plan);
  };
  check(TESSERA_OK, "");
  a.c.seqused_k[2] = 96;
  check(TESSERA_INVALID_ARGUMENT, "seqused_k[2] is 96 and 1 new rows");
  a.c.seqused_k[2] = 90, a.cu_seqlens_new[1] = 4;
  check(TESSERA_INVALID_ARGUMENT, "cu_seqlens_new[");
}

}  // namespace
}  // namespace tessera::test

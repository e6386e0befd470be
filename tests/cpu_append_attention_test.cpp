// Appending and attending in one call on the CPU: right against float64, and untouched by what lies beside the used
// slots. That it equals two calls, and caches that grow, are in append_attention_test.cpp.
#include "append_case.hpp"
#include "baselines/kernels.hpp"

namespace tessera::test {
namespace {

// The baselines too see the keys with the new ones: the judge on a case with an append equals the judge after it.
TEST(CpuAppendAttention, TheJudgeSeesTheNewRows) {
  AppendCase a = serving_case("paged", TESSERA_F32);
  Case apart = after_append(a);
  const Judge right = judge(apart);
  const tessera_append_args rows = a.args();
  tessera_tensors tensors = a.bind();
  tensors.append = &rows;
  for (const core::KernelEntry& entry : baselines::kernels()) {
    if (!std::string_view(entry.name).starts_with("cpu.")) continue;
    SCOPED_TRACE(entry.name);
    std::snprintf(a.c.problem.kernel, sizeof a.c.problem.kernel, "%s", entry.name);
    core::Plan plan{};
    tessera_status status{};
    if (core::make_plan(a.c.problem, baselines::kernels(), &plan, &status) != TESSERA_OK) continue;
    const Storage workspace(static_cast<size_t>(plan.launch.workspace_bytes));
    a.c.o.poison(), a.c.lse.poison();
    ASSERT_EQ(core::run_plan(plan, &tensors, workspace.data(), workspace.bytes(), nullptr, &status), TESSERA_OK)
        << status.message;
    apart.o = a.c.o, apart.lse = a.c.lse;
    expect_close(apart, right);
  }
}

TEST(CpuAppendAttention, Int8CacheAgainstFloat64) {
  for (const int32_t dtype : {TESSERA_F32, TESSERA_BF16}) {
    AppendCase a = serving_case("paged", dtype);
    a.c.k = Tensor(TESSERA_INT8, a.c.k.dims()), a.c.v = Tensor(TESSERA_INT8, a.c.v.dims());
    a.c.seqused_k = {0, 0, 0};  // everything that attention reads was quantised here
    a.make_rotary(32, 99, 1, true);
    for (const Tensor* x : {&a.k_new, &a.v_new})
      x->fill([&](int64_t, int64_t i, int64_t h, int64_t e) {
        return static_cast<double>((i * 5 + h * 3 + e * 7) % 41 - 20);
      });  // scale 1: whole numbers as stored, and turned ones rounded
    tessera_status status{};
    ASSERT_EQ(a.attend(&status), TESSERA_OK) << status.message;
    Case apart = after_append(a);
    apart.o = a.c.o, apart.lse = a.c.lse;
    expect_close(apart, judge(apart));
  }
}

// What lies in unused slots and pages changes no bit, also where the new rows end within a page.
TEST(CpuAppendAttention, PoisonBesideTheNewRowsReachesNothing) {
  for (const char* layout : {"dense", "leftpad", "paged"})
    for (const int32_t dtype : {TESSERA_F32, TESSERA_BF16}) {
      SCOPED_TRACE(::testing::Message() << layout << ' ' << name_of(dtype));
      std::vector<std::byte> clean;
      for (const double poison : {0.0, kNaN, kInfinity, -kInfinity}) {
        AppendCase a = serving_case(layout, dtype);
        const Tensor k = a.c.k.clone(), v = a.c.v.clone();
        a.c.k.fill(poison), a.c.v.fill(poison);
        for (int64_t b = 0; b < 3; ++b) {
          const int64_t first = a.c.leftpad.size() != 0 ? a.c.leftpad[static_cast<size_t>(b)] : 0;
          for (int64_t i = first; i < a.c.seqused_k[static_cast<size_t>(b)]; ++i) {
            const auto [outer, row] = a.slot(b, i);
            for (int64_t h = 0; h < 2; ++h) {
              for (int64_t e = 0; e < 32; ++e) a.c.k.set(outer, row, h, e, k.get(outer, row, h, e));
              for (int64_t e = 0; e < 24; ++e) a.c.v.set(outer, row, h, e, v.get(outer, row, h, e));
            }
          }
        }
        tessera_status status{};
        ASSERT_EQ(a.attend(&status), TESSERA_OK) << status.message;
        std::vector<std::byte> bytes = bytes_of(a.c.o), lse = bytes_of(a.c.lse);
        bytes.insert(bytes.end(), lse.begin(), lse.end());
        if (clean.empty()) clean = bytes;
        EXPECT_EQ(bytes, clean) << poison;
      }
    }
}

}  // namespace
}  // namespace tessera::test

// Public bug situations about threads: ggml-org/llama.cpp#19209, #16829 (results that depend on the thread count),
// NVIDIA/TransformerEngine#236 (shared state under concurrent callers).
#include <atomic>
#include <cmath>
#include <thread>

#include "sanitized.hpp"
#include "support.hpp"

namespace tessera::test {
namespace {

std::vector<Case> thread_cases() {
  std::vector<Case> cases;
  for (const int32_t dtype : {TESSERA_F32, TESSERA_BF16}) {
    cases.push_back(Case::dense(dtype, {.seqlen_q = 1, .seqlen_k = 4096}));
    cases.push_back(Case::dense(dtype, {.batch = 2, .seqlen_q = 65, .seqlen_k = 257, .heads_q = 3}));
    cases.push_back(Case::packed(dtype, {0, 1, 40, 40, 170}, {0, 300, 340, 360, 490}, {.heads_q = 4, .heads_kv = 2}));
    cases.back().set_causal();
  }
  for (size_t i = 0; i < cases.size(); ++i) cases[i].randomize(111 + i);
  return cases;
}

TEST(BugThreads, AnyThreadCountGivesTheSameBits) {
  for (Case& c : thread_cases())
    for (const int32_t splits : {0, 1, 5}) {
      SCOPED_TRACE(::testing::Message() << name_of(c.q.dtype()) << " splits " << splits);
      c.problem.num_splits = splits;
      c.problem.threads = 1;
      on_every_row(
          c,
          [&] {
            for (const int32_t threads : {2, 3, 5, 8, 64, 0}) {
              SCOPED_TRACE(::testing::Message() << threads << " threads");
              Case other = c.twin();
              other.problem.threads = threads;
              run_on(other, c.kernel);
              EXPECT_TRUE(other.o.same_bits(c.o));
              EXPECT_TRUE(other.lse.same_bits(c.lse));
            }
          },
          Rows::library);
    }
}

TEST(BugThreads, RepeatedRunsGiveTheSameBits) {
  for (Case& c : thread_cases())
    on_every_row(
        c,
        [&] {
          for (int repeat = 0; repeat < (tests::kSanitized ? 5 : 50); ++repeat) {
            Case again = c.twin();
            again.problem.threads = 8;
            run_on(again, c.kernel);
            ASSERT_TRUE(again.o.same_bits(c.o));
            ASSERT_TRUE(again.lse.same_bits(c.lse));
          }
        },
        Rows::library);
}

// The caller's own executor: runs the tasks backwards, one after the other, on the calling thread.
struct BackwardsExecutor {
  std::atomic<int64_t> tasks{0};
  tessera_executor executor{sizeof(tessera_executor), 8, 0, this, &BackwardsExecutor::parallel};
  tessera_exec exec{sizeof(tessera_exec), nullptr, &executor};

  static void parallel(void* context, int64_t count, void (*task)(void*, int64_t), void* arg) {
    static_cast<BackwardsExecutor*>(context)->tasks += count;
    for (int64_t i = count; i-- > 0;) task(arg, i);
  }
};

TEST(BugThreads, TasksMayRunInAnyOrder) {
  for (Case& c : thread_cases()) {
    c.problem.threads = 8;
    on_every_row(
        c,
        [&] {
          BackwardsExecutor backwards;
          Case other = c.twin();
          run_on(other, c.kernel, {.exec = &backwards.exec});
          EXPECT_TRUE(other.o.same_bits(c.o));
          EXPECT_TRUE(other.lse.same_bits(c.lse));
        },
        Rows::library);
  }
}

TEST(BugThreads, EightCallersAtOnceGetTheirOwnResults) {
  for (const Row& row : kernel_rows(Rows::library)) {
    SCOPED_TRACE(row.name);
    constexpr size_t kCallers = 8;
    struct Caller {
      Case c;
      tessera_tensors tensors;
      Tensor o, lse;
      int mismatches = 0;
    };
    std::vector<Caller> callers;
    bool refused = false;
    for (size_t i = 0; i < kCallers && !refused; ++i) {
      const int32_t dtype = i % 2 == 0 ? TESSERA_F32 : TESSERA_BF16;
      Case c =
          Case::dense(dtype, {.batch = 2, .seqlen_q = 17 + static_cast<int64_t>(i), .seqlen_k = 129, .heads_q = 3});
      c.randomize(121 + i);
      c.problem.threads = 1;
      c.problem.num_splits = static_cast<int32_t>(i % 3);
      tessera_status status{};
      const int code = run(c, row, &status);
      refused = code == TESSERA_UNSUPPORTED;
      if (refused) break;
      ASSERT_EQ(code, TESSERA_OK) << status.message;
      Tensor o = c.o.clone(), lse = c.lse.clone();
      c.problem.threads = 1 + static_cast<int32_t>(i % 4);
      const tessera_tensors tensors = c.bind();
      callers.push_back({c, tensors, o, lse});
    }
    if (refused) continue;
    std::vector<std::thread> threads;
    for (Caller& caller : callers)
      threads.emplace_back([&caller] {
        for (int repeat = 0; repeat < 50; ++repeat) {
          caller.c.o.poison(), caller.c.lse.poison();
          const int code = run_raw(caller.c.problem, caller.tensors, nullptr);
          if (code != TESSERA_OK || !caller.c.o.same_bits(caller.o) || !caller.c.lse.same_bits(caller.lse))
            ++caller.mismatches;
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (const Caller& caller : callers) EXPECT_EQ(caller.mismatches, 0);
  }
}

TEST(BugThreads, OnePlanServesManyThreads) {
  Case c = Case::dense(TESSERA_F32, {.seqlen_q = 33, .seqlen_k = 500, .heads_q = 2});
  c.randomize(131);
  c.problem.num_splits = 3;
  run_on(c);
  const tessera_tensors bound = c.bind();
  tessera_plan* plan = nullptr;
  ASSERT_EQ(tessera_plan_create(&c.problem, &plan, nullptr), TESSERA_OK);
  std::atomic<int> mismatches{0};
  std::vector<std::thread> threads;
  for (int caller = 0; caller < 8; ++caller)
    threads.emplace_back([&] {
      const Tensor o = c.o.clone(), lse = c.lse.clone();
      tessera_tensors tensors = bound;
      tensors.o = o.data(), tensors.lse = lse.data();
      const Storage workspace(tessera_plan_workspace(plan));
      for (int repeat = 0; repeat < 20; ++repeat) {
        o.poison(), lse.poison();
        if (tessera_plan_run(plan, &tensors, workspace.data(), workspace.bytes(), nullptr, nullptr) != TESSERA_OK)
          ++mismatches;
        if (!o.same_bits(c.o) || !lse.same_bits(c.lse)) ++mismatches;
      }
    });
  for (std::thread& thread : threads) thread.join();
  tessera_plan_destroy(plan);
  EXPECT_EQ(mismatches, 0);
}

}  // namespace
}  // namespace tessera::test

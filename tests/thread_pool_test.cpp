// The default executor: every task once, for any count and from any number of callers, in a forked child, in a task.
#include "cpu/thread_pool.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

namespace tessera::cpu {
namespace {

// How often each of `count` tasks ran.
std::vector<int> run_counts(int64_t count) {
  std::vector<std::atomic<int>> ran(static_cast<size_t>(count));
  const auto body = [&](int64_t task) { ran[static_cast<size_t>(task)].fetch_add(1); };
  parallel_tasks(default_executor(), count, body);
  return {ran.begin(), ran.end()};
}

TEST(ThreadPool, RunsEveryTaskOnce) {
  for (const int64_t count : {0, 1, 2, 3, 7, 64, 1000}) {
    for (const int ran : run_counts(count)) ASSERT_EQ(ran, 1) << count;
  }
}

TEST(ThreadPool, ReportsTheAffinityMask) {
  EXPECT_GE(default_executor().threads, 1);
  EXPECT_EQ(default_executor().size, sizeof(tessera_executor));
  EXPECT_EQ(default_executor().threads, affinity_cpus());
}

TEST(ThreadPool, ManyShortJobs) {
  int64_t total = 0;
  for (int round = 0; round < 2000; ++round) {
    std::atomic<int64_t> sum{0};
    const auto body = [&](int64_t task) { sum.fetch_add(task + 1, std::memory_order_relaxed); };
    parallel_tasks(default_executor(), 4, body);
    total += sum.load();
  }
  EXPECT_EQ(total, 2000 * 10);
}

TEST(ThreadPool, ConcurrentCallersShareIt) {
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int caller = 0; caller < 8; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        for (const int ran : run_counts(17)) wrong += ran != 1;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(ThreadPool, TasksMayRunTasks) {
  std::atomic<int> ran{0};
  const auto inner = [&](int64_t) { ran.fetch_add(1); };
  const auto outer = [&](int64_t) { parallel_tasks(default_executor(), 5, inner); };
  parallel_tasks(default_executor(), 9, outer);
  EXPECT_EQ(ran.load(), 45);
}

#if defined(__SANITIZE_THREAD__)
#define TESSERA_TSAN 1
#endif

TEST(ThreadPool, AForkedChildMakesItsOwn) {
#if defined(TESSERA_TSAN)
  GTEST_SKIP() << "ThreadSanitizer does not follow threads started after fork";
#endif
  run_counts(8);  // the parent's workers exist
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    bool good = true;
    for (int round = 0; round < 20; ++round) {
      for (const int ran : run_counts(16)) good = good && ran == 1;
    }
    _exit(good ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  for (const int ran : run_counts(16)) EXPECT_EQ(ran, 1) << "the parent's pool still works";
}

#if defined(__x86_64__)
TEST(ThreadPool, TasksRunInTheDefaultFloatMode) {
  constexpr unsigned kFlush = 0x8040;  // flush to zero, denormals are zero
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | kFlush);
  std::atomic<int> flushed{0};
  const auto body = [&](int64_t) { flushed += (_mm_getcsr() & kFlush) != 0; };
  parallel_tasks(default_executor(), 8, body);
  parallel_tasks(default_executor(), 1, body);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(flushed.load(), 0);
  EXPECT_EQ(after & kFlush, kFlush) << "the caller's mode is restored";
}
#endif

}  // namespace
}  // namespace tessera::cpu

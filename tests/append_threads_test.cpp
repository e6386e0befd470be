// Appending on any number of threads, and from several callers at once; ThreadSanitizer runs this suite.
#include <thread>

#include "append_case.hpp"

namespace tessera::test {
namespace {

// Enough elements for a dozen tasks, 8 key heads; rotary on q and k.
AppendCase large_case(int32_t cache) {
  const Shape shape{.batch = 3, .seqlen_q = 40, .seqlen_k = 64, .heads_q = 16, .heads_kv = 8, .head_dim_qk = 64};
  AppendCase a;
  std::vector<int32_t> table;
  for (int32_t n = 0; n < 12; ++n) table.push_back((n * 5 + 2) % 12);
  a.c = Case::paged(TESSERA_F32, shape, 16, 12, table);
  if (cache == TESSERA_INT8) a.c.k = Tensor(cache, a.c.k.dims()), a.c.v = Tensor(cache, a.c.v.dims());
  a.c.q.fill_random(71);
  a.c.set_causal();
  a.c.seqused_k = {1, 0, 24};
  a.make_rows(TESSERA_F32, 40, 72);
  a.make_rotary(48, 64, 0, true);
  return a;
}

AppendCase copy_of(const AppendCase& a) {
  AppendCase copy = a;
  copy.c.k = a.c.k.clone(), copy.c.v = a.c.v.clone(), copy.q_rotated = a.q_rotated.clone();
  return copy;
}

bool same_bits(const AppendCase& a, const AppendCase& b) {
  return a.c.k.same_bits(b.c.k) && a.c.v.same_bits(b.c.v) && a.q_rotated.same_bits(b.q_rotated);
}

void append(AppendCase& a, int32_t threads) {
  a.c.problem.threads = threads;
  tessera_status status{};
  EXPECT_EQ(a.append(&status), TESSERA_OK) << status.message;
}

// An executor that says it has 64 threads and makes one for each task.
void run_on_threads(void*, int64_t count, void (*task)(void*, int64_t), void* arg) {
  std::vector<std::thread> threads;
  for (int64_t n = 0; n < count; ++n) threads.emplace_back(task, arg, n);
  for (std::thread& thread : threads) thread.join();
}
const tessera_executor kExecutor{sizeof(tessera_executor), 64, 0, nullptr, run_on_threads};

TEST(AppendThreads, AnyThreadCountGivesTheSameBits) {
  const tessera_exec exec{sizeof(tessera_exec), nullptr, &kExecutor};
  for (const int32_t cache : {TESSERA_F32, TESSERA_INT8}) {
    const AppendCase empty = large_case(cache);
    AppendCase once = copy_of(empty);
    append(once, 1);
    for (const int32_t threads : {2, 3, 7, 16, 64, 0}) {
      SCOPED_TRACE(threads);
      AppendCase other = copy_of(empty);
      other.c.problem.threads = threads;
      tessera_status status{};
      ASSERT_EQ(other.append(&status, &exec), TESSERA_OK) << status.message;
      EXPECT_TRUE(same_bits(other, once));
    }
  }
}

// Sequences 0 and 2 write the same slots: the later one's rows stay, on any number of threads.
TEST(AppendThreads, OfSharedSlotsTheLaterSequenceStays) {
  const tessera_exec exec{sizeof(tessera_exec), nullptr, &kExecutor};
  AppendCase a = large_case(TESSERA_F32);
  a.c.seqused_k = {24, 0, 24};
  for (size_t n = 0; n < 4; ++n) a.c.page_table[n] = a.c.page_table[8 + n];
  for (const int32_t threads : {1, 5, 16}) {
    AppendCase shared = copy_of(a);
    shared.c.problem.threads = threads;
    tessera_status status{};
    ASSERT_EQ(shared.append(&status, &exec), TESSERA_OK) << status.message;
    for (int64_t t = 0; t < 40; ++t) {
      const auto [outer, row] = shared.slot(0, 24 + t);
      for (int64_t h = 0; h < 8; ++h) ASSERT_EQ(shared.c.v.get(outer, row, h, 5), shared.v_new.get(2, t, h, 5));
    }
  }
}

TEST(AppendThreads, ConcurrentCallersEachGetTheirOwn) {
  const AppendCase empty = large_case(TESSERA_F32);
  std::vector<AppendCase> right, found;
  for (uint64_t n = 0; n < 4; ++n) {
    right.push_back(copy_of(empty));
    right.back().make_rows(TESSERA_F32, 40, 80 + n);
    found.push_back(copy_of(right.back()));
    append(right.back(), 1);
  }
  std::vector<std::thread> callers;
  for (AppendCase& one : found) callers.emplace_back([&one] { append(one, 0); });
  for (std::thread& caller : callers) caller.join();
  for (size_t n = 0; n < found.size(); ++n) EXPECT_TRUE(same_bits(found[n], right[n]));
}

}  // namespace
}  // namespace tessera::test

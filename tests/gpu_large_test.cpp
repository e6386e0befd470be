// Operands past 2^31 elements on the CUDA rows, with answers known without a judge: K is 0, so every row is the mean of
// the values it sees. Up to 19 GB of device memory; skipped where there is less. Long rows are in bugs_big_test.cpp.
#include <cmath>
#include <cstring>
#include <vector>

#include "gpu_support.hpp"

namespace tessera::tests {
namespace {

// bf16 bit patterns: memset bytes give 0x3f3f, about 0.746.
constexpr uint16_t kOne = 0x3f80, kSet = 0x3f3f, kPoison = 0xffff;

struct DeviceArray {
  explicit DeviceArray(size_t n, int byte) : bytes(n) {
    if (cudaMalloc(&data, n) != cudaSuccess || cudaMemset(data, byte, n) != cudaSuccess) data = nullptr;
  }
  ~DeviceArray() { cudaFree(data); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  void fill(size_t begin, size_t count, uint16_t value) const {
    const std::vector<uint16_t> host(count, value);
    ASSERT_EQ(cudaMemcpy(static_cast<uint16_t*>(data) + begin, host.data(), 2 * count, cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  template <class T>
  T read(size_t index) const {
    T value{};
    EXPECT_EQ(cudaMemcpy(&value, static_cast<const T*>(data) + index, sizeof value, cudaMemcpyDeviceToHost),
              cudaSuccess);
    return value;
  }

  size_t bytes;
  void* data = nullptr;
};

bool has_memory(size_t bytes) {
  size_t free = 0, total = 0;
  return cudaMemGetInfo(&free, &total) == cudaSuccess && free > bytes;
}

void run(const char* text, const DeviceArray& q, const DeviceArray& k, const DeviceArray& v, const DeviceArray& o,
         const DeviceArray& lse) {
  tessera_problem problem;
  tessera_status status{};
  ASSERT_EQ(core::parse_problem(text, &problem, nullptr, &status), TESSERA_OK) << status.message;
  problem.flags |= TESSERA_FLAG_LSE;
  core::Plan plan;
  ASSERT_EQ(core::make_plan(problem, {}, &plan, &status), TESSERA_OK) << status.message;
  tessera_tensors tensors{};
  tensors.size = sizeof tensors;
  tensors.q = q.data;
  tensors.k = k.data;
  tensors.v = v.data;
  tensors.o = o.data;
  tensors.lse = lse.data;
  const auto bytes = static_cast<size_t>(plan.launch.workspace_bytes);
  const DeviceArray workspace(bytes, 0xff);
  ASSERT_EQ(core::run_plan(plan, &tensors, workspace.data, bytes, nullptr, &status), TESSERA_OK) << status.message;
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST(GpuBugsBig, OffsetsPast31Bits) {
  TESSERA_NEEDS_GPU();
  constexpr size_t kBatch = 9000, kRow = size_t{128} * 16 * 128;  // 2.36e9 elements a tensor
  if (!has_memory(4 * 2 * kBatch * kRow + (size_t{1} << 30))) GTEST_SKIP() << "needs 20 GB of free device memory";
  const DeviceArray q(2 * kBatch * kRow, 0x3f), k(2 * kBatch * kRow, 0), v(2 * kBatch * kRow, 0x3f),
      o(2 * kBatch * kRow, 0xff), lse(4 * kBatch * 16 * 128, 0xff);
  v.fill((kBatch - 1) * kRow, kRow, kOne);
  run("fwd bf16 b9000 hq16 sq128 d128 cuda", q, k, v, o, lse);
  for (const size_t row : {size_t{0}, size_t{8191}, size_t{8192}, kBatch - 2}) {
    EXPECT_EQ(o.read<uint16_t>(row * kRow), kSet) << row;
    EXPECT_EQ(o.read<uint16_t>(row * kRow + kRow - 1), kSet) << row;
  }
  EXPECT_EQ(o.read<uint16_t>((kBatch - 1) * kRow), kOne);
  EXPECT_EQ(o.read<uint16_t>(kBatch * kRow - 1), kOne);
  EXPECT_NEAR(lse.read<float>(kBatch * 16 * 128 - 1), std::log(128.0), 1e-5);
}

// Batch strides past 32 bits in every operand, all in one allocation of 16 GiB.
TEST(GpuBugsBig, BatchStrideOf2To33Elements) {
  TESSERA_NEEDS_GPU();
  constexpr int64_t kStride = int64_t{1} << 33;
  constexpr size_t kSpan = 1 << 20;  // elements between q, k, v and o
  constexpr size_t kBytes = 2 * (static_cast<size_t>(kStride) + 4 * kSpan);
  if (!has_memory(kBytes + (size_t{1} << 30))) GTEST_SKIP() << "needs 18 GB of free device memory";
  const DeviceArray all(kBytes, 0xff), lse(4 * 2 * 2 * 5, 0xff);
  const auto operand = [&](size_t which) { return static_cast<uint16_t*>(all.data) + which * kSpan; };
  constexpr size_t kQueryRow = 5 * 2 * 64, kKeyRow = 9 * 2 * 64;
  for (size_t b = 0; b < 2; ++b) {
    const size_t row = b * static_cast<size_t>(kStride);
    all.fill(row, kQueryRow, kOne);
    all.fill(kSpan + row, kKeyRow, 0);
    all.fill(2 * kSpan + row, kKeyRow, b == 0 ? kOne : kSet);
  }
  tessera_problem problem;
  tessera_status status{};
  ASSERT_EQ(core::parse_problem("fwd bf16 b2 hq2 sq5 sk9 d64 cuda", &problem, nullptr, &status), TESSERA_OK);
  for (tessera_desc* desc : {&problem.q, &problem.k, &problem.v, &problem.o}) {
    const int64_t strides[] = {kStride, 128, 64, 1};
    std::memcpy(desc->stride, strides, sizeof strides);
  }
  problem.flags |= TESSERA_FLAG_LSE;
  core::Plan plan;
  ASSERT_EQ(core::make_plan(problem, {}, &plan, &status), TESSERA_OK) << status.message;
  tessera_tensors tensors{};
  tensors.size = sizeof tensors;
  tensors.q = operand(0);
  tensors.k = operand(1);
  tensors.v = operand(2);
  tensors.o = operand(3);
  tensors.lse = lse.data;
  ASSERT_EQ(core::run_plan(plan, &tensors, nullptr, 0, nullptr, &status), TESSERA_OK) << status.message;
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (size_t b = 0; b < 2; ++b) {
    const size_t row = 3 * kSpan + b * static_cast<size_t>(kStride);
    for (const size_t element : {size_t{0}, kQueryRow - 1})
      EXPECT_EQ(all.read<uint16_t>(row + element), b == 0 ? kOne : kSet);
    EXPECT_EQ(all.read<uint16_t>(row + kQueryRow), kPoison) << "wrote past the rows";
  }
}

// New rows behind 2^23 slots of 256 elements.
TEST(GpuBugsBig, AppendPast31Bits) {
  TESSERA_NEEDS_GPU();
  constexpr int64_t kSlots = (int64_t{1} << 23) + 8, kDim = 256;
  constexpr size_t kBytes = size_t{2} * kSlots * kDim;
  if (!has_memory(2 * kBytes + (size_t{1} << 30))) GTEST_SKIP() << "needs 10 GB of free device memory";
  const DeviceArray k(kBytes, 0xff), v(kBytes, 0xff), rows(2 * 3 * kDim, 0x3f), used(4, 0);
  const auto length = static_cast<int32_t>(kSlots - 2);
  ASSERT_EQ(cudaMemcpy(used.data, &length, sizeof length, cudaMemcpyHostToDevice), cudaSuccess);
  tessera_problem problem;
  tessera_status status{};
  ASSERT_EQ(core::parse_problem("fwd bf16 b1 hq1 sq1 d256 cuda", &problem, nullptr, &status), TESSERA_OK);
  problem.seqlen_k = kSlots;
  problem.flags |= TESSERA_FLAG_SEQUSED_K;
  tessera_tensors tensors{};
  tensors.size = sizeof tensors;
  tensors.seqused_k = static_cast<const int32_t*>(used.data);
  tessera_append_args args{};
  args.size = sizeof args;
  args.seqlen_new = 3;  // the third has no room
  args.k_new_data = args.v_new_data = rows.data;
  args.k_cache = k.data, args.v_cache = v.data;
  ASSERT_EQ(tessera_append(&problem, &tensors, &args, nullptr, &status), TESSERA_OK) << status.message;
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (const DeviceArray* cache : {&k, &v}) {
    const auto first = static_cast<size_t>(length) * kDim;
    EXPECT_EQ(cache->read<uint16_t>(first - 1), kPoison);
    for (const size_t element : {first, first + 2 * kDim - 1}) EXPECT_EQ(cache->read<uint16_t>(element), kSet);
  }
}

}  // namespace
}  // namespace tessera::tests

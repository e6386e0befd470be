// Problems past 2^31 elements and millions of keys on the CUDA rows, with answers known without a judge: K is 0, so
// every row is the mean of the values it sees. Up to 19 GB of device memory; skipped where there is less.
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
  ASSERT_EQ(core::run_plan(plan, &tensors, nullptr, 0, nullptr, &status), TESSERA_OK) << status.message;
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST(GpuLarge, OffsetsPast31Bits) {
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

TEST(GpuLarge, FourMillionKeys) {
  TESSERA_NEEDS_GPU();
  constexpr size_t kKeys = 4194304, kDim = 128, kQueries = 2048 * 8;
  if (!has_memory(size_t{4} << 30)) GTEST_SKIP() << "needs 4 GB of free device memory";
  const DeviceArray q(2 * kQueries * kDim, 0x3f), k(2 * kKeys * kDim, 0), v(2 * kKeys * kDim, 0),
      o(2 * kQueries * kDim, 0xff), lse(4 * kQueries, 0xff);
  v.fill((kKeys - 1024) * kDim, 1024 * kDim, kOne);
  run("fwd bf16 b1 hq8 hkv1 sq2048 sk4194304 d128 causal cuda", q, k, v, o, lse);
  EXPECT_EQ(o.read<uint16_t>(kQueries * kDim - 1), 0x3980);  // 2^-12
  EXPECT_NEAR(lse.read<float>(kQueries - 1), 15.249238, 2e-5);
  EXPECT_NE(o.read<uint16_t>(0), kPoison);
}

// Positions past 2^15 and 2^16; the sums of long uniform rows.
TEST(GpuLarge, LongUniformRows) {
  TESSERA_NEEDS_GPU();
  const struct {
    size_t keys;
    double o, lse;
  } rows[] = {{33728, 0.028463, 10.426084}, {70000, 0.531886, 11.156251}};
  for (const auto& row : rows) {
    const DeviceArray q(2 * 64, 0), k(2 * row.keys * 64, 0), v(2 * row.keys * 64, 0), o(2 * 64, 0xff), lse(4, 0xff);
    v.fill(size_t{32768} * 64, (row.keys - 32768) * 64, kOne);
    run(("fwd bf16 b1 hq1 sq1 sk" + std::to_string(row.keys) + " d64 cuda").c_str(), q, k, v, o, lse);
    const uint32_t bits = uint32_t{o.read<uint16_t>(63)} << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    EXPECT_NEAR(value, row.o, row.o / 256);
    EXPECT_NEAR(lse.read<float>(0), row.lse, 2e-5);
  }
}

}  // namespace
}  // namespace tessera::tests

// The emulator's Hopper: a pipeline of TMA, mbarriers and wgmma is right under every order, and each kind of mistake in
// it gives wrong results under some or ends the run with a message that names it.
#include <cuda/ptx>

#include <random>
#include <vector>

#include "cuda/ptx/copy_async.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/control.cuh"
#include "cuda/sm90/tensor_maps.hpp"
#include "device.hpp"
#include "gpu_encodings.hpp"
#include "half.hpp"
#include "launch.hpp"

namespace tessera::tests {
namespace {

namespace cuda_ptx = ::cuda::ptx;
namespace ptx = cuda::ptx;
using cuda::sm90::Ring;
using cuda::sm90::wait;

constexpr int kSeeds = 24, kTiles = 5, kTileBytes = 64 * 128, kStages = 2;

enum class Mistake {
  none,
  waits_late_for_the_tile,
  early_release,
  no_wait_for_the_product,
  never_waits,
  writes_to_accumulators,
  no_fence,
  expects_too_little,
  expects_too_much,
  releases_twice,
};

struct Pipeline {
  uint64_t full[kStages], empty[kStages];
};

// d [64, 64] = sum of x x^T over kTiles tiles x [64, 64] of bf16, by a warpgroup, from a producer warp.
template <Mistake kMistake>
__global__ void sum_products(const __grid_constant__ CUtensorMap map, float* out) {
  extern __shared__ __align__(1024) char shared[];
  auto& pipeline = *reinterpret_cast<Pipeline*>(shared + kStages * kTileBytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      cuda_ptx::mbarrier_init(&pipeline.full[i], 1);
      cuda_ptx::mbarrier_init(&pipeline.empty[i], 4);
    }
    cuda_ptx::fence_mbarrier_init(cuda_ptx::sem_release, cuda_ptx::scope_cluster);
  }
  __syncthreads();
  Ring<kStages> ring;
  if (threadIdx.x >= 128) {
    if (threadIdx.x != 128) return;
    for (int tile = 0; tile < kTiles; ++tile) {
      wait(pipeline.empty[ring.stage], ring.phase ^ 1);
      uint64_t* const full = &pipeline.full[ring.stage];
      constexpr int kWrong = kMistake == Mistake::expects_too_little ? -kTileBytes / 2
                             : kMistake == Mistake::expects_too_much ? 16
                                                                     : 0;
      cuda_ptx::mbarrier_arrive_expect_tx(cuda_ptx::sem_release, cuda_ptx::scope_cta, cuda_ptx::space_shared, full,
                                          kTileBytes + kWrong);
      for (int half = 0; half < 2; ++half) {
        const int32_t at[4] = {0, tile * 64 + half * 32, 0, 0};
        cuda_ptx::cp_async_bulk_tensor(cuda_ptx::space_cluster, cuda_ptx::space_global,
                                       shared + ring.stage * kTileBytes + half * kTileBytes / 2, &map, at, full);
      }
      ring.advance();
    }
    return;
  }
  float d[8][4];
  const auto release = [&] {
    if (threadIdx.x % 32 == 0) cuda_ptx::mbarrier_arrive(&pipeline.empty[ring.stage]);
  };
  for (int tile = 0; tile < kTiles; ++tile) {
    constexpr bool kLate = kMistake == Mistake::waits_late_for_the_tile;
    if (!kLate) wait(pipeline.full[ring.stage], ring.phase);
    if (kMistake != Mistake::no_fence || tile == 0) ptx::wgmma_fence();
    const uint64_t x = ptx::matrix_descriptor<128>(ptx::shared_address(shared) + ring.stage * kTileBytes, 16);
    for (int step = 0; step < 4; ++step)
      ptx::wgmma_shared<ptx::HalfType::bf16, 64>(d, x + 2 * step, x + 2 * step, tile != 0 || step != 0);
    ptx::wgmma_commit();
    if (kMistake == Mistake::early_release) release();
    if (kMistake == Mistake::writes_to_accumulators && tile == 1) d[3][1] = 0;
    const bool last = tile + 1 == kTiles;
    if (!last || (kMistake != Mistake::no_wait_for_the_product && kMistake != Mistake::never_waits))
      ptx::wgmma_wait<0>();
    if (kLate) wait(pipeline.full[ring.stage], ring.phase);
    if (kMistake != Mistake::early_release) release();
    if (kMistake == Mistake::releases_twice) release();
    ring.advance();
  }
  for (int n = 0; n < 8; ++n) {
    for (int e = 0; e < 4; ++e) out[(threadIdx.x * 8 + n) * 4 + e] = d[n][e];
  }
  if (kMistake == Mistake::no_wait_for_the_product) ptx::wgmma_wait<0>();
}

// How often of kSeeds the sums are right.
template <Mistake kMistake>
int times_right() {
  const Managed<uint16_t> x(static_cast<size_t>(kTiles * 64 * 64));
  std::vector<int> numbers;
  std::mt19937 random(1);
  for (size_t i = 0; i < x.size(); ++i) {
    numbers.push_back(static_cast<int>(random() % 9) - 4);
    x[i] = emulator::to_bf16(static_cast<float>(numbers[i]));
  }
  std::vector<float> expected;
  for (int i = 0; i < 128 * 32; ++i) {
    const int thread = i / 32, n = i / 4 % 8, e = i % 4, lane = thread % 32;
    const int row = thread / 32 * 16 + lane / 4 + e / 2 * 8, column = 8 * n + lane % 4 * 2 + e % 2;
    int sum = 0;
    for (int tile = 0; tile < kTiles; ++tile) {
      const int* const first = numbers.data() + tile * 64 * 64;
      for (int k = 0; k < 64; ++k) sum += first[row * 64 + k] * first[column * 64 + k];
    }
    expected.push_back(static_cast<float>(sum));
  }
  EXPECT_EQ(cuda::sm90::load_encoder(), cudaSuccess);
  CUtensorMap map{};
  EXPECT_EQ(cuda::sm90::encode_tensor_map({x.data(), 4, {64, kTiles * 64, 1, 1}, {1, 64, 0, 0}, {64, 32, 1, 1}},
                                          TESSERA_BF16, 128, &map),
            cudaSuccess);
  int right = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    emulator::set_seed(static_cast<uint64_t>(seed));
    const Managed<float> out(128 * 32);
    launch(sum_products<kMistake>, 1, 160, kStages * kTileBytes + 64, map, out.data());
    right += std::equal(expected.begin(), expected.end(), out.data());
  }
  return right;
}

class EmulatorHopper : public ::testing::Test {
 protected:
  void SetUp() override {
    if (emulator::architecture() < 90) GTEST_SKIP() << "needs TESSERA_EMULATED_ARCH=90";
  }
};
using EmulatorHopperDeathTest = EmulatorHopper;

TEST_F(EmulatorHopper, APipelineIsRightInEveryOrder) { EXPECT_EQ(times_right<Mistake::none>(), kSeeds); }

TEST_F(EmulatorHopper, ATileThatIsNotWaitedForShows) {
  const int right = times_right<Mistake::waits_late_for_the_tile>();
  EXPECT_LT(right, kSeeds);
}

TEST_F(EmulatorHopper, AStageReleasedTooEarlyShows) {
  const int right = times_right<Mistake::early_release>();
  EXPECT_GT(right, 0);
  EXPECT_LT(right, kSeeds);
}

TEST_F(EmulatorHopper, AProductReadBeforeItsWaitShows) {
  EXPECT_EQ(times_right<Mistake::no_wait_for_the_product>(), 0);
}

TEST_F(EmulatorHopperDeathTest, MistakesAboutProducts) {
  EXPECT_DEATH(times_right<Mistake::never_waits>(), "ended with a wgmma that it never waited for");
  EXPECT_DEATH(times_right<Mistake::writes_to_accumulators>(), "accumulators were written to while a wgmma");
  EXPECT_DEATH(times_right<Mistake::no_fence>(), "no wgmma.fence.*\n  at .*hopper_test.cu");
}

TEST_F(EmulatorHopperDeathTest, MistakesAboutPhases) {
  EXPECT_DEATH(times_right<Mistake::expects_too_little>(), "expected too few bytes|bytes more than phase");
  EXPECT_DEATH(times_right<Mistake::expects_too_much>(),
               "deadlock.*\n.*wait in mbarrier.try_wait .*for the mbarrier at byte 16[0-9]*.*lacks 0 of 1 arrivals, 16 "
               "bytes");
  EXPECT_DEATH(times_right<Mistake::releases_twice>(), "1 arrivals at the mbarrier|deadlock");
}

// --- forms of wgmma that are not the forward's, and stmatrix ---

// d = a b of a [64, 16] from x and b [16, 64] from y, each stored row by row: as it is read (transposed or not).
template <bool kTransposeA, bool kTransposeB>
__global__ void product_of_forms(const uint16_t* x, const uint16_t* y, float* out) {
  extern __shared__ __align__(1024) char shared[];
  // Rows of 64 elements: 64 rows of 16 used where the operand is K-major, 16 rows of 64 where it is not.
  for (int tile = 0; tile < 2; ++tile) {
    for (uint32_t i = threadIdx.x; i < 64 * 64; i += 128) {
      const uint32_t row = i / 64, column = i % 64;
      const uint32_t at = row * 128 + ((column / 8 ^ row % 8) * 16) + column % 8 * 2;
      *reinterpret_cast<uint16_t*>(shared + tile * kTileBytes + at) = (tile == 0 ? x : y)[i];
    }
  }
  cuda_ptx::fence_proxy_async(cuda_ptx::space_shared);
  __syncthreads();
  float d[8][4];
  const uint32_t first = ptx::shared_address(shared);
  ptx::wgmma_fence();
  ptx::wgmma_shared<ptx::HalfType::bf16, 64, kTransposeA, kTransposeB>(
      d, ptx::matrix_descriptor<128>(first, 16), ptx::matrix_descriptor<128>(first + kTileBytes, 16), 0);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  for (int n = 0; n < 8; ++n) {
    for (int e = 0; e < 4; ++e) out[(threadIdx.x * 8 + n) * 4 + e] = d[n][e];
  }
}

template <bool kTransposeA, bool kTransposeB>
void check_form() {
  const Managed<uint16_t> x(64 * 64), y(64 * 64);
  std::vector<int> a, b;
  std::mt19937 random(2);
  for (size_t i = 0; i < x.size(); ++i) {
    a.push_back(static_cast<int>(random() % 9) - 4);
    b.push_back(static_cast<int>(random() % 9) - 4);
    x[i] = emulator::to_bf16(static_cast<float>(a[i]));
    y[i] = emulator::to_bf16(static_cast<float>(b[i]));
  }
  const Managed<float> out(128 * 32);
  launch(product_of_forms<kTransposeA, kTransposeB>, 1, 128, 2 * kTileBytes, x.data(), y.data(), out.data());
  Differences differences;
  for (int i = 0; i < 128 * 32; ++i) {
    const int thread = i / 32, n = i / 4 % 8, e = i % 4, lane = thread % 32;
    const int row = thread / 32 * 16 + lane / 4 + e / 2 * 8, column = 8 * n + lane % 4 * 2 + e % 2;
    int sum = 0;
    for (int k = 0; k < 16; ++k) {
      const int from_a = kTransposeA ? k * 64 + row : row * 64 + k,
                from_b = kTransposeB ? k * 64 + column : column * 64 + k;
      sum += a[static_cast<size_t>(from_a)] * b[static_cast<size_t>(from_b)];
    }
    differences.compare(out[static_cast<size_t>(i)], static_cast<float>(sum), row, column);
  }
}

TEST_F(EmulatorHopper, ProductsOfEveryForm) {
  check_form<false, false>();
  check_form<true, false>();
  check_form<false, true>();
  check_form<true, true>();
}

// A 16 x 16 tile whose element (row, column) is 16 row + column, from the fragments of mma's A, and its transpose.
template <bool kTranspose>
__global__ void store_matrices(uint16_t* out) {
  extern __shared__ __align__(1024) char shared[];
  const uint32_t lane = threadIdx.x, row = lane / 4, column = lane % 4 * 2;
  uint32_t r[4];
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t value = (row + i % 2 * 8) * 16 + column + i / 2 * 8;
    r[i] = value | (value + 1) << 16;
  }
  const uint32_t matrix = lane / 8, down = kTranspose ? matrix / 2 : matrix % 2,
                 along = kTranspose ? matrix % 2 : matrix / 2;
  const uint32_t to = ptx::shared_address(shared) + (down * 8 + lane % 8) * 32 + along * 16;
  if constexpr (kTranspose) {
    ptx::stmatrix_x4_trans(to, r);
  } else {
    ptx::stmatrix_x4(to, r);
  }
  __syncwarp();
  for (uint32_t i = lane; i < 256; i += 32) out[i] = reinterpret_cast<uint16_t*>(shared)[i];
}

TEST_F(EmulatorHopper, MatricesAreStoredAsTheyAreAndTransposed) {
  const Managed<uint16_t> out(256), transposed(256);
  launch(store_matrices<false>, 1, 32, 512, out.data());
  launch(store_matrices<true>, 1, 32, 512, transposed.data());
  Differences differences;
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 16; ++column) {
      const auto i = static_cast<size_t>(row * 16 + column), t = static_cast<size_t>(column * 16 + row);
      differences.compare(int{out[i]}, row * 16 + column, row, column);
      differences.compare(int{transposed[t]}, row * 16 + column, row, column);
    }
  }
}

// --- setmaxnreg ---

template <int kLast>
__global__ void take_registers() {
  if (threadIdx.x < 128) {
    if (kLast == 224 || threadIdx.x < 96) ptx::shrink_registers<56>();
  } else {
    ptx::grow_registers<kLast>();
  }
}
TEST_F(EmulatorHopperDeathTest, RegistersThatAreNotThere) {
  launch(take_registers<224>, 1, 384, 0);
  EXPECT_DEATH(launch(take_registers<232>, 1, 384, 0), "setmaxnreg that not all warps of warpgroup 0 executed");
}

}  // namespace
}  // namespace tessera::tests

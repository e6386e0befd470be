// The emulator itself: right kernels give right results under every order, and each kind of mistake ends the run with a
// message that names it.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <vector>

#include "cuda/ptx/barrier.cuh"
#include "cuda/ptx/copy_async.cuh"
#include "cuda/ptx/math.cuh"
#include "cuda/ptx/mma.cuh"
#include "emulator/ptx/atomic.hpp"

namespace tessera::test_kernels {

namespace ptx = cuda::ptx;

constexpr int kSeeds = 32;

// Device memory of `count` ints, all ones in every bit.
struct Ints {
  explicit Ints(size_t n) : count(n) { EXPECT_EQ(cudaMalloc(&data, 4 * n), cudaSuccess); }
  ~Ints() { cudaFree(data); }
  Ints(const Ints&) = delete;
  Ints& operator=(const Ints&) = delete;
  std::vector<int> read() const {
    std::vector<int> host(count);
    EXPECT_EQ(cudaMemcpy(host.data(), data, 4 * count, cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
  }
  void write(const std::vector<int>& host) const {
    EXPECT_EQ(cudaMemcpy(data, host.data(), 4 * host.size(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  size_t count;
  int* data = nullptr;
};

template <class... Parameters>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                   std::type_identity_t<Parameters>... values) {
  void* arguments[] = {&values..., nullptr};
  return cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, nullptr);
}

// Whether `run` gives what it should under every one of kSeeds orders, under some, or under none.
enum class Holds { always, sometimes, never };
Holds over_seeds(const std::function<bool()>& run) {
  int held = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    emulator::set_seed(static_cast<uint64_t>(seed));
    held += run();
  }
  return held == kSeeds ? Holds::always : (held == 0 ? Holds::never : Holds::sometimes);
}

// Every thread gives its number to the next one of its block through shared memory.
template <bool kBarrier>
__global__ void pass_on(int* out) {
  extern __shared__ __align__(128) char shared[];
  int* const numbers = reinterpret_cast<int*>(shared);
  numbers[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (kBarrier) __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = numbers[(threadIdx.x + 1) % blockDim.x];
}
template <bool kBarrier>
Holds passes_on() {
  return over_seeds([] {
    const Ints out(3 * 96);
    EXPECT_EQ(launch(pass_on<kBarrier>, 3, 96, 96 * 4, out.data), cudaSuccess);
    const std::vector<int> found = out.read();
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i] != static_cast<int>((i + 1) % 96)) return false;
    }
    return true;
  });
}
TEST(Emulator, BarriersOrderSharedMemory) { EXPECT_EQ(passes_on<true>(), Holds::always); }
TEST(Emulator, AMissingBarrierShows) { EXPECT_EQ(passes_on<false>(), Holds::never); }

// The same within a warp, by __syncwarp.
template <bool kSync>
__global__ void reverse_lanes(int* out) {
  __shared__ int numbers[32];
  numbers[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (kSync) __syncwarp();
  out[threadIdx.x] = numbers[31 - threadIdx.x];
}
template <bool kSync>
Holds reverses() {
  return over_seeds([] {
    const Ints out(32);
    EXPECT_EQ(launch(reverse_lanes<kSync>, 1, 32, 0, out.data), cudaSuccess);
    const std::vector<int> found = out.read();
    for (size_t i = 0; i < 32; ++i) {
      if (found[i] != static_cast<int>(31 - i)) return false;
    }
    return true;
  });
}
TEST(Emulator, SyncwarpOrdersSharedMemory) { EXPECT_EQ(reverses<true>(), Holds::always); }
TEST(Emulator, AMissingSyncwarpShows) { EXPECT_EQ(reverses<false>(), Holds::never); }

// Two tiles of 512 bytes in two groups; kWait groups may be open when the first is read, and the second overwrites it
// where kBarrier is missing.
template <int kWait>
__global__ void copy_tile(const int* in, int* out) {
  extern __shared__ __align__(128) char shared[];
  const uint32_t to = ptx::shared_address(shared) + 16 * threadIdx.x;
  ptx::copy_async_16(to, in + 4 * threadIdx.x, 16);
  ptx::copy_async_commit();
  ptx::copy_async_16(to + 512, in, 0);
  ptx::copy_async_commit();
  ptx::copy_async_wait<kWait>();
  __syncthreads();
  const int* const numbers = reinterpret_cast<const int*>(shared);
  for (unsigned i = threadIdx.x; i < 128; i += 32) out[i] = numbers[i];
  if (kWait == 0 && numbers[128 + threadIdx.x] != 0) out[0] = -2;
}
template <int kWait>
Holds copies() {
  return over_seeds([] {
    const Ints in(128), out(128);
    std::vector<int> numbers(128);
    std::iota(numbers.begin(), numbers.end(), 1);
    in.write(numbers);
    EXPECT_EQ(launch(copy_tile<kWait>, 1, 32, 1024, in.data, out.data), cudaSuccess);
    return out.read() == numbers;
  });
}
TEST(Emulator, CopiesLandWhenTheyAreWaitedFor) {
  EXPECT_EQ(copies<0>(), Holds::always);
  EXPECT_EQ(copies<1>(), Holds::always);
}
TEST(Emulator, AMissingWaitShows) { EXPECT_EQ(copies<2>(), Holds::sometimes); }

// Warp 1 reads a tile that warp 0 copies over: right only behind a barrier.
template <bool kBarrier>
__global__ void overwrite(const int* in, int* out) {
  extern __shared__ __align__(128) char shared[];
  int* const numbers = reinterpret_cast<int*>(shared);
  if (threadIdx.x < 32) {
    for (int i = 0; i < 4; ++i) numbers[threadIdx.x * 4 + i] = 7;
  }
  __syncthreads();
  if (threadIdx.x >= 32) out[threadIdx.x - 32] = numbers[threadIdx.x * 4 - 128];
  if (kBarrier) __syncthreads();
  if (threadIdx.x < 32) ptx::copy_async_16(ptx::shared_address(shared) + 16 * threadIdx.x, in, 16);
  ptx::copy_async_commit();
  ptx::copy_async_wait<0>();
}
template <bool kBarrier>
Holds reads_before() {
  return over_seeds([] {
    const Ints in(4), out(32);
    in.write({1, 1, 1, 1});
    EXPECT_EQ(launch(overwrite<kBarrier>, 1, 64, 512, in.data, out.data), cudaSuccess);
    return out.read() == std::vector<int>(32, 7);
  });
}
TEST(Emulator, ATileIsKeptUntilTheBarrier) { EXPECT_EQ(reads_before<true>(), Holds::always); }
TEST(Emulator, ATileOverwrittenTooEarlyShows) { EXPECT_EQ(reads_before<false>(), Holds::sometimes); }

// Shared memory of both kinds holds garbage when a block starts, also where the block before wrote.
__global__ void read_unwritten(int* out) {
  extern __shared__ __align__(128) char shared[];
  __shared__ int variable;
  out[2 * blockIdx.x] = reinterpret_cast<int*>(shared)[8];
  out[2 * blockIdx.x + 1] = variable;
  reinterpret_cast<int*>(shared)[8] = variable = 5;
}
TEST(Emulator, SharedMemoryStartsAsGarbage) {
  const Ints out(6);
  ASSERT_EQ(launch(read_unwritten, 3, 1, 64, out.data), cudaSuccess);
  EXPECT_EQ(out.read(), std::vector<int>(6, -1));
}

__global__ void take_number(unsigned* counter, int* out) {
  out[atomicAdd(counter, 1u)] = static_cast<int>(threadIdx.x);
}
TEST(Emulator, AtomicsCountEveryThread) {
  const Ints counter(1), out(128);
  counter.write({0});
  ASSERT_EQ(launch(take_number, 2, 64, 0, reinterpret_cast<unsigned*>(counter.data), out.data), cudaSuccess);
  std::vector<int> found = out.read();
  EXPECT_EQ(counter.read()[0], 128);
  EXPECT_EQ(std::accumulate(found.begin(), found.end(), 0), 2 * 63 * 64 / 2);
}

// --- mistakes that end the run ---

using EmulatorDeathTest = ::testing::Test;

__global__ void barrier_of_some() {
  if (threadIdx.x < 40) __syncthreads();
}
TEST_F(EmulatorDeathTest, ABarrierThatNotAllReach) {
  EXPECT_DEATH(launch(barrier_of_some, 1, 64, 0),
               "deadlock.*\n.*threads 0 to 39 wait in __syncthreads .*kernels_test.cu:[0-9]+.*\n.*40 to 63 have ended");
}

__global__ void barrier_at_two_places() {
  if (threadIdx.x < 16)
    __syncthreads();
  else
    __syncthreads();
}
TEST_F(EmulatorDeathTest, ABarrierInTwoPlacesOfAWarp) {
  EXPECT_DEATH(launch(barrier_at_two_places, 1, 32, 0), "barrier 0 by lanes of a warp whose others came to it at line");
}

__global__ void product_of_some(float* out) {
  float d[4] = {};
  const uint32_t a[4] = {};
  if (threadIdx.x != 7) ptx::mma_m16n8k16_f16(d, a, 0, 0);
  __syncwarp();
  out[threadIdx.x] = d[0];
}
TEST_F(EmulatorDeathTest, AWarpInstructionThatSomeLanesDoNotReach) {
  const Ints out(32);
  EXPECT_DEATH(launch(product_of_some, 1, 32, 0, reinterpret_cast<float*>(out.data)),
               "by lane [0-9]+, while lanes [0-9a-f]+ of its warp wait in");
}

__global__ void shuffle_with_the_ended(int* out) {
  if (threadIdx.x >= 8) return;
  out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1);
}
TEST_F(EmulatorDeathTest, AShuffleWithLanesThatHaveEnded) {
  const Ints out(8);
  EXPECT_DEATH(launch(shuffle_with_the_ended, 1, 32, 0, out.data), "have ended or do not exist|deadlock");
}

__global__ void load_at(uint32_t offset) {
  extern __shared__ __align__(128) char shared[];
  uint32_t r[4];
  ptx::ldmatrix_x4(r, ptx::shared_address(shared) + offset);
}
TEST_F(EmulatorDeathTest, SharedAddressesOutOfRangeOrMisaligned) {
  EXPECT_DEATH(launch(load_at, 1, 32, 512, 512),
               "ldmatrix at byte 512 of shared memory; the launch asked for 512 bytes");
  EXPECT_DEATH(launch(load_at, 1, 32, 512, 0u - 16), "ldmatrix at byte -16 of shared memory");
  EXPECT_DEATH(launch(load_at, 1, 32, 512, 8), "ldmatrix at byte 8 of shared memory, which is no multiple of 16");
}

__global__ void copy_from(const char* from) {
  extern __shared__ __align__(128) char shared[];
  ptx::copy_async_16(ptx::shared_address(shared), from, 16);
}
TEST_F(EmulatorDeathTest, CopiesFromMisalignedAddresses) {
  const Ints in(8);
  EXPECT_DEATH(launch(copy_from, 1, 1, 16, reinterpret_cast<const char*>(in.data) + 4), "cp.async.*no multiple of 16");
}

__global__ void store_shared(int index) {
  extern __shared__ __align__(128) char shared[];
  reinterpret_cast<volatile int*>(shared)[index] = 1;
}
TEST_F(EmulatorDeathTest, StoresBehindTheSharedMemoryOfTheLaunch) {
  EXPECT_DEATH(launch(store_shared, 1, 1, 512, 128), "wrote byte 512 of shared memory; the launch asked for 512 bytes");
  EXPECT_DEATH(launch(store_shared, 1, 1, 512, 5000), "access to byte 20000 of shared memory");
}

__global__ void load_vector(const char* from, uint4* out) { *out = *reinterpret_cast<const uint4*>(from); }
TEST_F(EmulatorDeathTest, MisalignedVectors) {
  const Ints in(8), out(4);
  EXPECT_DEATH(
      launch(load_vector, 1, 1, 0, reinterpret_cast<const char*>(in.data) + 8, reinterpret_cast<uint4*>(out.data)),
      "a misaligned address.*needs 16 bytes");
}

__global__ void index_registers(int index, float* out) {
  float registers[4] = {1, 2, 3, 4};
  registers[index % 5] = 0;
  *out = registers[index & 3];
}
TEST_F(EmulatorDeathTest, IndicesBeyondAnArrayOfRegisters) {
  const Ints out(1);
  EXPECT_DEATH(launch(index_registers, 1, 1, 0, 4, reinterpret_cast<float*>(out.data)), "index 4 of 'float ?.4.'");
}

__global__ void add_one(int value, int* out) { *out = value + 1; }
TEST_F(EmulatorDeathTest, SignedOverflow) {
  const Ints out(1);
  EXPECT_DEATH(launch(add_one, 1, 1, 0, 0x7fffffff, out.data), "a signed sum overflows\n  at .*kernels_test.cu");
}

__global__ void load_global(const int* from, int* out) { *out = *from; }
TEST_F(EmulatorDeathTest, AccessesOutsideOfAllocations) {
  const Ints in(64);
  EXPECT_DEATH(launch(load_global, 1, 1, 0, in.data + 64, in.data), "byte 256 of an allocation of 256 bytes");
}

__global__ void wait_for_ever(const int* flag) {
  while (ptx::load_acquire(flag) == 0) continue;
}
TEST_F(EmulatorDeathTest, PollingWithoutEnd) {
  const Ints flag(1);
  flag.write({0});
  EXPECT_DEATH(launch(wait_for_ever, 1, 32, 0, flag.data), "polls memory");
}

__global__ void named_barriers(uint32_t id, uint32_t threads) { ptx::barrier_sync(id, threads); }
TEST_F(EmulatorDeathTest, BarriersForTheWrongThreads) {
  EXPECT_DEATH(launch(named_barriers, 1, 64, 0, 1, 48), "barrier 1 for 48 threads; expected a multiple of 32");
  EXPECT_DEATH(launch(named_barriers, 1, 64, 0, 16, 32), "barrier 16; expected 0 to 15");
}

TEST(Emulator, LaunchesAreRefusedAsOnADevice) {
  EXPECT_EQ(launch(store_shared, 1, 2000, 512, 1), cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(store_shared, 1, 1, 49 * 1024, 1), cudaErrorInvalidValue);
  ASSERT_EQ(cudaFuncSetAttribute(store_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 * 1024), cudaSuccess);
  EXPECT_EQ(launch(store_shared, 1, 1, 49 * 1024, 1), cudaSuccess);
  EXPECT_NE(cudaFuncSetAttribute(store_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 * 1024), cudaSuccess);
  cudaGetLastError();
}

}  // namespace tessera::test_kernels

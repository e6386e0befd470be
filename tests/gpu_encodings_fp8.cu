// How the Hopper forward for e4m3 lays out what its instructions read: q, k and V^T as operands of wgmma, p's
// fragments, V turned over and V^T brought as it is, boxes of bytes. On integers that e4m3 and the sums hold exactly,
// so results are compared bit for bit; the expected layouts are written out from the PTX ISA, not from the library.
#include <cuda/ptx>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "baselines/elements.hpp"
#include "cuda/sm90/fp8_config.hpp"
#include "cuda/sm90/fp8_forward.cuh"
#include "cuda/sm90/tensor_maps.hpp"
#include "gpu_encodings.hpp"

namespace tessera::tests {
namespace {

using cuda::sm90::Fp8Config;
using cuda::sm90::Fp8Consumer;
using cuda::sm90::Fp8Control;
using cuda::sm90::Params;

template <class Config>
constexpr int kConsumers = 128 * Config::kGroups;

// Which key slot i of 16 holds.
constexpr int kOrder[16] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};

int64_t swizzled(int64_t span, int64_t rows, int64_t row, int64_t chunk) {
  const int64_t chunks = span / 16, swizzle = row * span / 128 % chunks;
  return (chunk / chunks * rows + row) * span + (chunk % chunks ^ swizzle) * 16;
}

uint8_t stored(double value) {
  uint8_t bits = 0;
  baselines::store_element(TESSERA_E4M3, &bits, 0, value);
  return bits;
}

// [rows][columns] of integers of -3 to 3.
std::vector<int> integers(int64_t rows, int64_t columns, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int> values(static_cast<size_t>(rows * columns));
  for (int& value : values) value = static_cast<int>(random() % 7) - 3;
  return values;
}

// A tile in shared memory as [columns / span][rows][span], swizzled.
template <class Value>
void fill_tile(const Managed<uint8_t>& tile, int64_t span, int64_t rows, int64_t columns, Value&& value) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t c = 0; c < columns; ++c)
      tile[static_cast<size_t>(swizzled(span, rows, row, c / 16) + c % 16)] = stored(value(row, c));
  }
}

template <class Config>
__device__ Fp8Consumer<Config> last_stages(const Params& p, char* shared) {
  auto& control = *reinterpret_cast<Fp8Control<Config>*>(shared + Config::kControlOffset);
  Fp8Consumer<Config> consumer{p, control, shared, cuda::ptx::shared_address(shared),
                               cuda::sm90::uniform(static_cast<int>(threadIdx.x / 128))};
  consumer.q.stage = Config::kQueryStages - 1;
  consumer.k.stage = consumer.v.stage = Config::kStages - 1;
  return consumer;
}

// All that lies before the last stages is NaN.
template <class Config>
__device__ void poison_tiles(char* shared) {
  for (uint32_t i = threadIdx.x; i < Config::kControlOffset / 16; i += blockDim.x)
    reinterpret_cast<uint4*>(shared)[i] = make_uint4(~0u, ~0u, ~0u, ~0u);
  __syncthreads();
}
__device__ void copy_tile(char* to, const uint8_t* from, uint32_t bytes) {
  for (uint32_t i = threadIdx.x; i < bytes / 16; i += blockDim.x)
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
}
__device__ void publish_tiles() {
  ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
  __syncthreads();
}
template <int kColumns>
__device__ void dump(const float (&registers)[kColumns][4], float* to) {
  for (int n = 0; n < kColumns; ++n) {
    for (int e = 0; e < 4; ++e) to[(threadIdx.x * kColumns + n) * 4 + e] = registers[n][e];
  }
}

struct Place {
  int64_t row, column;
};
Place place(int64_t thread, int64_t n, int64_t e) {
  const int64_t lane = thread % 32;
  return {thread / 32 * 16 + lane / 4 + e / 2 * 8, 8 * n + lane % 4 * 2 + e % 2};
}

template <class Config>
__global__ void __launch_bounds__(kConsumers<Config>, 1)
    score_products(const __grid_constant__ Params p, const uint8_t* q, const uint8_t* k, float* out) {
  extern __shared__ __align__(1024) char shared[];
  poison_tiles<Config>(shared);
  const auto consumer = last_stages<Config>(p, shared);
  copy_tile(shared + consumer.q.stage * Config::kQueryBytes, q, Config::kQueryBytes);
  copy_tile(shared + Config::kKeyOffset + consumer.k.stage * Config::kKeyBytes, k, Config::kKeyBytes);
  publish_tiles();
  float scores[Config::kTileN / 8][4];
  cuda::ptx::wgmma_fence();
  consumer.multiply_query_key(scores);
  cuda::ptx::wgmma_commit();
  cuda::ptx::wgmma_wait<0>();
  cuda::ptx::pin(scores);
  dump(scores, out);
}

template <class Config>
void check_score_products() {
  SCOPED_TRACE(Config::kDimQk);
  const auto q = integers(Config::kTileM, Config::kDimQk, 1), k = integers(Config::kTileN, Config::kDimQk, 2);
  const Managed<uint8_t> q_tile(Config::kQueryBytes), k_tile(Config::kKeyBytes);
  const auto at = [](const std::vector<int>& m, int64_t row, int64_t c) {
    return m[static_cast<size_t>(row * Config::kDimQk + c)];
  };
  fill_tile(q_tile, Config::kSpan, Config::kTileM, Config::kDimQk, [&](int64_t r, int64_t c) { return at(q, r, c); });
  fill_tile(k_tile, Config::kSpan, Config::kTileN, Config::kDimQk, [&](int64_t r, int64_t c) { return at(k, r, c); });
  const Managed<float> out(size_t{Config::kTileM} * Config::kTileN);
  ASSERT_NO_FATAL_FAILURE(launch(score_products<Config>, 1, kConsumers<Config>, Config::kSharedBytes, Params{},
                                 q_tile.data(), k_tile.data(), out.data()));
  Differences differences;
  constexpr int64_t kBlocks = Config::kTileN / 8;
  for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
    const Place to = place(i / 4 / kBlocks, i / 4 % kBlocks, i % 4);
    int expected = 0;
    for (int64_t c = 0; c < Config::kDimQk; ++c) expected += at(q, to.row, c) * at(k, to.column, c);
    differences.compare(static_cast<int>(out[static_cast<size_t>(i)]), expected, to.row, to.column);
  }
}

TEST(GpuEncodings, QueryAndKeyDescriptorsOfBytes) {
  TESSERA_NEEDS_HOPPER();
  check_score_products<Fp8Config<64>::Plain>();
  check_score_products<Fp8Config<128>::Plain>();
  check_score_products<Fp8Config<256>::Plain>();
}

// p [kTileM, kTileN] as scores' registers hold it, packed as the kernel does, times V as the transposers turn it over.
template <class Config>
__global__ void __launch_bounds__(kConsumers<Config>, 1)
    value_products(const __grid_constant__ Params params, const float* p, const uint8_t* v, float* out,
                   uint8_t* turned) {
  extern __shared__ __align__(1024) char shared[];
  poison_tiles<Config>(shared);
  cuda::sm90::fill_ones<Config>(shared, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  const auto consumer = last_stages<Config>(params, shared);
  copy_tile(shared + Config::kValueOffset + (Config::kValueStages - 1) * Config::kValueBytes, v, Config::kValueBytes);
  __syncthreads();
  if (threadIdx.x < 32 * Config::kTransposers) {
    cuda::sm90::Transposer<Config> transposer{consumer.control, consumer.shared,
                                              cuda::sm90::uniform(static_cast<int>(threadIdx.x / 32))};
    transposer.v.stage = Config::kValueStages - 1;
    transposer.transposed.stage = consumer.v.stage;
    transposer.transpose();
  }
  publish_tiles();
  const char* tile = shared + Config::kTransposedOffset + consumer.v.stage * Config::kTransposedBytes;
  for (uint32_t i = threadIdx.x; i < Config::kTransposedBytes; i += blockDim.x) turned[i] = tile[i];
  float scores[Config::kTileN / 8][4];
#pragma unroll
  for (int n = 0; n < Config::kTileN / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) scores[n][e] = p[(threadIdx.x * (Config::kTileN / 8) + n) * 4 + e];
  }
  uint32_t probs[Config::kTileN / 32][4];
  consumer.pack_probs(scores, probs);
  float product[Config::kValueRows / 8][4];
  cuda::ptx::wgmma_fence();
  if constexpr (Config::kDimV <= 128) {
    consumer.multiply_probs_value(product, probs);
  } else {  // in the pieces of fp8_wide_loop.cuh
    consumer.template multiply_probs_value<0, true>(reinterpret_cast<float(&)[8][4]>(product[0]), probs);
    consumer.template multiply_probs_value<64, true>(reinterpret_cast<float(&)[8][4]>(product[8]), probs);
    consumer.template multiply_probs_value<128, true>(reinterpret_cast<float(&)[8][4]>(product[16]), probs);
    consumer.template multiply_probs_value<192, true>(reinterpret_cast<float(&)[9][4]>(product[24]), probs);
  }
  cuda::ptx::wgmma_commit();
  cuda::ptx::wgmma_wait<0>();
  cuda::ptx::pin(product);
  dump(product, out);
}

// Row r of V^T: even columns and then odd ones, or ones.
template <class Config>
int64_t column_of_row(int64_t r) {
  constexpr int64_t kHalf = Config::kDimV / 2;
  return r < kHalf ? 2 * r : 2 * (r - kHalf) + 1;
}

template <class Config>
void check_value_products() {
  SCOPED_TRACE(Config::kDimV);
  const auto p = integers(Config::kTileM, Config::kTileN, 3), v = integers(Config::kTileN, Config::kDimV, 4);
  const auto v_at = [&](int64_t key, int64_t c) { return v[static_cast<size_t>(key * Config::kDimV + c)]; };
  const Managed<uint8_t> v_tile(Config::kValueBytes), turned(Config::kTransposedBytes);
  fill_tile(v_tile, Config::kSpan, Config::kTileN, Config::kDimV, v_at);
  const Managed<float> scores(size_t{Config::kTileM} * Config::kTileN),
      out(size_t{Config::kTileM} * Config::kValueRows);
  for (int64_t i = 0; i < static_cast<int64_t>(scores.size()); ++i) {
    constexpr int64_t kBlocks = Config::kTileN / 8;
    const Place from = place(i / 4 / kBlocks, i / 4 % kBlocks, i % 4);
    scores[static_cast<size_t>(i)] =
        static_cast<float>(p[static_cast<size_t>(from.row * Config::kTileN + from.column)]);
  }
  ASSERT_NO_FATAL_FAILURE(launch(value_products<Config>, 1, kConsumers<Config>, Config::kSharedBytes, Params{},
                                 scores.data(), v_tile.data(), out.data(), turned.data()));
  const auto column_of = column_of_row<Config>;
  Differences bytes, differences;
  for (int64_t r = 0; r < Config::kValueRows; ++r) {
    for (int64_t slot = 0; slot < Config::kTileN; ++slot) {
      const int64_t key = slot / 16 * 16 + kOrder[slot % 16];
      const uint8_t found =
          turned[static_cast<size_t>(swizzled(cuda::sm90::kFp8KeySpan, Config::kValueRows, r, slot / 16) + slot % 16)];
      bytes.compare(int{found}, int{stored(r < Config::kDimV ? v_at(key, column_of(r)) : 1)}, r, slot);
    }
  }
  constexpr int64_t kBlocks = Config::kValueRows / 8;
  for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
    const Place to = place(i / 4 / kBlocks, i / 4 % kBlocks, i % 4);
    int expected = 0;
    for (int64_t key = 0; key < Config::kTileN; ++key) {
      expected += p[static_cast<size_t>(to.row * Config::kTileN + key)] *
                  (to.column < Config::kDimV ? v_at(key, column_of(to.column)) : 1);
    }
    differences.compare(static_cast<int>(out[static_cast<size_t>(i)]), expected, to.row, to.column);
  }
}

TEST(GpuEncodings, ValuesTurnedOverMeetTheirProbabilities) {
  TESSERA_NEEDS_HOPPER();
  check_value_products<Fp8Config<64>::Plain>();
  check_value_products<Fp8Config<128>::Plain>();
  check_value_products<Fp8Config<256>::Plain>();
}

// A tile of V^T by the warps that bring it: copied, or gathered up to `left` keys.
template <class Config>
__global__ void bring_values(const __grid_constant__ Params p, int slot, int left, uint8_t* out) {
  extern __shared__ __align__(1024) char shared[];
  auto& control = *reinterpret_cast<Fp8Control<Config>*>(shared + Config::kControlOffset);
  poison_tiles<Config>(shared);
  if (threadIdx.x == 0) {
    control.init();
    cuda::sm90::TileView& view = control.views[0];
    view.head = view.head_kv = 1;
    view.sequence.kv_batch = 1;
    view.v = static_cast<const char*>(p.forward.v) + p.forward.v_stride.batch + p.forward.v_stride.head;
  }
  cuda::sm90::fill_ones<Config>(shared, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  publish_tiles();
  cuda::sm90::OrderedValues<Config> values{p, control, shared, cuda::sm90::uniform(static_cast<int>(threadIdx.x / 32))};
  char* tile = shared + Config::kTransposedOffset;
  if (left == 0) {
    values.copy_tile(control.views[0], slot, tile, &control.transposed_full[0]);
    cuda::sm90::wait(control.transposed_full[0], 0);
  } else {
    values.gather_tile(control.views[0], slot, left, tile);
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < Config::kTransposedBytes; i += blockDim.x) out[i] = static_cast<uint8_t>(tile[i]);
}

// V^T [batch 2, heads 2, dim, slots]; slots past the last are zero where they are copied, keys past the last where they
// are gathered.
template <class Config>
void check_values_as_given(int32_t dim) {
  SCOPED_TRACE(dim);
  constexpr int32_t kSlots = 2 * Config::kTileN + 48, kFirst = Config::kTileN + 16;
  const Managed<uint8_t> data(size_t{2} * 2 * dim * kSlots);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i % 251 + 1);
  Params p{};
  p.forward.v = data.data();
  p.forward.v_stride = {int64_t{2} * dim * kSlots, kSlots, int64_t{dim} * kSlots};
  p.forward.group = 1;
  p.forward.head_dim_v = dim;
  ASSERT_EQ(cuda::sm90::load_encoder(), cudaSuccess);
  const cuda::sm90::TensorView view{data.data(),
                                    5,
                                    {kSlots, dim / 2, 2, 2, 2},
                                    {1, 2 * kSlots, kSlots, p.forward.v_stride.head, p.forward.v_stride.batch},
                                    {cuda::sm90::kFp8KeySpan, Config::kDimV / 2, 1, 1, 1}};
  ASSERT_EQ(cuda::sm90::encode_tensor_map(view, TESSERA_E4M3, cuda::sm90::kFp8KeySpan, &p.v_map), cudaSuccess);
  const Managed<uint8_t> out(Config::kTransposedBytes);
  for (const int left : {0, 1, 9, 27, int{Config::kTileN} - 14, int{Config::kTileN}}) {
    SCOPED_TRACE(left);
    // Copied from the first slot on, whose tile ends behind the last; gathered from another.
    const int slot = left == 0 ? kFirst + 64 : kFirst;
    ASSERT_NO_FATAL_FAILURE(launch(bring_values<Config>, 1, 64, Config::kSharedBytes, p, slot, left, out.data()));
    Differences differences;
    for (int64_t r = 0; r < Config::kValueRows; ++r) {
      for (int64_t i = 0; i < Config::kTileN; ++i) {
        const int64_t channel = column_of_row<Config>(r), key = i / 16 * 16 + kOrder[i % 16];
        const bool inside = channel < dim && (left == 0 ? slot + i < kSlots : key < left);
        const int64_t at = p.forward.v_stride.batch + p.forward.v_stride.head + channel * kSlots + slot + i;
        const int expected = r >= Config::kDimV ? stored(1) : inside ? data[static_cast<size_t>(at)] : 0;
        const auto place = swizzled(cuda::sm90::kFp8KeySpan, Config::kValueRows, r, i / 16) + i % 16;
        differences.compare(int{out[static_cast<size_t>(place)]}, expected, r, i);
      }
    }
  }
}

TEST(GpuEncodings, ValuesAsGivenLieAsTurnedOverOnes) {
  TESSERA_NEEDS_HOPPER();
  check_values_as_given<Fp8Config<64>::Plain>(48);
  check_values_as_given<Fp8Config<128>::Plain>(128);
  check_values_as_given<Fp8Config<256>::Plain>(192);
}

__global__ void pack_bytes(const float* in, uint32_t* out) {
  const float* from = in + 4 * threadIdx.x;
  out[threadIdx.x] = cuda::ptx::pack_e4m3(from[0], from[1], from[2], from[3]);
}

TEST(GpuEncodings, FloatsBecomeTheNearestE4m3) {
  TESSERA_NEEDS_HOPPER();
  constexpr uint32_t kThreads = 512;
  const Managed<float> in(4 * kThreads);
  const Managed<uint32_t> out(kThreads);
  std::mt19937 random(7);
  for (size_t i = 0; i < in.size(); ++i) {
    uint8_t bits = static_cast<uint8_t>(i % 256);
    const double value = (bits & 0x7f) == 0x7f ? 500.0 : baselines::load_element(TESSERA_E4M3, &bits, 0);
    // The numbers themselves, some way to their neighbours, and halves, which go to even.
    const double steps[] = {1.0, 1.0 + (random() % 1000) * 1e-4, 1.0625, 1e-3};
    in[i] = static_cast<float>(value * steps[i / 256 % 4]);
  }
  in[0] = 449.0f, in[1] = -1e9f, in[2] = 0x1p-10f, in[3] = 0x1.8p-9f;
  ASSERT_NO_FATAL_FAILURE(launch(pack_bytes, 1, kThreads, 0, in.data(), out.data()));
  Differences differences;
  for (size_t i = 0; i < in.size(); ++i) {
    const uint32_t found = out[i / 4] >> 8 * (i % 4) & 0xff;
    differences.compare(found, uint32_t{stored(double{in[i]})}, static_cast<int64_t>(i), 0);
  }
}

template <int kSpan>
__global__ void copy_box(const __grid_constant__ CUtensorMap map, int rows, int first_column, char* out) {
  extern __shared__ __align__(1024) char shared[];
  const int bytes = rows * kSpan;
  auto& full = *reinterpret_cast<uint64_t*>(shared + bytes);
  if (threadIdx.x == 0) {
    ::cuda::ptx::mbarrier_init(&full, 1);
    ::cuda::ptx::fence_mbarrier_init(::cuda::ptx::sem_release, ::cuda::ptx::scope_cluster);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    ::cuda::ptx::mbarrier_arrive_expect_tx(::cuda::ptx::sem_release, ::cuda::ptx::scope_cta, ::cuda::ptx::space_shared,
                                           &full, bytes);
    const int32_t at[4] = {first_column, 3, 1, 0};
    ::cuda::ptx::cp_async_bulk_tensor(::cuda::ptx::space_cluster, ::cuda::ptx::space_global, shared, &map, at, &full);
  }
  cuda::sm90::wait(full, 0);
  for (int i = static_cast<int>(threadIdx.x); i < bytes; i += static_cast<int>(blockDim.x)) out[i] = shared[i];
}

// k [rows 40, heads 2, dim] of bytes: columns and rows past the end are zero.
template <int kSpan>
void check_box(int32_t dim, int32_t first_column) {
  SCOPED_TRACE(kSpan);
  constexpr int32_t kRows = 40, kBox = 96;
  const Managed<uint8_t> data(static_cast<size_t>(kRows * 2 * dim));
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i % 251 + 1);
  ASSERT_EQ(cuda::sm90::load_encoder(), cudaSuccess);
  CUtensorMap map{};
  ASSERT_EQ(
      cuda::sm90::encode_tensor_map({data.data(), 4, {dim, kRows, 2, 1}, {1, 2 * dim, dim, 0}, {kSpan, kBox, 1, 1}},
                                    TESSERA_E4M3, kSpan, &map),
      cudaSuccess);
  const Managed<char> out(kBox * kSpan);
  ASSERT_NO_FATAL_FAILURE(launch(copy_box<kSpan>, 1, 128, kBox * kSpan + 16, map, kBox, first_column, out.data()));
  Differences differences;
  for (int64_t row = 0; row < kBox; ++row) {
    for (int64_t c = 0; c < kSpan; ++c) {
      const bool inside = row + 3 < kRows && first_column + c < dim;
      const int expected = inside ? data[static_cast<size_t>(((row + 3) * 2 + 1) * dim + first_column + c)] : 0;
      const auto found = static_cast<uint8_t>(out[static_cast<size_t>(swizzled(kSpan, kBox, row, c / 16) + c % 16)]);
      differences.compare(int{found}, expected, row, c);
    }
  }
}

TEST(GpuTensorMaps, BoxesOfBytes) {
  TESSERA_NEEDS_HOPPER();
  check_box<128>(128, 0);
  check_box<128>(112, 0);
  check_box<64>(80, 64);
  check_box<32>(64, 32);
}

}  // namespace
}  // namespace tessera::tests

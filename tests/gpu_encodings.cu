// How the Hopper forward lays out what its instructions read: operand descriptors of wgmma, registers of accumulators
// and of A, rows on their way out. Each in a kernel of its own, on integers that every type here holds exactly, so that
// results are compared bit for bit. The expected layouts are written out from the PTX ISA, not taken from the library.
#include "gpu_encodings.hpp"

#include <cuda/ptx>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cuda/sm90/forward.cuh"
#include "element.hpp"

namespace tessera::tests {
namespace {

using cuda::Bf16;
using cuda::F16;
using cuda::ScoreKind;
using cuda::sm90::Consumer;
using cuda::sm90::Control;
using cuda::sm90::ForwardConfig;
using cuda::sm90::ForwardShape;
using cuda::sm90::Params;

template <class Config>
constexpr int kConsumers = 128 * Config::kGroups;

// A consumer at the last of its shape's stages: all that lies before them is NaN.
template <class Element, class Config>
__device__ Consumer<Element, Config, ScoreKind::plain> last_stages(const Params& p, char* shared) {
  auto& control = *reinterpret_cast<Control<Config>*>(shared + Config::kControlOffset);
  Consumer<Element, Config, ScoreKind::plain> consumer{p,
                                                       control,
                                                       cuda::ptx::shared_address(shared),
                                                       cuda::sm90::uniform(static_cast<int>(threadIdx.x / 128)),
                                                       {p, control, shared}};
  consumer.q.stage = Config::kQueryStages - 1;
  consumer.k.stage = consumer.v.stage = Config::kStages - 1;
  return consumer;
}

template <class Config>
__device__ void poison_tiles(char* shared) {
  for (uint32_t i = threadIdx.x; i < Config::kControlOffset / 16; i += blockDim.x) {
    reinterpret_cast<uint4*>(shared)[i] = make_uint4(~0u, ~0u, ~0u, ~0u);
  }
  __syncthreads();
}

// [rows, columns] of global memory to a tile of spans.
template <int kSpan>
__device__ void fill_tile(char* tile, const uint16_t* from, uint32_t rows, uint32_t columns) {
  for (uint32_t i = threadIdx.x; i < rows * columns / 8; i += blockDim.x) {
    const uint32_t row = i / (columns / 8), chunk = i % (columns / 8);
    *reinterpret_cast<uint4*>(tile + cuda::sm90::chunk_offset<kSpan>(rows, row, chunk)) =
        reinterpret_cast<const uint4*>(from)[i];
  }
}
__device__ void publish_tiles() {
  ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
  __syncthreads();
}

// [thread][n][element] as the registers are.
template <int kColumns>
__device__ void dump(const float (&registers)[kColumns][4], float* to) {
  for (int n = 0; n < kColumns; ++n) {
    for (int e = 0; e < 4; ++e) to[(threadIdx.x * kColumns + n) * 4 + e] = registers[n][e];
  }
}

template <class Element, class Config>
__global__ void __launch_bounds__(kConsumers<Config>, 1)
    score_products(const __grid_constant__ Params p, const uint16_t* q, const uint16_t* k, float* out) {
  extern __shared__ __align__(1024) char shared[];
  poison_tiles<Config>(shared);
  const auto consumer = last_stages<Element, Config>(p, shared);
  fill_tile<Config::kSpan>(shared + consumer.q.stage * Config::kQueryBytes, q, Config::kTileM, Config::kDimQk);
  fill_tile<Config::kSpan>(shared + Config::kKeyOffset + consumer.k.stage * Config::kKeyBytes, k, Config::kTileN,
                           Config::kDimQk);
  publish_tiles();
  float scores[1][Config::kTileN / 8][4];
#pragma unroll
  for (int n = 0; n < Config::kTileN / 8; ++n)
    scores[0][n][0] = scores[0][n][1] = scores[0][n][2] = scores[0][n][3] = NAN;
  cuda::ptx::wgmma_fence();
  consumer.multiply_query_key(scores);
  cuda::ptx::wgmma_commit();
  cuda::ptx::wgmma_wait<0>();
  cuda::ptx::pin(scores[0]);
  dump(scores[0], out);
}

// acc = 1 + p v, the fragments of p [kTileM, kTileN] read from global memory as the PTX ISA lays out A of m64k16.
template <class Element, class Config>
__global__ void __launch_bounds__(kConsumers<Config>, 1)
    value_products(const __grid_constant__ Params params, const uint16_t* p, const uint16_t* v, float* out) {
  extern __shared__ __align__(1024) char shared[];
  poison_tiles<Config>(shared);
  const auto consumer = last_stages<Element, Config>(params, shared);
  fill_tile<Config::kSpan>(shared + Config::kValueOffset + consumer.v.stage * Config::kValueBytes, v, Config::kTileN,
                           Config::kDimV);
  publish_tiles();
  const uint32_t lane = threadIdx.x % 32, first_row = threadIdx.x / 32 * 16 + lane / 4;
  uint32_t probs[Config::kTileN / 16][4];
#pragma unroll
  for (int step = 0; step < Config::kTileN / 16; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t row = first_row + i % 2 * 8, column = step * 16 + lane % 4 * 2 + i / 2 * 8;
      probs[step][i] = *reinterpret_cast<const uint32_t*>(p + row * Config::kTileN + column);
    }
  }
  float acc[1][Config::kDimV / 8][4];
#pragma unroll
  for (int n = 0; n < Config::kDimV / 8; ++n) acc[0][n][0] = acc[0][n][1] = acc[0][n][2] = acc[0][n][3] = 1.0f;
  cuda::ptx::wgmma_fence();
  consumer.multiply_probs_value(acc, probs);
  cuda::ptx::wgmma_commit();
  cuda::ptx::wgmma_wait<0>();
  cuda::ptx::pin(acc[0]);
  dump(acc[0], out);
}

// The place of element e of block n in the accumulators of a thread.
struct Place {
  int64_t row, column;
};
Place place(int64_t thread, int64_t n, int64_t e) {
  const int64_t lane = thread % 32;
  return {thread / 32 * 16 + lane / 4 + e / 2 * 8, 8 * n + lane % 4 * 2 + e % 2};
}

template <class Element>
uint16_t stored(int value) {
  const auto x = static_cast<float>(value);
  return Element::kType == cuda::ptx::HalfType::bf16 ? core::float_to_bf16(x) : core::float_to_f16(x);
}

// Integers of -4 to 4, and the same as the type stores them.
template <class Element>
struct Matrix {
  Matrix(int64_t rows, int64_t width, uint32_t seed)
      : columns(width), values(static_cast<size_t>(rows * width)), bits(values.size()) {
    std::mt19937 random(seed);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<int>(random() % 9) - 4;
      bits[i] = stored<Element>(values[i]);
    }
  }
  double at(int64_t row, int64_t column) const { return values[static_cast<size_t>(row * columns + column)]; }
  void set(int64_t row, int64_t column, int value) {
    const auto i = static_cast<size_t>(row * columns + column);
    values[i] = value;
    bits[i] = stored<Element>(value);
  }

  int64_t columns;
  std::vector<int> values;
  Managed<uint16_t> bits;
};

template <class Element, class Config>
std::string name_of() {
  return std::string(Element::kType == cuda::ptx::HalfType::bf16 ? "bf16" : "f16") + ", head dims " +
         std::to_string(Config::kDimQk) + " and " + std::to_string(Config::kDimV) + ", tile " +
         std::to_string(Config::kTileM) + " x " + std::to_string(Config::kTileN) + ", span " +
         std::to_string(Config::kSpan);
}

template <class Element, class Config>
void check_score_products() {
  SCOPED_TRACE((name_of<Element, Config>()));
  const Matrix<Element> q(Config::kTileM, Config::kDimQk, 1), k(Config::kTileN, Config::kDimQk, 2);
  const Managed<float> out(size_t{Config::kTileM} * Config::kTileN);
  ASSERT_NO_FATAL_FAILURE(launch(score_products<Element, Config>, 1, kConsumers<Config>, Config::kSharedBytes, Params{},
                                 q.bits.data(), k.bits.data(), out.data()));
  Differences differences;
  for (size_t i = 0; i < out.size(); ++i) {
    constexpr int64_t kBlocks = Config::kTileN / 8;
    const auto index = static_cast<int64_t>(i);
    const Place at = place(index / 4 / kBlocks, index / 4 % kBlocks, index % 4);
    double expected = 0;
    for (int64_t c = 0; c < Config::kDimQk; ++c) expected += q.at(at.row, c) * k.at(at.column, c);
    differences.compare(double{out[i]}, expected, at.row, at.column);
  }
}

template <class Element, class Config>
void check_value_products() {
  SCOPED_TRACE((name_of<Element, Config>()));
  const Matrix<Element> p(Config::kTileM, Config::kTileN, 3), v(Config::kTileN, Config::kDimV, 4);
  const Managed<float> out(size_t{Config::kTileM} * Config::kDimV);
  ASSERT_NO_FATAL_FAILURE(launch(value_products<Element, Config>, 1, kConsumers<Config>, Config::kSharedBytes, Params{},
                                 p.bits.data(), v.bits.data(), out.data()));
  Differences differences;
  for (size_t i = 0; i < out.size(); ++i) {
    constexpr int64_t kBlocks = Config::kDimV / 8;
    const auto index = static_cast<int64_t>(i);
    const Place at = place(index / 4 / kBlocks, index / 4 % kBlocks, index % 4);
    double expected = 1;
    for (int64_t key = 0; key < Config::kTileN; ++key) expected += p.at(at.row, key) * v.at(key, at.column);
    differences.compare(double{out[i]}, expected, at.row, at.column);
  }
}

template <class... Configs>
struct Shapes {};
template <class... Configs>
void check_score_products(Shapes<Configs...>) {
  (check_score_products<F16, Configs>(), ...);
  (check_score_products<Bf16, Configs>(), ...);
}
template <class... Configs>
void check_value_products(Shapes<Configs...>) {
  (check_value_products<F16, Configs>(), ...);
  (check_value_products<Bf16, Configs>(), ...);
}

// Every shape that the library compiles.
template <int kDimQk, int kDimV>
using Plain = typename ForwardConfig<kDimQk, kDimV>::Plain;
template <int kDimQk, int kDimV>
using General = typename ForwardConfig<kDimQk, kDimV>::General;
using EveryShape = Shapes<Plain<64, 64>, ForwardConfig<64, 64>::Wide, General<64, 64>, Plain<96, 96>, General<96, 96>,
                          Plain<128, 128>, General<128, 128>, Plain<192, 128>, General<192, 128>, Plain<192, 192>,
                          General<192, 192>, Plain<256, 256>, General<256, 256>>;
// The other operand's dim makes the span 64 bytes.
template <int kDimQk, int kDimV, int kTileN>
using Narrow = ForwardShape<kDimQk, kDimV, 2, kTileN, 1, false, false>;

TEST(GpuEncodings, QueryAndKeyDescriptorsOfEveryShape) {
  TESSERA_NEEDS_HOPPER();
  check_score_products(EveryShape{});
}

TEST(GpuEncodings, QueryAndKeyDescriptorsInSpansOf64Bytes) {
  TESSERA_NEEDS_HOPPER();
  check_score_products(Shapes<Narrow<32, 96, 128>, Narrow<64, 96, 96>, Narrow<128, 96, 64>, Narrow<256, 96, 32>>{});
}

TEST(GpuEncodings, ValueDescriptorsOfEveryShape) {
  TESSERA_NEEDS_HOPPER();
  check_value_products(EveryShape{});
}

TEST(GpuEncodings, ValueDescriptorsInSpansOf64Bytes) {
  TESSERA_NEEDS_HOPPER();
  check_value_products(Shapes<Narrow<96, 64, 128>, Narrow<96, 128, 96>, Narrow<96, 192, 64>, Narrow<96, 256, 32>>{});
}

// Row r of q is (r, 1, 0, ...) and row c of k (256, c, 0, ...): a score says which one it is.
TEST(GpuEncodings, AccumulatorsSayTheirRowAndColumn) {
  TESSERA_NEEDS_HOPPER();
  using Config = Plain<128, 128>;
  Matrix<F16> q(Config::kTileM, Config::kDimQk, 0), k(Config::kTileN, Config::kDimQk, 0);
  for (int r = 0; r < Config::kTileM; ++r) {
    for (int c = 0; c < Config::kDimQk; ++c) q.set(r, c, c == 0 ? r : c == 1);
  }
  for (int r = 0; r < Config::kTileN; ++r) {
    for (int c = 0; c < Config::kDimQk; ++c) k.set(r, c, c == 0 ? 256 : c == 1 ? r : 0);
  }
  const Managed<float> out(size_t{Config::kTileM} * Config::kTileN);
  ASSERT_NO_FATAL_FAILURE(launch(score_products<F16, Config>, 1, kConsumers<Config>, Config::kSharedBytes, Params{},
                                 q.bits.data(), k.bits.data(), out.data()));
  Differences differences;
  constexpr int64_t kBlocks = Config::kTileN / 8;
  for (int64_t thread = 0; thread < kConsumers<Config>; ++thread) {
    for (int64_t i = 0; i < kBlocks * 4; ++i) {
      const Place at = place(thread, i / 4, i % 4);
      differences.compare(static_cast<int64_t>(out[static_cast<size_t>(thread * kBlocks * 4 + i)]),
                          at.row * 256 + at.column, at.row, at.column);
    }
  }
}

// [thread][n][e] = 256 row + column as the library finds them.
template <class Config>
__global__ void fragment_places(const __grid_constant__ Params p, int* out) {
  extern __shared__ __align__(1024) char shared[];
  const int first = last_stages<F16, Config>(p, shared).first_row();
  for (int n = 0; n < Config::kTileN / 8; ++n) {
    for (int e = 0; e < 4; ++e) {
      out[(threadIdx.x * Config::kTileN / 8 + n) * 4 + e] =
          256 * (first + cuda::fragment_row(0, e / 2)) + cuda::fragment_column(n, e);
    }
  }
}

TEST(GpuEncodings, RowsAndColumnsOfALaneAreThoseOfTheAccumulators) {
  TESSERA_NEEDS_HOPPER();
  using Config = ForwardConfig<64, 64>::Wide;
  const Managed<int> out(size_t{Config::kTileM} * Config::kTileN);
  ASSERT_NO_FATAL_FAILURE(
      launch(fragment_places<Config>, 1, kConsumers<Config>, Config::kSharedBytes, Params{}, out.data()));
  Differences differences;
  for (size_t i = 0; i < out.size(); ++i) {
    constexpr int64_t kBlocks = Config::kTileN / 8;
    const auto index = static_cast<int64_t>(i);
    const Place at = place(index / 4 / kBlocks, index / 4 % kBlocks, index % 4);
    differences.compare(int64_t{out[i]}, 256 * at.row + at.column, at.row, at.column);
  }
}

// Distinct within the 16 x 16 elements of a warp's step, and exact in both types.
__host__ __device__ int packed_value(int64_t row, int64_t column) {
  return static_cast<int>(row % 16 * 16 + (column + column / 16) % 16);
}

template <class Element, class Config>
__global__ void pack_scores(uint32_t* out) {
  float scores[1][Config::kTileN / 8][4];
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < Config::kTileN / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      scores[0][n][e] =
          static_cast<float>(packed_value(threadIdx.x / 32 * 16 + lane / 4 + e / 2 * 8, 8 * n + lane % 4 * 2 + e % 2));
    }
  }
  uint32_t probs[Config::kTileN / 16][4];
  Consumer<Element, Config, ScoreKind::plain>::pack_probs(scores, probs);
#pragma unroll
  for (int step = 0; step < Config::kTileN / 16; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) out[(threadIdx.x * Config::kTileN / 16 + step) * 4 + i] = probs[step][i];
  }
}

template <class Element>
void check_packed_scores() {
  using Config = Plain<192, 192>;
  constexpr int64_t kSteps = Config::kTileN / 16;
  const Managed<uint32_t> out(128 * kSteps * 4);
  ASSERT_NO_FATAL_FAILURE(launch(pack_scores<Element, Config>, 1, 128, 0, out.data()));
  Differences differences;
  for (int64_t i = 0; i < 128 * kSteps * 4; ++i) {
    const int64_t thread = i / (kSteps * 4), step = i / 4 % kSteps, lane = thread % 32;
    const int64_t row = thread / 32 * 16 + lane / 4 + i % 2 * 8, column = step * 16 + lane % 4 * 2 + i % 4 / 2 * 8;
    const uint32_t low = stored<Element>(packed_value(row, column)),
                   high = stored<Element>(packed_value(row, column + 1));
    differences.compare(out[static_cast<size_t>(i)], low | high << 16, row, column);
  }
}

TEST(GpuEncodings, PackedScoresAreTheFragmentOfTheNextProduct) {
  TESSERA_NEEDS_HOPPER();
  check_packed_scores<F16>();
  check_packed_scores<Bf16>();
}

// A warp's 16 rows of 128 columns, of which head_dim exist; column c of row r is (r + c) % 64, times the row's factor:
// 0 for row 3, 2 for the others. The accumulators of row 3 are NaN, and row 5 does not exist.
constexpr int kStoredColumns = 128, kEmptyRow = 3, kAbsentRow = 5;

template <class Element, int kSpan, class Out>
__global__ void store_warp_rows(Out* out, int head_dim) {
  extern __shared__ __align__(1024) char shared[];
  float acc[kStoredColumns / 8][4];
  for (int n = 0; n < kStoredColumns / 8; ++n) {
    for (int e = 0; e < 4; ++e) {
      const int row = cuda::fragment_row(0, e / 2), column = cuda::fragment_column(n, e);
      acc[n][e] = row == kEmptyRow ? NAN : static_cast<float>((row + column) % 64);
    }
  }
  cuda::ForwardParams p{};
  p.o_is_float = sizeof(Out) == 4;
  cuda::sm90::FinishedRows rows;
  for (int half = 0; half < 2; ++half) {
    const int row = cuda::fragment_row(0, half);
    rows.factor[half] = row == kEmptyRow ? 0.0f : 2.0f;
    rows.o[half] = reinterpret_cast<char*>(out + row * kStoredColumns) + threadIdx.x % 4 * (p.o_is_float ? 8 : 16);
    rows.columns[half] = row == kAbsentRow ? 0 : head_dim;
  }
  cuda::sm90::store_finished_rows<Element, kSpan>(p, rows, acc, shared);
}

template <class Element, int kSpan, class Out>
void check_stored_rows(int head_dim) {
  SCOPED_TRACE("head_dim_v " + std::to_string(head_dim));
  const Managed<Out> out(16 * kStoredColumns);
  const Managed<Out> untouched(1);
  ASSERT_NO_FATAL_FAILURE(launch(store_warp_rows<Element, kSpan, Out>, 1, 32, 16 * kSpan, out.data(), head_dim));
  Differences differences;
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < kStoredColumns; ++column) {
      const int value = row == kEmptyRow ? 0 : (row + column) % 64 * 2;
      uint32_t found = 0, expected = 0;
      std::memcpy(&found, &out[static_cast<size_t>(row * kStoredColumns + column)], sizeof(Out));
      if (row == kAbsentRow || column >= head_dim) {
        std::memcpy(&expected, &untouched[0], sizeof(Out));
      } else {
        expected = sizeof(Out) == 4 ? core::float_bits(static_cast<float>(value)) : stored<Element>(value);
      }
      differences.compare(found, expected, row, column);
    }
  }
}

TEST(GpuEncodings, StoredRowsKeepToTheirColumns) {
  TESSERA_NEEDS_HOPPER();
  for (int head_dim = 8; head_dim <= kStoredColumns; head_dim += 8) {
    check_stored_rows<F16, 128, uint16_t>(head_dim);
    check_stored_rows<Bf16, 64, uint16_t>(head_dim);
    check_stored_rows<F16, 128, float>(head_dim);
  }
}

// Scores of a warp's 16 rows, 1 where the row of `half` keeps the column.
template <int kColumns>
__global__ void mask_warp_rows(float* out, int begin, int end) {
  float scores[kColumns][4];
  for (int n = 0; n < kColumns; ++n) {
    for (int e = 0; e < 4; ++e) scores[n][e] = 1.0f;
  }
  cuda::sm90::keep_columns(scores, 0, begin, end);
  cuda::sm90::keep_columns(scores, 1, begin - 1, end + 1);
  for (int n = 0; n < kColumns; ++n) {
    for (int e = 0; e < 4; ++e) {
      out[cuda::fragment_row(0, e / 2) * kColumns * 8 + cuda::fragment_column(n, e)] = scores[n][e];
    }
  }
}

template <int kColumns>
void check_masked_rows(int begin, int end) {
  SCOPED_TRACE("columns " + std::to_string(begin) + " to " + std::to_string(end));
  const Managed<float> out(16 * kColumns * 8);
  ASSERT_NO_FATAL_FAILURE(launch(mask_warp_rows<kColumns>, 1, 32, 0, out.data(), begin, end));
  Differences differences;
  for (int row = 0; row < 16; ++row) {
    const int more = row / 8;
    for (int column = 0; column < kColumns * 8; ++column) {
      const float expected = column >= begin - more && column < end + more ? 1.0f : -INFINITY;
      differences.compare(core::float_bits(out[static_cast<size_t>(row * kColumns * 8 + column)]),
                          core::float_bits(expected), row, column);
    }
  }
}

TEST(GpuEncodings, MaskedRowsKeepTheirColumns) {
  TESSERA_NEEDS_HOPPER();
  for (int bound = -9; bound <= 137; ++bound) {
    check_masked_rows<16>(-1000000, bound);
    check_masked_rows<16>(bound, 1000000);
    check_masked_rows<4>(bound / 3, bound / 2);
  }
}

}  // namespace
}  // namespace tessera::tests

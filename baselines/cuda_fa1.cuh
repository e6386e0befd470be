// FlashAttention-1's schedule on mma.sync.
//   q [seqlen_q, head_dim_qk], k [seqlen_k, head_dim_qk], v [seqlen_k, head_dim_v] of one (batch, query head) -> o, lse
// One block a (batch, query head) takes its keys kTileN at a time, and for each of those tiles all query rows that see
// it, 16 a warp. The warps share the K and V tiles; a warp's Q rows, scores and O are its own, so that between two
// tiles no warp waits for another. Where the paper has the whole S of a tile on chip, a warp has kStep columns of it
// and the tile's m', l' and P V by the online softmax: the same numbers, and as few registers as cuda.sm80.forward.
// Shared memory: K and V tile [kTileN][d], Q tile [kTileM][d] twice; the next rows' Q is copied during the products.
// Work a (16 rows, tile): 4 * 16 * kTileN * d FLOPs against 2 * 16 * d bytes of Q and 8 * 16 * d of O read and written:
// 0.4 * kTileN FLOP a byte. Bound by device memory, or where O and Q stay in L2 by the latency of reading O.
// Source: fa1.hpp.
#pragma once

#include "cuda/sm80/products.cuh"
#include "cuda/tile/output.cuh"
#include "cuda/tile/score.cuh"
#include "cuda_fa1.hpp"

namespace tessera::baselines::fa1 {

using core::Band;
using core::Range;
using core::TileRange;

// A (batch, query head): its operands' first rows, and its state.
struct Head {
  const char *q, *k, *v;
  char* o;
  float* lse;  // null: not wanted
  float* o_state;
  float2* statistics;
};

__device__ __forceinline__ Head locate_head(const Fa1Params& p, uint32_t index) {
  const cuda::ForwardParams& f = p.f;
  const int64_t head = index % f.heads_q, batch = index / f.heads_q, head_kv = head / f.group;
  const int64_t first_row = int64_t{index} * f.seqlen_q;
  const int o_width = f.o_is_float ? 4 : 2;
  return {static_cast<const char*>(f.q) + 2 * (batch * f.q_stride.batch + head * f.q_stride.head),
          static_cast<const char*>(f.k) + 2 * (batch * f.k_stride.batch + head_kv * f.k_stride.head),
          static_cast<const char*>(f.v) + 2 * (batch * f.v_stride.batch + head_kv * f.v_stride.head),
          static_cast<char*>(f.o) + o_width * (batch * f.o_stride.batch + head * f.o_stride.head),
          f.lse != nullptr ? f.lse + first_row : nullptr,
          p.o + first_row * f.head_dim_v,
          p.statistics + first_row};
}

// Starts the copy of keys or values [key, key + kTileN), zeros past the last.
template <class Config>
__device__ __forceinline__ void start_tile(uint32_t tile, const char* first, int64_t row_stride, int64_t key,
                                           int64_t seqlen_k, int dim) {
  using Copy = cuda::TileCopy<Config::kTileN, Config::kHeadDim, Config::kThreads>;
#pragma unroll 4
  for (int pass = 0; pass < Copy::kPasses; ++pass) {
    const int64_t row = key + Copy::row() + pass * Copy::kRowsPerPass;
    Copy::start(tile, pass, first + 2 * (row * row_stride + Copy::chunk() * 8), row < seqlen_k, dim / 8);
  }
}

// Starts the copy of the warp's 16 query rows from `row` on.
template <class Config>
__device__ __forceinline__ void start_queries(uint32_t tile, const cuda::ForwardParams& f, const char* q, int64_t row) {
  using Layout = cuda::TileLayout<Config::kHeadDim>;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = lane / 8; r < Config::kWarpRows; r += 4) {
#pragma unroll
    for (int chunk = lane % 8; chunk < Config::kHeadDim / 8; chunk += 8) {
      const bool valid = row + r < f.seqlen_q && chunk * 8 < f.head_dim_qk;
      cuda::ptx::copy_async_16(tile + Layout::offset(r, chunk), q + 2 * ((row + r) * f.q_stride.row + chunk * 8),
                               valid ? 16 : 0);
    }
  }
}

// O, m and l of the warp's rows as they were before a tile, in the fragments of the accumulators.
template <class Config>
struct State {
  float o[Config::kHeadDim / 8][4];
  float2 statistics[2];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (auto& column : o) column[0] = column[1] = column[2] = column[3] = 0.0f;
    statistics[0] = statistics[1] = make_float2(-INFINITY, 0.0f);
  }
  __device__ __forceinline__ void load(const cuda::ForwardParams& f, const Head& head, int64_t first_row) {
    clear();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = first_row + cuda::fragment_row(0, half);
      if (row >= f.seqlen_q) continue;
      statistics[half] = head.statistics[row];
      const float* from = head.o_state + row * f.head_dim_v;
#pragma unroll
      for (int n = 0; n < Config::kHeadDim / 8; ++n) {
        if (n * 8 >= f.head_dim_v) continue;
        const float2 pair = *reinterpret_cast<const float2*>(from + cuda::fragment_column(n, 0));
        o[n][2 * half] = pair.x;
        o[n][2 * half + 1] = pair.y;
      }
    }
  }
};

// Two neighbouring elements of a row of o, or of the state.
template <class Element>
__device__ __forceinline__ void store_pair(char* row, int column, bool is_float, float x, float y) {
  if (is_float) {
    *reinterpret_cast<float2*>(row + 4 * column) = make_float2(x, y);
  } else {
    *reinterpret_cast<uint32_t*>(row + 2 * column) = Element::pack(x, y);
  }
}

// The tile's own state (acc, rows) and the one before it to the new one: to device memory or, where no later tile is
// seen, to o and lse.
template <class Element, class Config>
__device__ __forceinline__ void update(const cuda::ForwardParams& f, const Head& head, int64_t first_row, bool last,
                                       const State<Config>& before, const float (&acc)[1][Config::kHeadDim / 8][4],
                                       const cuda::RowStatistics<1>& rows) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = cuda::quad_sum(rows.row_sum[0][half]), own = rows.row_max[0][half];
    const float own_base = own == -INFINITY ? own : __fmul_rn(own, f.scale_log2);
    const float base = fmaxf(before.statistics[half].x, own_base);
    const float finite = base == -INFINITY ? 0.0f : base;  // a row that has seen no key
    const float keep = before.statistics[half].y * cuda::ptx::ex2(before.statistics[half].x - finite);
    const float add = cuda::ptx::ex2(own_base - finite);
    const float total = keep + sum * add;
    const float inverse = total == 0.0f ? 0.0f : cuda::ptx::rcp(total);
    const float keep_factor = keep * inverse, add_factor = add * inverse;

    const int64_t row = first_row + cuda::fragment_row(0, half);
    if (row >= f.seqlen_q) continue;
    const bool is_float = !last || f.o_is_float;
    char* to = last ? head.o + (f.o_is_float ? 4 : 2) * row * f.o_stride.row
                    : reinterpret_cast<char*>(head.o_state + row * f.head_dim_v);
#pragma unroll
    for (int n = 0; n < Config::kHeadDim / 8; ++n) {
      if (n * 8 >= f.head_dim_v) continue;
      const auto element = [&](int e) {
        return before.o[n][e] * keep_factor + cuda::finished(acc[0][n][e], add_factor);
      };
      store_pair<Element>(to, cuda::fragment_column(n, 0), is_float, element(2 * half), element(2 * half + 1));
    }
    if (threadIdx.x % 4 != 0) continue;
    if (!last) {
      head.statistics[row] = make_float2(base, total);
    } else if (head.lse != nullptr) {
      head.lse[row] = core::lse_from_base2(base, total);
    }
  }
}

// One tile of keys on the warp's 16 rows. `key` and `value`: this lane's addresses in the tiles.
template <class Element, class Config>
__device__ __forceinline__ void attend_rows(const cuda::ForwardParams& f, const Head& head, const Band& band,
                                            int64_t first_row, int64_t tile, uint32_t query, uint32_t key,
                                            uint32_t value) {
  constexpr int kSteps = Config::kTileN / Config::kStep, kRowBytes = cuda::TileLayout<Config::kHeadDim>::kRowBytes;
  const TileRange seen = band.visible_tiles(first_row, first_row + Config::kWarpRows, Config::kStep);
  const int64_t first = tile * kSteps;
  const int begin = static_cast<int>(cuda::clamp_to(seen.begin - first, 0, kSteps)),
            end = static_cast<int>(cuda::clamp_to(seen.end - first, 0, kSteps));
  const int unmasked_begin = static_cast<int>(cuda::clamp_to(seen.unmasked_begin - first, 0, kSteps)),
            unmasked_end = static_cast<int>(cuda::clamp_to(seen.unmasked_end - first, 0, kSteps));

  State<Config> before;
  if (tile == 0) {
    before.clear();
  } else {
    before.load(f, head, first_row);  // in flight during the products
  }
  float acc[1][Config::kHeadDim / 8][4];
  cuda::sm80::clear(acc);
  cuda::RowStatistics<1> rows;
  rows.clear();
#pragma unroll 1
  for (int step = begin; step < end; ++step) {
    float scores[1][Config::kStep / 8][4];
    const uint32_t offset = step * Config::kStep * kRowBytes;
    cuda::sm80::multiply_rows<Element, Config::kHeadDim>(scores, query, key + offset);
    if (step < unmasked_begin || step >= unmasked_end) {
      cuda::mask_scores(scores, band, cuda::rows_from<1>(first_row), (first + step) * Config::kStep);
    }
    cuda::online_softmax(scores, acc, rows, f.scale_log2);
    cuda::sm80::multiply_registers<Element, Config::kHeadDim>(acc, scores, value + offset);
  }
  update<Element, Config>(f, head, first_row, seen.end <= first + kSteps, before, acc, rows);
}

template <class Element, class Config>
__global__ void __launch_bounds__(Config::kThreads, Config::kBlocksPerSm)
    fa1_kernel(const __grid_constant__ Fa1Params p) {
  extern __shared__ __align__(128) char shared[];
  const cuda::ForwardParams& f = p.f;
  const Head head = locate_head(p, blockIdx.x);
  const Band band = core::make_band(f.seqlen_q, f.seqlen_k, f.left, f.right, f.top_left);
  const uint32_t key_tile = cuda::ptx::shared_address(shared), value_tile = key_tile + Config::kKeyBytes;
  const cuda::sm80::LaneAddresses<Config> lane(value_tile + Config::kKeyBytes, threadIdx.x / 32 * Config::kWarpRows, 0);
  const int warp = threadIdx.x / 32;
  const uint32_t queries = value_tile + Config::kKeyBytes + warp * Config::kWarpRows * Config::kHeadDim * 2;

  // Also without keys every row is met once.
  const int64_t tiles = f.seqlen_k > 0 ? (f.seqlen_k + Config::kTileN - 1) / Config::kTileN : 1;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t key = tile * Config::kTileN;
    const Range seeing = tile == 0 ? Range{0, f.seqlen_q} : band.seeing_rows(key, key + Config::kTileN);
    if (seeing.empty()) continue;
    __syncthreads();  // nobody reads the tiles before; what other warps wrote of the state is seen
    start_tile<Config>(key_tile, head.k, f.k_stride.row, key, f.seqlen_k, f.head_dim_qk);
    start_tile<Config>(value_tile, head.v, f.v_stride.row, key, f.seqlen_k, f.head_dim_v);
    int64_t row = (seeing.begin / Config::kWarpRows + warp) * Config::kWarpRows;
    uint32_t offset = 0;
    start_queries<Config>(queries, f, head.q, row);
    cuda::ptx::copy_async_commit();
    cuda::ptx::copy_async_wait<0>();
    __syncthreads();
    for (; row < seeing.end; row += Config::kTileM) {
      __syncwarp();  // all lanes are done with the rows before, whose place the next ones take
      start_queries<Config>(queries + (Config::kQueryBytes - offset), f, head.q, row + Config::kTileM);
      cuda::ptx::copy_async_commit();
      cuda::ptx::copy_async_wait<1>();
      __syncwarp();
      attend_rows<Element, Config>(f, head, band, row, tile, lane.query + offset, key_tile + lane.key,
                                   value_tile + lane.value);
      offset = Config::kQueryBytes - offset;
    }
    cuda::ptx::copy_async_wait<0>();
  }
}

// nvcc gives kernel templates internal linkage, so each source that includes this makes its own.
template <class Element, class Config>
struct Fa1Kernel {
  static cudaError_t prepare() {
    return cudaFuncSetAttribute(fa1_kernel<Element, Config>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                Config::kSharedBytes);
  }
  static cudaError_t launch(const Fa1Params& params, uint32_t blocks, cudaStream_t stream) {
    void* arguments[] = {const_cast<Fa1Params*>(&params)};
    return cudaLaunchKernel(fa1_kernel<Element, Config>, dim3(blocks), dim3(Config::kThreads), arguments,
                            Config::kSharedBytes, stream);
  }
  static constexpr Fa1Instance instance() {
    return {Config::kTileM, Config::kTileN, Config::kThreads, Config::kSharedBytes, prepare, launch};
  }
};

template <class Element, int kHeadDim, int kRow>
constexpr Fa1Instance instance() {
  return Fa1Kernel<Element, CudaFa1Config<kHeadDim, kFa1Budgets[kRow].kib>>::instance();
}

template <class Element>
constexpr Fa1Instances instances() {
  static_assert(kFa1Rows == 4);
  return {
      {{instance<Element, 64, 0>(), instance<Element, 64, 1>(), instance<Element, 64, 2>(), instance<Element, 64, 3>()},
       {instance<Element, 128, 0>(), instance<Element, 128, 1>(), instance<Element, 128, 2>(),
        instance<Element, 128, 3>()}}};
}

}  // namespace tessera::baselines::fa1

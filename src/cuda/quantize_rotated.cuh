// Quantisation of rotated rows of 64, 128 or 256 channels, of bf16 or f16, in x's order: a thread has a whole row in
// registers, or every other channel of one of 256, so that no step of the rotation passes between threads.
// Blocks walk over tiles of 128 rows of one head, a warp over rows of its own: while it rotates them, copies of 16
// bytes bring those of the next tile. Warps meet only where rows of several share a scale.
// Work an element: 1/4 to fetch, 1/2 for signs, 1 to unpack, 6 or 7 to rotate, 1 for the largest magnitude, 2 to
// scale, 1/2 to convert, 1/4 to move; 2 more where two threads share a row. With 16 channels a thread
// (quantize_held.cuh) three of the seven steps are a shuffle and a multiply-add.
// Shared memory: 128 rows of x, twice, 16 bytes swapped by the row so that threads of 8 rows meet all banks, y over the
// rows that are done; signs, 2 bytes a channel.
// Invariants: quantize.cuh's.
#pragma once

#include "ptx/copy_async.cuh"
#include "ptx/opaque.cuh"
#include "quantize_common.cuh"

namespace tessera::cuda {

// A thread's part of a row. kShare: threads a row, 1 or 2; thread i of two has the channels c with c % 2 == i, which
// after the first step meet no others.
template <int32_t kFrom, int kDim, int kShare>
class RotatedTile {
 public:
  static constexpr int kThreads = kQuantizeRows * kShare;
  static constexpr int kTileBytes = kQuantizeRows * kDim * 2;
  static constexpr int kSharedBytes = 2 * kTileBytes + kDim * 2;
  // Of a multiprocessor: beside its part of a row a thread takes 40 of the 65536 registers, or values spill, which cost
  // more than the warps bring.
  static constexpr int kBlocks = 65536 / (kThreads * (kDim / kShare + 40));

  __device__ explicit RotatedTile(const QuantizeParams& params)
      : p_(params), thread_(ptx::opaque(static_cast<int>(threadIdx.x))) {}

  __device__ int row() const { return thread_ / kShare; }
  __device__ int part() const { return thread_ % kShare; }

  // x of the warp's rows into its part of a tile's shared memory, on its way; zeros behind the sequence.
  __device__ void fetch(const QuantizeBlock& block, char* shared) const {
    constexpr int kStep = 32 / kChunks;
    const int first = thread_ / 32 * kWarpRows + lane() / kChunks, chunk = lane() % kChunks;
    const int64_t pitch = p_.x_stride.row * 2;
    const char* from = block.x_row(first) + chunk * kChunkBytes;
#pragma unroll
    for (int i = 0; i < kWarpRows / kStep; ++i, from += kStep * pitch) {
      const int row = first + i * kStep;
      ptx::copy_async_16(ptx::shared_address(shared + chunk_at(row, chunk)), from,
                         row < block.count() ? kChunkBytes : 0);
    }
  }

  // All but the last step of the rotation and its factor. `signs`: negated_pairs in shared memory.
  __device__ void load(const char* shared, const char* signs) {
    const float sign = part() == 0 ? 1.0f : -1.0f;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const uint4 given = *reinterpret_cast<const uint4*>(shared + chunk_at(row(), chunk));
      const uint4 sign_bits = reinterpret_cast<const uint4*>(signs)[chunk];
      const uint32_t pairs[4] = {given.x ^ sign_bits.x, given.y ^ sign_bits.y, given.z ^ sign_bits.z,
                                 given.w ^ sign_bits.w};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        if constexpr (kShare == 1) {
          x_[8 * chunk + 2 * w] = unpack(pairs[w], 0);
          x_[8 * chunk + 2 * w + 1] = unpack(pairs[w], 1);
        } else {
          // A product with 1 or -1 is exact, so this is the sum or the difference, rounded once.
          x_[4 * chunk + w] = __fmaf_rn(unpack(pairs[w], 1), sign, unpack(pairs[w], 0));
        }
      }
    }
#pragma unroll
    for (int half = 1; half < kOwn / 2; half *= 2) add_and_subtract(x_, half);
      // Here, and not behind branches to come, past which what was loaded would take twice the registers.
#pragma unroll
    for (float& x : x_) x = ptx::opaque(x);
    if constexpr (kShare > 1) __syncwarp();  // all of them have read the row, over which y comes
  }

  // The bits of the row's largest finite magnitude. The larger of |a + b| and |a - b| is |a| + |b|, rounded alike.
  __device__ uint32_t largest() const {
    float most = 0.0f;
#pragma unroll
    for (int c = 0; c < kOwn / 2; ++c) most = fmaxf(most, fabsf(x_[c]) + fabsf(x_[c + kOwn / 2]));
    if (most == INFINITY) most = largest_of_finite();
    // Rounding keeps the order of numbers, so the factor may come after the maximum.
    const uint32_t found = __float_as_uint(most * p_.rotation_unit);
    if constexpr (kShare == 1) return found;
    return max_of(found, __shfl_xor_sync(0xffffffffu, found, 1));
  }

  // y, of the thread's row by `inverse` of its scale.
  __device__ void store(const QuantizeBlock& block, float inverse, char* shared) {
    add_and_subtract(x_, kOwn / 2);
    const auto value = [&](int c) { return x_[c] * p_.rotation_unit * inverse; };
    const auto pack = [&](const auto& four) {
#pragma unroll
      for (int c = 0; c < kOwn; c += kChunkBytes) {
        uint32_t words[4];
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const int at = c + 4 * w;
          words[w] = four(value(at), value(at + 1), value(at + 2), value(at + 3));
        }
        if constexpr (kShare > 1) join(words);
        *reinterpret_cast<uint4*>(shared + chunk_at(row(), c / kChunkBytes * kShare + part())) =
            make_uint4(words[0], words[1], words[2], words[3]);
      }
    };
    if (p_.y_dtype == TESSERA_INT8)
      pack(to_int8);
    else
      pack(to_e4m3);
    __syncwarp();
    constexpr int kOut = kDim / kChunkBytes, kStep = 32 / kOut;
    const int first = thread_ / 32 * kWarpRows + lane() / kOut, chunk = lane() % kOut;
    char* y = block.y_row(first) + chunk * kChunkBytes;
#pragma unroll
    for (int i = 0; i < kWarpRows / kStep; ++i, y += kStep * p_.y_stride.row) {
      const int row = first + i * kStep;
      if (row < block.count())
        *reinterpret_cast<uint4*>(y) = *reinterpret_cast<const uint4*>(shared + chunk_at(row, chunk));
    }
  }

  __device__ static uint32_t max_of(uint32_t a, uint32_t b) { return a > b ? a : b; }

 private:
  static constexpr int kChunkBytes = 16, kChunks = kDim * 2 / kChunkBytes;  // of a row of x
  static constexpr int kOwn = kDim / kShare, kWarpRows = 32 / kShare;
  static_assert(kChunks <= 32 && (kShare == 1 || kShare == 2));

  __device__ int lane() const { return thread_ % 32; }
  __device__ static int chunk_at(int row, int chunk) { return (row * kChunks + (chunk ^ row % 8)) * kChunkBytes; }
  __device__ static float unpack(uint32_t pair, int second) {
    if constexpr (kFrom == TESSERA_F16) return ptx::unpack_f16(static_cast<uint16_t>(second != 0 ? pair >> 16 : pair));
    return __uint_as_float(second != 0 ? pair & 0xffff0000u : pair << 16);
  }
  // Of 32 channels, of which a thread has every other one, 16 that follow one another.
  __device__ void join(uint32_t (&words)[4]) const {
    const bool upper = part() != 0;
    uint32_t even[2], odd[2];
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      const uint32_t own = upper ? words[w + 2] : words[w];
      const uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? words[w] : words[w + 2], 1);
      even[w] = upper ? other : own, odd[w] = upper ? own : other;
    }
#pragma unroll
    for (int w = 0; w < 4; ++w) words[w] = ptx::permute_bytes(even[w / 2], odd[w / 2], w % 2 == 0 ? 0x5140 : 0x7362);
  }
  __device__ float largest_of_finite() const {
    float most = 0.0f;
#pragma unroll
    for (int c = 0; c < kOwn / 2; ++c) {
      const float sum = fabsf(x_[c] + x_[c + kOwn / 2]), difference = fabsf(x_[c] - x_[c + kOwn / 2]);
      most = sum < INFINITY ? fmaxf(most, sum) : most;
      most = difference < INFINITY ? fmaxf(most, difference) : most;
    }
    return most;
  }

  const QuantizeParams& p_;
  int thread_;  // made anew for each tile: what follows from it would take registers over the walk
  float x_[kOwn];
};

// Calls work(n, tile, its x in shared memory) for this block's tiles of `count`, tile n at place(n), as each warp has
// what it has fetched; what comes next is on its way meanwhile. Launches before this one have ended by then.
template <class Tile, class Place, class Work>
__device__ __forceinline__ void walk_tiles(const QuantizeParams& p, char* shared, uint32_t count, const Place& place,
                                           const Work& work) {
  const auto fetch = [&](uint32_t n, char* to) {
    if (n < count) Tile(p).fetch(QuantizeBlock(p, place(n)), to);
    ptx::copy_async_commit();
  };
  char *own = shared, *next = shared + Tile::kTileBytes, *const signs = next + Tile::kTileBytes;
  fetch(blockIdx.x, own);
  // As parameters the compiler would hold all of them in registers over the walk.
  for (uint32_t i = threadIdx.x; i < static_cast<uint32_t>(p.dim) / 2; i += Tile::kThreads)
    reinterpret_cast<uint32_t*>(signs)[i] = p.negated_pairs[i];
  __syncthreads();
  ptx::wait_for_grids_before();
#pragma unroll 1
  for (uint32_t n = blockIdx.x; n < count; n += gridDim.x) {
    fetch(n + gridDim.x, next);
    ptx::copy_async_wait<1>();
    __syncwarp();
    Tile tile(p);
    work(n, tile, own, signs);
    __syncwarp();
    char* const done = own;
    own = next, next = done;
  }
  ptx::copy_async_wait<0>();
}

__device__ __forceinline__ uint32_t largest_of_warp(uint32_t found) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    const uint32_t other = __shfl_xor_sync(0xffffffffu, found, lanes);
    found = other > found ? other : found;
  }
  return found;
}

// Of tiles under scales of their own: y.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    quantize_rotated_own_kernel(const __grid_constant__ QuantizeParams p) {
  extern __shared__ __align__(128) char shared[];
  __shared__ uint32_t largest[2][Tile::kThreads / 32];  // of warps, of one tile and the next
  const auto place = [&](uint32_t n) { return place_in(p.store, n); };
  int turn = 0;
  walk_tiles<Tile>(p, shared, p.store_blocks, place, [&](uint32_t n, Tile& tile, char* own, const char* signs) {
    tile.load(own, signs);
    uint32_t found = tile.largest();
    if (p.scale_rows != 1) {
      found = largest_of_warp(found);
      if (threadIdx.x % 32 == 0) largest[turn][threadIdx.x / 32] = found;
      __syncthreads();
#pragma unroll
      for (int warp = 0; warp < Tile::kThreads / 32; ++warp) found = Tile::max_of(found, largest[turn][warp]);
      turn ^= 1;
    }
    const QuantizeBlock block(p, place(static_cast<uint32_t>(ptx::opaque(static_cast<int>(n)))));
    const float scale = core::scale_of_largest(__uint_as_float(found), p.limit);
    const int row = p.scale_rows == 1 ? tile.row() : 0;
    if (tile.part() == 0 && tile.row() == row && block.begin() + row < p.seqlen) *block.cell(row) = scale;
    tile.store(block, __fdiv_rn(1.0f, scale), own);
  });
}

// Of tiles that share scales: the largest magnitudes, or y. One kernel for both: as two of them the second launch took
// up to 12 us more, now and then, on an H200.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    quantize_rotated_shared_kernel(const __grid_constant__ QuantizeParams p) {
  extern __shared__ __align__(128) char shared[];
  ptx::let_next_grid_begin();
  const bool finds = p.find_blocks > 0;
  const uint32_t count = finds ? p.find_blocks : p.store_blocks;
  // Both are the same group.
  const auto place = [&](uint32_t n) { return place_in(p.store, p.reversed ? count - 1 - n : n); };
  walk_tiles<Tile>(p, shared, count, place, [&](uint32_t n, Tile& tile, char* own, const char* signs) {
    const int row = p.scale_rows == 1 ? tile.row() : 0;
    uint32_t found = __float_as_uint(1.0f);
    if (!finds && p.scale != nullptr) {
      const QuantizeBlock block(p, place(n));
      if (block.begin() + row < p.seqlen) found = *reinterpret_cast<volatile uint32_t*>(block.cell(row));
    }
    tile.load(own, signs);
    const QuantizeBlock block(p, place(static_cast<uint32_t>(ptx::opaque(static_cast<int>(n)))));
    if (finds) {
      uint32_t largest = tile.largest();
      if (p.scale_rows != 1) largest = largest_of_warp(largest);
      if ((p.scale_rows == 1 ? tile.part() == 0 : threadIdx.x % 32 == 0) && row < block.count())
        atomicMax(reinterpret_cast<uint32_t*>(block.cell(row)), 0x80000000u | largest);
      return;
    }
    float scale = __uint_as_float(found);
    if (found >> 31 != 0) {
      scale = core::scale_of_largest(__uint_as_float(found & 0x7fffffffu), p.limit);
      if (tile.part() == 0 && tile.row() == row) *block.cell(row) = scale;
    }
    tile.store(block, __fdiv_rn(1.0f, scale), own);
  });
}

}  // namespace tessera::cuda

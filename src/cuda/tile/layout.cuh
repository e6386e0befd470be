// Tiles of 16-bit elements in shared memory, [rows][kDim], swizzled so that eight consecutive rows of one 16-byte chunk
// lie in eight different bank groups: ldmatrix and 16-byte stores are free of conflicts without padding.
//   kDim a multiple of 64: row r stores chunk c at c ^ (r % 8)
//   kDim a multiple of 32: row r stores chunk c at c ^ (r / 2 % 4); rows are 64 bytes apart modulo 128
// Invariant: the swizzle touches only the lowest bits of the chunk, so a lane that steps over rows in eights and over
// chunks in twos reaches every address by one XOR and constant offsets.
#pragma once

#include <cstdint>

#include "../ptx/copy_async.cuh"

namespace tessera::cuda {

template <int kDim>
struct TileLayout {
  static_assert(kDim % 32 == 0);
  static constexpr int kRowBytes = kDim * 2;
  static constexpr int kSwizzleBits = kDim % 64 == 0 ? 3 : 2;
  static constexpr int kSwizzleChunks = 1 << kSwizzleBits;

  __device__ static uint32_t swizzle(int row) { return kDim % 64 == 0 ? row & 7 : (row >> 1) & 3; }
  __device__ static uint32_t offset(int row, int chunk) { return row * kRowBytes + ((chunk ^ swizzle(row)) << 4); }

  // What one lane of ldmatrix.x4 adds to a tile's address. `row` and `chunk` (0 or 1) are the lane's own.
  __device__ static uint32_t lane_offset(int row, int chunk) { return offset(row, chunk); }
  // The address `pair` pairs of chunks further in the same row.
  __device__ static uint32_t chunk_pair(uint32_t lane_address, int pair) {
    constexpr int kPairs = kSwizzleChunks / 2;
    return (lane_address ^ ((pair % kPairs) << 5)) + (pair / kPairs) * (kSwizzleChunks * 16);
  }
};

// How kThreads threads copy [kRows][kDim] tiles, 16 bytes each: kLanes neighbours share a row, so a warp's copy covers
// whole 64- or 128-byte segments, and a thread keeps its chunks and its swizzle over all passes.
template <int kRows, int kDim, int kThreads>
struct TileCopy {
  using Layout = TileLayout<kDim>;
  static constexpr int kLanes = Layout::kSwizzleChunks;
  static constexpr int kChunks = kDim / 8 / kLanes;
  static constexpr int kRowsPerPass = kThreads / kLanes;
  static constexpr int kPasses = kRows / kRowsPerPass;
  static_assert(kRows % kRowsPerPass == 0);

  __device__ static int row() { return threadIdx.x / kLanes; }
  __device__ static int chunk() { return threadIdx.x % kLanes; }

  // Starts the copy of one row of pass `pass`; chunks at or past `valid_chunks` and rows that are not `valid` become
  // zero.
  __device__ static void start(uint32_t tile, int pass, const char* row_pointer, bool valid, int valid_chunks) {
    static_assert(kRowsPerPass % 8 == 0);  // the swizzle is that of the first pass
    const uint32_t destination = tile + Layout::offset(row(), chunk()) + pass * kRowsPerPass * Layout::kRowBytes;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const bool take = valid && chunk() + i * kLanes < valid_chunks;
      ptx::copy_async_16(destination + i * kLanes * 16, row_pointer + i * kLanes * 16, take ? 16 : 0);
    }
  }
};

}  // namespace tessera::cuda

// What both forms of the kernels of a quantisation share (quantize.cuh, quantize_held.cuh): where a block's rows lie,
// its bytes, the cells of its scales.
// Largest magnitudes are gathered with the sign bit set, which tells them from scales; whoever stores y under
// such a cell replaces it by its scale, all of them by the same one.
#pragma once

#include <cmath>
#include <cstdint>

#include "element.hpp"
#include "ptx/convert.cuh"
#include "ptx/grid.cuh"
#include "ptx/math.cuh"
#include "quantize_math.hpp"
#include "quantize_params.hpp"

namespace tessera::cuda {

inline constexpr int kQuadRows = 4;

struct QuantizeRows {
  int64_t first, count;  // rows of the sequence in x
  int64_t slot;          // first of the sequence in y, order 1
};

__device__ __forceinline__ QuantizeRows sequence_rows(const QuantizeParams& p, int batch) {
  if (p.cu_seqlens == nullptr) return {0, p.seqlen, 0};
  const int64_t first = p.cu_seqlens[batch], end = p.cu_seqlens[batch + 1];
  if (first < 0 || end < first || end > p.total || end - first > p.seqlen) return {0, 0, 0};
  return {first, end - first, core::packed_first_slot(first, batch)};
}

__device__ __forceinline__ const char* row_of_x(const QuantizeParams& p, int batch, int64_t row, int head) {
  const int64_t outer = p.cu_seqlens == nullptr ? batch * p.x_stride.batch : 0;
  return static_cast<const char*>(p.x) +
         (outer + row * p.x_stride.row + head * p.x_stride.head) * (p.x_dtype == TESSERA_F32 ? 4 : 2);
}
__device__ __forceinline__ float* scale_cell(const QuantizeParams& p, int batch, int64_t row, int head) {
  const int64_t block = p.scale_rows > 0 ? row / p.scale_rows : 0;
  return p.scale + batch * p.scale_stride[0] + block * p.scale_stride[1] + head * p.scale_stride[2];
}
// Which 128 rows of which head a block takes.
struct QuantizePlace {
  int batch, tile, head;
};
__device__ __forceinline__ QuantizePlace place_in(const QuantizeGroup& group, uint32_t index) {
  const uint32_t outer = group.by_heads.divide(index), tile = group.by_batches.divide(outer);
  return {group.batch + static_cast<int>(outer - tile * group.by_batches.value), static_cast<int>(tile),
          group.head + static_cast<int>(index - outer * group.by_heads.value)};
}
// What a block of a launch does, and which of those that do it it is.
struct QuantizeShare {
  bool finds;
  uint32_t index;
};
__device__ __forceinline__ QuantizeShare share_of_block(const QuantizeParams& p) {
  const uint32_t both = p.find_blocks < p.store_blocks ? p.find_blocks : p.store_blocks;
  const bool paired = blockIdx.x / 2 < both, finds = paired ? blockIdx.x % 2 == 0 : p.find_blocks > both;
  const uint32_t index = paired ? blockIdx.x / 2 : blockIdx.x - both;
  return {finds, p.reversed ? (finds ? p.find_blocks : p.store_blocks) - 1 - index : index};
}
__device__ __forceinline__ QuantizePlace place_of_block(const QuantizeParams& p, const QuantizeShare& share) {
  return place_in(share.finds ? p.find : p.store, share.index);
}
// The rows of a block: up to 128 of one head.
class QuantizeBlock {
 public:
  __device__ QuantizeBlock(const QuantizeParams& params, const QuantizePlace& place) : p_(params) {
    head_ = place.head, batch_ = place.batch;
    begin_ = int64_t{place.tile} * kQuantizeRows;
    rows_ = sequence_rows(p_, batch_);
    const int64_t left = rows_.count - begin_;
    count_ = static_cast<int>(left < kQuantizeRows ? left : kQuantizeRows);
  }
  __device__ bool empty() const { return count_ <= 0; }
  __device__ int count() const { return count_; }
  __device__ int64_t begin() const { return begin_; }
  __device__ const char* x_row(int row) const { return row_of_x(p_, batch_, rows_.first + begin_ + row, head_); }
  __device__ char* y_row(int row) const {
    return static_cast<char*>(p_.y) + (p_.cu_seqlens == nullptr ? batch_ * p_.y_stride.batch : 0) +
           head_ * p_.y_stride.head + (rows_.first + begin_ + row) * p_.y_stride.row;
  }
  __device__ float* cell(int row) const { return scale_cell(p_, batch_, begin_ + row, head_); }

 protected:
  const QuantizeParams& p_;
  QuantizeRows rows_;
  int64_t begin_;  // first row of the block in its sequence
  int batch_, head_, count_;
};
// Row i of 4 in quad `quad` of a tile.
__device__ __forceinline__ int quad_row(int quad, int i) { return quad / 4 * 16 + quad % 4 * 2 + i % 2 + i / 2 * 8; }

// Four numbers to bytes, the first to the lowest.
__device__ __forceinline__ uint32_t to_int8(float a, float b, float c, float d) {
  // core::float_to_int8, whose sum has the number in its lowest byte.
  const auto one = [](float x) {
    return __float_as_uint((x != x ? 0.0f : fminf(fmaxf(x, -127.0f), 127.0f)) + 0x1.8p23f);
  };
  return ptx::permute_bytes(ptx::permute_bytes(one(a), one(b), 0x0040), ptx::permute_bytes(one(c), one(d), 0x0040),
                            0x5410);
}
__device__ __forceinline__ uint32_t to_e4m3(float a, float b, float c, float d) {
  if constexpr (ptx::kConvertsE4m3) {
    return ptx::pack_e4m3(a, b, c, d);
  } else {
    const auto one = [](float x) { return uint32_t{core::float_bits_to_e4m3(__float_as_uint(x))}; };
    return one(a) | one(b) << 8 | one(c) << 16 | one(d) << 24;
  }
}
__device__ __forceinline__ uint32_t to_bytes(const QuantizeParams& p, float a, float b, float c, float d) {
  return p.y_dtype == TESSERA_INT8 ? to_int8(a, b, c, d) : to_e4m3(a, b, c, d);
}

// One step of a rotation: sum and difference of the elements `half` apart.
template <int kCount>
__device__ __forceinline__ void add_and_subtract(float (&x)[kCount], int half) {
#pragma unroll
  for (int c = 0; c < kCount; ++c) {
    if ((c & half) != 0) continue;
    const float low = x[c], high = x[c + half];
    x[c] = low + high;
    x[c + half] = low - high;
  }
}

// Every cell becomes cell_value. What comes next may read x meanwhile.
__global__ void __launch_bounds__(kQuantizeThreads) quantize_cells_kernel(const __grid_constant__ QuantizeParams p) {
  ptx::let_next_grid_begin();
  const int64_t count = p.cells[0] * p.cells[1] * p.cells[2], step = int64_t{gridDim.x} * kQuantizeThreads;
  for (int64_t i = int64_t{blockIdx.x} * kQuantizeThreads + threadIdx.x; i < count; i += step) {
    const int64_t head = i % p.cells[2], block = i / p.cells[2] % p.cells[1], batch = i / p.cells[2] / p.cells[1];
    p.scale[batch * p.scale_stride[0] + block * p.scale_stride[1] + head * p.scale_stride[2]] = p.cell_value;
  }
}

// The largest magnitudes that a block found into the cells of its `count` rows.
template <class Tile>
__device__ __forceinline__ void gather_largest(const QuantizeParams& p, const Tile& tile, const uint32_t* largest) {
  for (int row = static_cast<int>(threadIdx.x); row < (p.scale_rows == 1 ? tile.count() : 1);
       row += static_cast<int>(blockDim.x))
    atomicMax(reinterpret_cast<uint32_t*>(tile.cell(row)), 0x80000000u | largest[row]);
}

// The scales of a block's rows into its cells, also of rows that the sequence lacks, and their inverses into shared
// memory. kOwn: of the largest magnitudes that the block found.
template <bool kOwn, class Tile>
__device__ __forceinline__ void finish_scales(const QuantizeParams& p, const Tile& tile, const uint32_t* largest,
                                              float* inverse) {
  for (int row = static_cast<int>(threadIdx.x); row < (p.scale_rows == 1 ? kQuantizeRows : 1);
       row += static_cast<int>(blockDim.x)) {
    float scale = 1.0f;
    if (p.scale != nullptr && tile.begin() + row < p.seqlen) {
      float* cell = tile.cell(row);
      const uint32_t found =
          kOwn ? 0x80000000u | (row < tile.count() ? largest[row] : 0) : *reinterpret_cast<volatile uint32_t*>(cell);
      if (found >> 31 != 0) {
        scale = core::scale_of_largest(__uint_as_float(found & 0x7fffffffu), p.limit);
        *cell = scale;
      } else {
        scale = __uint_as_float(found);
      }
    }
    inverse[row] = __fdiv_rn(1.0f, scale);
  }
}

}  // namespace tessera::cuda

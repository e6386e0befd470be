// Quantisation: what tessera_quantize_args describes, for any head_dim and alignment; quantize_held.cuh takes the rest.
// A block takes 128 rows of one head, a thread 4 rows of 8 channels at a time: rows 16 g + 2 q + {0, 1, 8, 9}, which
// order 1 puts into 4 neighbouring slots.
//   x [batch, seqlen, heads, head_dim] or packed -> y like x, or [batch, heads, head_dim, slots]; scale, mean
// Passes over x: one for means, one for largest magnitudes (none where a block's rows have scales of their own: it
// reads its 32 KB twice, the second time from a cache), one for y. Each pass walks opposite to the one before it, so
// that it meets first what the L2 cache still holds. Work: log2(rotation) + 4 operations an element; bound by the
// bytes: of bf16 2 an element and pass, and 1 written.
// Shared memory: largest magnitudes 512 B; order 1: head_dim rows of 132 bytes.
// Invariants: arithmetic as src/quantize.cpp's, operation by operation; whatever cu_seqlens hold, nothing outside of
// the arrays is read or written.
#pragma once

#include <cmath>
#include <cstdint>

#include "quantize_common.cuh"
#include "unit_io.cuh"

namespace tessera::cuda {

// 8 channels of a row, less the mean, rotated. Threads of one row are neighbours, and all of a warp come here.
__device__ __forceinline__ Unit transform_unit(const QuantizeParams& p, Unit unit, const float* mean, int first,
                                               int count, uint32_t negated) {
  if (mean != nullptr) {
#pragma unroll
    for (int i = 0; i < kAppendUnit; ++i) unit.x[i] = i < count ? unit.x[i] - mean[first + i] : 0.0f;
  }
  if (p.rotation == 0) return unit;
#pragma unroll
  for (int i = 0; i < kAppendUnit; ++i) unit.x[i] = (negated >> i & 1) != 0 ? -unit.x[i] : unit.x[i];
#pragma unroll
  for (int half = 1; half < kAppendUnit; half *= 2) {
    if (half >= p.rotation) break;
    add_and_subtract(unit.x, half);
  }
  for (int lanes = 1; lanes * kAppendUnit < p.rotation; lanes *= 2) {
    const bool second = (threadIdx.x & static_cast<unsigned>(lanes)) != 0;
#pragma unroll
    for (int i = 0; i < kAppendUnit; ++i) {
      const float other = __shfl_xor_sync(0xffffffffu, unit.x[i], lanes);
      unit.x[i] = second ? other - unit.x[i] : unit.x[i] + other;
    }
  }
#pragma unroll
  for (int i = 0; i < kAppendUnit; ++i) unit.x[i] *= p.rotation_unit;
  return unit;
}

// What a block works on, and its walk over quads of rows.
class QuantizeTile : public QuantizeBlock {
 public:
  __device__ explicit QuantizeTile(const QuantizeParams& params)
      : QuantizeBlock(params, place_of_block(params, share_of_block(params))) {
    units_ = (p_.dim + kAppendUnit - 1) / kAppendUnit;
  }

  // Calls f(quad, first channel, channels, units[4]) for all of the tile; rows past the end are 0. A warp's threads
  // stay together, those without work with channels 0.
  template <class F>
  __device__ void for_each_quad(const F& f) const {
    const int total = (count_ + 15) / 16 * 4 * units_;
    const float* mean = p_.mean != nullptr ? p_.mean + (int64_t{batch_} * p_.heads + head_) * p_.dim : nullptr;
    for (int base = 0; base < total; base += kQuantizeThreads) {
      const int index = base + static_cast<int>(threadIdx.x);
      const int quad = index / units_, first = (index - quad * units_) * kAppendUnit, left = p_.dim - first;
      const int channels = index < total ? (left < kAppendUnit ? left : kAppendUnit) : 0;
      const uint32_t negated = p_.rotation > 0 ? p_.negated[first / 32] >> first % 32 : 0;
      Unit units[kQuadRows];
#pragma unroll
      for (int i = 0; i < kQuadRows; ++i) {
        const int row = quad_row(quad, i);
        units[i] = Unit{};
        if (channels > 0 && row < count_)
          units[i] = load_unit(row_of_x(p_, batch_, rows_.first + begin_ + row, head_), p_.x_dtype, first, channels,
                               p_.x_aligned);
      }
#pragma unroll
      for (int i = 0; i < kQuadRows; ++i) {
        const bool inside = quad_row(quad, i) < count_;
        units[i] = transform_unit(p_, units[i], inside ? mean : nullptr, first, channels, negated);
        if (!inside) units[i] = Unit{};  // a rotation made it -0
      }
      f(quad, first, channels, units);
    }
  }

  // Largest finite magnitudes, as bits, which order as the numbers do: of each row where rows have scales of their own,
  // else of the tile in largest[0].
  __device__ void find_largest(uint32_t* largest) const {
    for (int i = static_cast<int>(threadIdx.x); i < kQuantizeRows; i += kQuantizeThreads) largest[i] = 0;
    __syncthreads();
    uint32_t most = 0;
    for_each_quad([&](int quad, int, int channels, const Unit(&units)[kQuadRows]) {
#pragma unroll
      for (int i = 0; i < kQuadRows; ++i) {
        uint32_t own = 0;
#pragma unroll
        for (int c = 0; c < kAppendUnit; ++c) {
          const uint32_t bits = __float_as_uint(units[i].x[c]) & 0x7fffffffu;
          own = c < channels && bits < 0x7f800000u && bits > own ? bits : own;
        }
        if (p_.scale_rows == 1 && channels > 0) atomicMax(&largest[quad_row(quad, i)], own);
        most = own > most ? own : most;
      }
    });
    if (p_.scale_rows != 1) {
      for (int lanes = 16; lanes > 0; lanes /= 2) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, most, lanes);
        most = other > most ? other : most;
      }
      if (threadIdx.x % 32 == 0) atomicMax(&largest[0], most);
    }
    __syncthreads();
  }

  // `inverse`: of the scales, by row or largest[0] for all.
  __device__ void store(const float* inverse, uint32_t* slots) const {
    char* y = static_cast<char*>(p_.y) + head_ * p_.y_stride.head;
    if (p_.cu_seqlens == nullptr) y += batch_ * p_.y_stride.batch;
    for_each_quad([&](int quad, int first, int channels, const Unit(&units)[kQuadRows]) {
      if (channels == 0) return;
      float by[kQuadRows];
#pragma unroll
      for (int i = 0; i < kQuadRows; ++i) by[i] = inverse[p_.scale_rows == 1 ? quad_row(quad, i) : 0];
      if (p_.ordered) {
#pragma unroll
        for (int c = 0; c < kAppendUnit; ++c) {
          if (c >= channels) continue;
          slots[(first + c) * (kQuantizePitch / 4) + quad] =
              to_bytes(p_, units[0].x[c] * by[0], units[1].x[c] * by[1], units[2].x[c] * by[2], units[3].x[c] * by[3]);
        }
        return;
      }
#pragma unroll
      for (int i = 0; i < kQuadRows; ++i) {
        const int row = quad_row(quad, i);
        if (row >= count_) continue;
        const Unit& u = units[i];
        const uint32_t low = to_bytes(p_, u.x[0] * by[i], u.x[1] * by[i], u.x[2] * by[i], u.x[3] * by[i]),
                       high = to_bytes(p_, u.x[4] * by[i], u.x[5] * by[i], u.x[6] * by[i], u.x[7] * by[i]);
        char* to = y + (rows_.first + begin_ + row) * p_.y_stride.row + first;
        if (p_.y_aligned && channels == kAppendUnit) {
          *reinterpret_cast<uint2*>(to) = make_uint2(low, high);
        } else {
          for (int c = 0; c < channels; ++c) to[c] = static_cast<char>((c < 4 ? low >> 8 * c : high >> 8 * (c - 4)));
        }
      }
    });
    if (!p_.ordered) return;
    __syncthreads();
    // 16 slots, a group, at a time.
    const int groups = (count_ + 15) / 16;
    for (int i = static_cast<int>(threadIdx.x); i < p_.dim * groups; i += kQuantizeThreads) {
      const int channel = i / groups, group = i - channel * groups;
      const uint32_t* from = slots + channel * (kQuantizePitch / 4) + group * 4;
      char* to = y + channel * p_.y_stride.row + rows_.slot + begin_ + group * 16;
      if (p_.y_aligned) {
        *reinterpret_cast<uint4*>(to) = make_uint4(from[0], from[1], from[2], from[3]);
      } else {
        for (int b = 0; b < 16; ++b) to[b] = static_cast<char>(from[b / 4] >> 8 * (b % 4));
      }
    }
  }

 private:
  int units_;
};

// Means of 64 channels of a head: sums in float64, each thread's rows 128 apart, then 4 threads' of a warp, then these
// in order.
__global__ void __launch_bounds__(kQuantizeMeanThreads)
    quantize_means_kernel(const __grid_constant__ QuantizeParams p) {
  constexpr int kLanes = kQuantizeMeanChannels / kAppendUnit, kRows = kQuantizeMeanThreads / kLanes, kWarp = 32;
  __shared__ double sums[kQuantizeMeanThreads / kWarp][kQuantizeMeanChannels];
  const int chunks = (p.dim + kQuantizeMeanChannels - 1) / kQuantizeMeanChannels;
  uint32_t index = blockIdx.x;
  const int chunk = static_cast<int>(index % static_cast<uint32_t>(chunks));
  index /= static_cast<uint32_t>(chunks);
  const int head = static_cast<int>(index % static_cast<uint32_t>(p.heads));
  const int batch = static_cast<int>(index / static_cast<uint32_t>(p.heads));
  const QuantizeRows rows = sequence_rows(p, batch);
  const int lane = static_cast<int>(threadIdx.x) % kLanes, own = static_cast<int>(threadIdx.x) / kLanes;
  // Threads past the last channel sum the first ones, for nobody.
  const int given = chunk * kQuantizeMeanChannels + lane * kAppendUnit, first = given < p.dim ? given : 0;
  const int left = p.dim - first, channels = left < kAppendUnit ? left : kAppendUnit;
  double sum[kAppendUnit] = {};
  for (int64_t row = own; row < rows.count; row += kRows) {
    const Unit unit = load_unit(row_of_x(p, batch, rows.first + row, head), p.x_dtype, first, channels, p.x_aligned);
#pragma unroll
    for (int i = 0; i < kAppendUnit; ++i) {
      const bool finite = fabsf(unit.x[i]) < INFINITY;
      sum[i] += static_cast<double>(finite ? unit.x[i] : 0.0f);
    }
  }
#pragma unroll
  for (int i = 0; i < kAppendUnit; ++i) {
#pragma unroll
    for (int lanes = kLanes; lanes < kWarp; lanes *= 2) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], lanes);
    if (threadIdx.x % kWarp < kLanes) sums[threadIdx.x / kWarp][lane * kAppendUnit + i] = sum[i];
  }
  __syncthreads();
  const int channel = static_cast<int>(threadIdx.x);
  if (channel >= kQuantizeMeanChannels || chunk * kQuantizeMeanChannels + channel >= p.dim) return;
  double total = 0;
  for (int i = 0; i < kQuantizeMeanThreads / kWarp; ++i) total += sums[i][channel];
  p.mean[(int64_t{batch} * p.heads + head) * p.dim + chunk * kQuantizeMeanChannels + channel] =
      rows.count > 0 ? static_cast<float>(total / static_cast<double>(rows.count)) : 0.0f;
}

// The largest magnitudes into the cells.
__global__ void __launch_bounds__(kQuantizeThreads) quantize_largest_kernel(const __grid_constant__ QuantizeParams p) {
  __shared__ uint32_t largest[kQuantizeRows];
  const QuantizeTile tile(p);
  if (tile.empty()) return;
  tile.find_largest(largest);
  gather_largest(p, tile, largest);
}

// y, under scales that the cells hold or, where kOwn, that the block finds.
template <bool kOwn>
__global__ void __launch_bounds__(kQuantizeThreads, 2) quantize_store_kernel(const __grid_constant__ QuantizeParams p) {
  extern __shared__ __align__(128) char shared[];
  __shared__ uint32_t largest[kQuantizeRows];
  __shared__ float inverse[kQuantizeRows];
  const QuantizeTile tile(p);
  if (kOwn && !tile.empty()) tile.find_largest(largest);
  finish_scales<kOwn>(p, tile, largest, inverse);
  if (tile.empty()) return;
  __syncthreads();
  tile.store(inverse, reinterpret_cast<uint32_t*>(shared));
}

}  // namespace tessera::cuda

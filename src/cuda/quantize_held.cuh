// Quantisation of rows that a block holds in registers: head_dim a multiple of 16 and at most 256, 16-byte accesses.
// A block takes 128 rows of one head, a thread 4 of them (quantize.cuh's) and 16 channels, which it reads once, all its
// loads of 16 bytes in flight, and keeps as they came. After a rotation it keeps float32, and has 2 rows: 4 take over
// 96 registers, so that half as many warps would fit. quantize_rotated.cuh has the rotations that a thread does alone.
// Tiles that share a scale: a launch stores the group of whole cells (QuantizeCut) of which the one before it has found
// the largest magnitudes and left x in the L2 cache, and finds those of the next group: x passes from memory once.
// Work an element: 1 to unpack, 1 for the largest magnitude, 1 to scale, 1/2 to convert, 1/4 to move; a rotation 4 + 2
// for every factor of 2 past 16, half of these shuffles. Bound by the bytes.
// Shared memory: order 1: head_dim rows of 128 bytes, groups of 16 slots swapped so that no access meets a bank twice
// at head_dim 128.
// Invariants: quantize.cuh's.
#pragma once

#include "ptx/grid.cuh"
#include "ptx/load.cuh"
#include "quantize_common.cuh"

namespace tessera::cuda {

// What becomes of x before its scale. kRotated: the mean, where there is one, is taken off before.
enum class Held { kAsGiven, kLessMean, kRotated };
template <Held kHow>
inline constexpr int kHeldRows = kHow == Held::kRotated ? 2 : 4;
template <Held kHow>
inline constexpr int kHeldThreads = kMostHeldDim / kHeldChannels*(kQuantizeRows / kHeldRows<kHow>);

template <int32_t kFrom, Held kHow>
class HeldTile : public QuantizeBlock {
 public:
  static constexpr int kThreads = kHeldThreads<kHow>;

  __device__ HeldTile(const QuantizeParams& params, const QuantizePlace& place) : QuantizeBlock(params, place) {
    const uint32_t share = p_.by_held.divide(threadIdx.x);
    first_ = static_cast<int>(threadIdx.x - share * p_.by_held.value) * kHeldChannels;
    quad_ = static_cast<int>(share) / (kQuadRows / kRows), part_ = static_cast<int>(share) % (kQuadRows / kRows);
  }

  // last: nobody reads x after this, so its lines may go before others.
  __device__ void load(bool last, char*) {
    if (kHow == Held::kRotated && p_.mean != nullptr) ptx::wait_for_grids_before();
    uint4 given[kRows][kAccesses];
    const char* from = row_of_x(p_, batch_, rows_.first + begin_, head_) + first_ * (kFrom == TESSERA_F32 ? 4 : 2);
    const int64_t pitch = p_.x_stride.row * (kFrom == TESSERA_F32 ? 4 : 2);
    const auto fetch = [&](const auto& read) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int row = row_of(i);
#pragma unroll
        for (int a = 0; a < kAccesses; ++a)
          given[i][a] = row < count_ ? read(reinterpret_cast<const uint4*>(from + row * pitch) + a) : uint4{};
      }
    };
    if (last)
      fetch([](const uint4* at) { return ptx::load_last(at); });
    else
      fetch([](const uint4* at) { return *at; });
    if constexpr (kHow == Held::kLessMean) ptx::wait_for_grids_before();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int a = 0; a < kAccesses; ++a) {
        const uint32_t words[4] = {given[i][a].x, given[i][a].y, given[i][a].z, given[i][a].w};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          if constexpr (kHow != Held::kRotated || kFrom == TESSERA_F32) {
            held_[i][4 * a + w] = words[w];
          } else {
            held_[i][8 * a + 2 * w] = __float_as_uint(unpack(words[w], 0));
            held_[i][8 * a + 2 * w + 1] = __float_as_uint(unpack(words[w], 1));
          }
        }
      }
    }
    if constexpr (kHow == Held::kRotated) turn();
  }

  // quantize.cuh's find_largest, of what is held.
  __device__ void find_largest(uint32_t* largest) const {
    for (int i = static_cast<int>(threadIdx.x); i < kQuantizeRows; i += static_cast<int>(blockDim.x)) largest[i] = 0;
    __syncthreads();
    uint32_t most[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) most[i] = kHow != Held::kLessMean || row_of(i) < count_ ? largest_of_row(i) : 0;
    if (p_.scale_rows == 1) {
      // Neighbours of a row first, as many as a power of two.
      const int lanes = static_cast<int>(p_.by_held.value & (0u - p_.by_held.value));
      for (int other = 1; other < lanes; other *= 2) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) most[i] = max_of(most[i], __shfl_xor_sync(0xffffffffu, most[i], other));
      }
      if (first_ % (lanes * kHeldChannels) == 0) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) atomicMax(&largest[row_of(i)], most[i]);
      }
    } else {
      uint32_t all = most[0];
#pragma unroll
      for (int i = 1; i < kRows; ++i) all = max_of(all, most[i]);
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2) all = max_of(all, __shfl_xor_sync(0xffffffffu, all, lanes));
      if (threadIdx.x % 32 == 0) atomicMax(&largest[0], all);
    }
    __syncthreads();
  }

  // `inverse`: of the scales, by row or inverse[0] for all.
  __device__ void store(const float* inverse, char* slots) const {
    char* y = static_cast<char*>(p_.y) + head_ * p_.y_stride.head;
    if (p_.cu_seqlens == nullptr) y += batch_ * p_.y_stride.batch;
    float by[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) by[i] = inverse[p_.scale_rows == 1 ? row_of(i) : 0];
    if (p_.ordered) return store_ordered(y, by, slots);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = row_of(i);
      if (row >= count_) continue;
      uint32_t words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        fetch_means(4 * w);
        words[w] = to_bytes(p_, value(i, 4 * w) * by[i], value(i, 4 * w + 1) * by[i], value(i, 4 * w + 2) * by[i],
                            value(i, 4 * w + 3) * by[i]);
      }
      *reinterpret_cast<uint4*>(y + (rows_.first + begin_ + row) * p_.y_stride.row + first_) =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
  }

 private:
  static constexpr int kRows = kHeldRows<kHow>;
  static constexpr int kAccesses = kFrom == TESSERA_F32 ? 4 : 2;
  static constexpr int kWords = kHow == Held::kRotated || kFrom == TESSERA_F32 ? kHeldChannels : kHeldChannels / 2;

  __device__ int row_of(int i) const { return quad_row(quad_, part_ * kRows + i); }
  __device__ static uint32_t max_of(uint32_t a, uint32_t b) { return a > b ? a : b; }
  __device__ static float unpack(uint32_t pair, int second) {
    if constexpr (kFrom == TESSERA_F16) return ptx::unpack_f16(static_cast<uint16_t>(second != 0 ? pair >> 16 : pair));
    return __uint_as_float(second != 0 ? pair & 0xffff0000u : pair << 16);
  }
  // After fetch_means of the four channels that c is among: all means would take 16 registers.
  __device__ float value(int i, int c) const {
    const float x =
        kWords == kHeldChannels ? __uint_as_float(held_[i][c % kWords]) : unpack(held_[i][c / 2 % kWords], c % 2);
    return kHow == Held::kLessMean ? x - mean_[c % 4] : x;
  }
  __device__ float4 four_means(int c) const {
    return *reinterpret_cast<const float4*>(p_.mean + (int64_t{batch_} * p_.heads + head_) * p_.dim + first_ + c);
  }
  __device__ void fetch_means(int c) const {
    if (kHow != Held::kLessMean || c % 4 != 0) return;
    const float4 four = four_means(c);
    mean_[0] = four.x, mean_[1] = four.y, mean_[2] = four.z, mean_[3] = four.w;
  }

  // The mean taken off, and rotated; rows past the end stay 0.
  __device__ void turn() {
    float mean[kHeldChannels] = {};
    if (p_.mean != nullptr) {
#pragma unroll
      for (int c = 0; c < kHeldChannels; c += 4) {
        const float4 four = four_means(c);
        mean[c] = four.x, mean[c + 1] = four.y, mean[c + 2] = four.z, mean[c + 3] = four.w;
      }
    }
    const uint32_t negated = p_.negated[first_ / 32] >> first_ % 32;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float x[kHeldChannels];
#pragma unroll
      for (int c = 0; c < kHeldChannels; ++c) x[c] = __uint_as_float(held_[i][c]);
      if (p_.mean != nullptr) {
#pragma unroll
        for (int c = 0; c < kHeldChannels; ++c) x[c] -= mean[c];
      }
      rotate(x, negated);
      if (count_ < kQuantizeRows && row_of(i) >= count_) {
#pragma unroll
        for (int c = 0; c < kHeldChannels; ++c) x[c] = 0.0f;
      }
#pragma unroll
      for (int c = 0; c < kHeldChannels; ++c) held_[i][c] = __float_as_uint(x[c]);
    }
  }

  // All of a warp come here; a rotation mixes at least 16 channels.
  __device__ void rotate(float (&x)[kHeldChannels], uint32_t negated) const {
#pragma unroll
    for (int c = 0; c < kHeldChannels; ++c) x[c] = (negated >> c & 1) != 0 ? -x[c] : x[c];
#pragma unroll
    for (int half = 1; half < kHeldChannels; half *= 2) add_and_subtract(x, half);
    for (int lanes = 1; lanes * kHeldChannels < p_.rotation; lanes *= 2) {
      // A product with 1 or -1 is exact, so this is the sum or the difference, rounded once.
      const float sign = (threadIdx.x & static_cast<unsigned>(lanes)) != 0 ? -1.0f : 1.0f;
#pragma unroll
      for (int c = 0; c < kHeldChannels; ++c) x[c] = __fmaf_rn(x[c], sign, __shfl_xor_sync(0xffffffffu, x[c], lanes));
    }
#pragma unroll
    for (int c = 0; c < kHeldChannels; ++c) x[c] *= p_.rotation_unit;
  }

  // The bits of a row's largest finite magnitude. fmaxf leaves NaN out; infinity is rare and looked for afterwards.
  __device__ uint32_t largest_of_row(int i) const {
    float most = 0.0f;
#pragma unroll
    for (int c = 0; c < kHeldChannels; ++c) {
      fetch_means(c);
      most = fmaxf(most, fabsf(value(i, c)));
    }
    uint32_t found = __float_as_uint(most);
    if (found == 0x7f800000u) {
      found = 0;
#pragma unroll
      for (int c = 0; c < kHeldChannels; ++c) {
        fetch_means(c);
        const uint32_t bits = __float_as_uint(value(i, c)) & 0x7fffffffu;
        found = bits < 0x7f800000u ? max_of(found, bits) : found;
      }
    }
    return found;
  }

  // Where 16 slots, a group, of a channel lie: groups of channels 16 apart, which one access meets, in different banks.
  __device__ static int group_at(int channel, int group) {
    return channel * kQuantizeRows + (group ^ channel / kHeldChannels % 8) * 16;
  }
  __device__ void store_ordered(char* y, const float (&by)[kRows], char* slots) const {
    char* own = slots + quad_ % 4 * kQuadRows + part_ * kRows;
    uint32_t inside = 0xffffffffu;  // rows past the end are +0, not less the mean
    if (kHow == Held::kLessMean && count_ < kQuantizeRows) {
      inside = 0;
#pragma unroll
      for (int i = 0; i < kRows; ++i) inside |= row_of(i) < count_ ? 0xffu << 8 * i : 0;
    }
#pragma unroll
    for (int c = 0; c < kHeldChannels; c += kQuadRows / kRows) {
      char* to = own + group_at(first_ + c, quad_ / 4);
      fetch_means(c);
      if constexpr (kRows == kQuadRows) {
        *reinterpret_cast<uint32_t*>(to) =
            to_bytes(p_, value(0, c) * by[0], value(1, c) * by[1], value(2, c) * by[2], value(3, c) * by[3]) & inside;
      } else {
        const uint32_t two =
            to_bytes(p_, value(0, c) * by[0], value(1, c) * by[1], value(0, c + 1) * by[0], value(1, c + 1) * by[1]);
        *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(two);
        *reinterpret_cast<uint16_t*>(to + kQuantizeRows) = static_cast<uint16_t>(two >> 16);
      }
    }
    __syncthreads();
    y += rows_.slot + begin_;
    constexpr int kGroups = kQuantizeRows / 16;
    const int group = static_cast<int>(threadIdx.x) % kGroups;
    if (group * 16 >= count_) return;
    for (int channel = static_cast<int>(threadIdx.x) / kGroups; channel < p_.dim;
         channel += static_cast<int>(blockDim.x) / kGroups)
      *reinterpret_cast<uint4*>(y + channel * p_.y_stride.row + group * 16) =
          *reinterpret_cast<const uint4*>(slots + group_at(channel, group));
  }

  int first_;
  int quad_, part_;  // rows of a thread: all of a quad, or a half
  uint32_t held_[kRows][kWords];
  mutable float mean_[4];
};

// Of tiles under scales of their own: y.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads) quantize_held_own_kernel(const __grid_constant__ QuantizeParams p) {
  extern __shared__ __align__(128) char shared[];
  __shared__ uint32_t largest[kQuantizeRows];
  __shared__ float inverse[kQuantizeRows];
  if (p.mean != nullptr) ptx::wait_for_grids_before();  // else no launch of the call is before this one
  Tile tile(p, place_in(p.store, p.reversed ? gridDim.x - 1 - blockIdx.x : blockIdx.x));
  if (!tile.empty()) {
    tile.load(true, shared);
    tile.find_largest(largest);
  }
  finish_scales<true>(p, tile, largest, inverse);
  if (tile.empty()) return;
  __syncthreads();
  tile.store(inverse, shared);
}

// What a block does that stores y under scales whose cells the launches before this one have filled, or none.
template <class Tile>
__device__ __forceinline__ void store_held(const QuantizeParams& p, const QuantizeShare& share, char* shared) {
  __shared__ float inverse[kQuantizeRows];
  Tile tile(p, place_of_block(p, share));
  if (!tile.empty()) tile.load(true, shared);
  ptx::wait_for_grids_before();
  finish_scales<false>(p, tile, nullptr, inverse);
  if (tile.empty()) return;
  __syncthreads();
  tile.store(inverse, shared);
}

// Of tiles that share scales: largest magnitudes of one group, and y of the group before it.
// A block has its x before it waits for the launch before this one.
template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads)
    quantize_held_shared_kernel(const __grid_constant__ QuantizeParams p) {
  extern __shared__ __align__(128) char shared[];
  __shared__ uint32_t largest[kQuantizeRows];
  ptx::let_next_grid_begin();
  const QuantizeShare share = share_of_block(p);
  if (!share.finds) return store_held<Tile>(p, share, shared);
  Tile tile(p, place_of_block(p, share));
  if (!tile.empty()) {
    tile.load(false, shared);
    tile.find_largest(largest);
  }
  ptx::wait_for_grids_before();
  if (!tile.empty()) gather_largest(p, tile, largest);
}

}  // namespace tessera::cuda

// Means of heads whose rows quantize_held.cuh takes and, without a rotation, their largest magnitudes less the mean in
// the same walk: rounding keeps the order of numbers, so these are a channel's largest or smallest less its mean.
// A block takes 16 channels of one head, a thread 8 of them and rows half a block apart. They come by way of shared
// memory: with registers for those under way half as many blocks would fit beside the ones that store.
// Sums in float64: of a thread, of a warp, of the warps in order.
// Work an element: 1 to unpack, 1 to convert (16 a cycle and multiprocessor), 1 to add, 2 for the extremes.
// Shared memory: 128 bytes a thread, 64 where that would be over 32 KB; 256 bytes a warp.
// Invariants: quantize.cuh's.
#pragma once

#include "ptx/copy_async.cuh"
#include "quantize_held.cuh"
#include "unit_io.cuh"

namespace tessera::cuda {

template <int32_t kFrom>
class HeldMeans {
  static constexpr int kLanes = kHeldMeanChannels / kAppendUnit;
  static constexpr int kBytes = kFrom == TESSERA_F32 ? 4 : 2, kAccesses = kAppendUnit * kBytes / 16;

 public:
  struct Raw {
    uint4 part[kAccesses];
  };

  __device__ HeldMeans(const QuantizeParams& params, uint32_t index) : p_(params) {
    const uint32_t head = p_.by_held.divide(index);
    const QuantizePlace place = place_in(p_.find, head);
    batch_ = place.batch, head_ = place.head;
    first_ = static_cast<int>(index - head * p_.by_held.value) * kHeldMeanChannels;
    const QuantizeRows rows = sequence_rows(p_, batch_);
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    count_ = static_cast<uint32_t>(rows.count);
    begin_ = threadIdx.x / kLanes, step_ = blockDim.x / kLanes;
    pitch_ = int64_t{step_} * p_.x_stride.row * kBytes;
    from_ = row_of_x(p_, batch_, rows.first + begin_, head_) + (first_ + lane * kAppendUnit) * kBytes;
  }

  // kStages: rows of a thread that shared memory holds, all but one of them on their way; nobody else reads them.
  template <int kStages>
  __device__ void walk(char* shared) {
    clear();
    const uint32_t stage_bytes = blockDim.x * sizeof(Raw), bytes = kStages * stage_bytes;
    char* const own = shared + threadIdx.x * sizeof(Raw);
    const char* from = from_;
    uint32_t fetched = begin_, to = 0;  // the row to be fetched, and where in shared memory
    const auto fetch = [&] {
      if (fetched < count_) {
#pragma unroll
        for (int a = 0; a < kAccesses; ++a)
          ptx::copy_async_16(ptx::shared_address(own + to) + a * 16, from + a * 16, 16);
      }
      ptx::copy_async_commit();
      fetched += step_, from += pitch_, to = to + stage_bytes < bytes ? to + stage_bytes : 0;
    };
#pragma unroll 1
    for (int stage = 1; stage < kStages; ++stage) fetch();
    uint32_t at = 0;
#pragma unroll 1
    for (uint32_t row = begin_; row < count_; row += step_) {
      ptx::copy_async_wait<kStages - 2>();
      const Raw raw = read(own + at);
      fetch();
      add<false>(raw);
      at = at + stage_bytes < bytes ? at + stage_bytes : 0;
    }
    ptx::copy_async_wait<0>();
    double all = 0;  // a sum of finite float32 stays finite, any other does not
#pragma unroll
    for (int i = 0; i < kAppendUnit; ++i) all += sum_[i] - sum_[i];
    if (all == 0) return;
    clear();
    from = from_;
#pragma unroll 1
    for (uint32_t row = begin_; row < count_; row += step_, from += pitch_) add<true>(read(from));
  }

  // Means into memory and, where asked for, the largest magnitude into the cell.
  __device__ void finish() {
    constexpr int kMostWarps = kHeldThreads<Held::kLessMean> / 32;
    __shared__ double sums[kMostWarps][kHeldMeanChannels];
    __shared__ float lows[kMostWarps][kHeldMeanChannels], highs[kMostWarps][kHeldMeanChannels];
    __shared__ float means[kHeldMeanChannels], found[kHeldMeanChannels];
    combine(sum_, [](double a, double b) { return a + b; });
    combine(low_, [](float a, float b) { return fminf(a, b); });
    combine(high_, [](float a, float b) { return fmaxf(a, b); });
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
    if ((lane & 2) == 0) {
      const int channel = lane % kLanes * kAppendUnit + lane / 16 * 4 + lane / 8 % 2 * 2 + lane / 4 % 2;
      sums[warp][channel] = sum_[0], lows[warp][channel] = low_[0], highs[warp][channel] = high_[0];
    }
    __syncthreads();
    ptx::wait_for_grids_before();
    if (thread < kHeldMeanChannels) {
      double total = 0;
      float low = INFINITY, high = -INFINITY;
      for (int i = 0; i < static_cast<int>(blockDim.x) / 32; ++i) {
        total += sums[i][thread];
        low = fminf(low, lows[i][thread]), high = fmaxf(high, highs[i][thread]);
      }
      const float mean = count_ > 0 ? static_cast<float>(total / static_cast<double>(count_)) : 0.0f;
      p_.mean[(int64_t{batch_} * p_.heads + head_) * p_.dim + first_ + thread] = mean;
      means[thread] = mean;
      found[thread] = low <= high ? fmaxf(fabsf(low - mean), fabsf(high - mean)) : 0.0f;
    }
    if (!p_.means_find || count_ == 0) return;
    __syncthreads();
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < kHeldMeanChannels; ++i) most = fmaxf(most, found[i]);
    // A difference past the largest float32 counts for nothing: then each number has to be looked at.
    if (most == INFINITY)
      most = largest_difference(means + thread % kLanes * kAppendUnit);
    else if (thread > 0)
      return;
    atomicMax(reinterpret_cast<uint32_t*>(scale_cell(p_, batch_, 0, head_)), 0x80000000u | __float_as_uint(most));
  }

 private:
  __device__ static Raw read(const char* from) {
    Raw raw;
#pragma unroll
    for (int a = 0; a < kAccesses; ++a) raw.part[a] = reinterpret_cast<const uint4*>(from)[a];
    return raw;
  }
  __device__ static float number(const Raw& raw, int i) {
    const uint4& part = raw.part[i * kBytes / 16];
    const int word = i * kBytes / 4 % 4;
    const uint32_t bits = word == 0 ? part.x : word == 1 ? part.y : word == 2 ? part.z : part.w;
    if constexpr (kFrom == TESSERA_F32) return __uint_as_float(bits);
    if constexpr (kFrom == TESSERA_F16) return ptx::unpack_f16(static_cast<uint16_t>(i % 2 != 0 ? bits >> 16 : bits));
    return __uint_as_float(i % 2 != 0 ? bits & 0xffff0000u : bits << 16);
  }
  // kLooks: leaves out what is not finite.
  template <bool kLooks>
  __device__ void add(const Raw& raw) {
#pragma unroll
    for (int i = 0; i < kAppendUnit; ++i) {
      const float x = number(raw, i);
      if (kLooks && !(fabsf(x) < INFINITY)) continue;
      sum_[i] += static_cast<double>(x);
      low_[i] = fminf(low_[i], x), high_[i] = fmaxf(high_[i], x);
    }
  }
  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < kAppendUnit; ++i) sum_[i] = 0, low_[i] = INFINITY, high_[i] = -INFINITY;
  }
  // Over a warp's threads of the same channels. Each step but the last leaves a thread half of its channels: value[0]
  // ends as that of channel 4, 2, 1 by bits 4, 3, 2 of the lane.
  template <class Number, class Two>
  __device__ static void combine(Number (&value)[kAppendUnit], const Two& two) {
    static_assert(kAppendUnit == 8 && kLanes == 2);
#pragma unroll
    for (int kept = 4, lanes = 16; kept > 0; kept /= 2, lanes /= 2) {
      const bool upper = (threadIdx.x & static_cast<unsigned>(lanes)) != 0;
#pragma unroll
      for (int i = 0; i < kept; ++i) {
        const Number own = upper ? value[i + kept] : value[i], other = upper ? value[i] : value[i + kept];
        value[i] = two(own, __shfl_xor_sync(0xffffffffu, other, lanes));
      }
    }
    value[0] = two(value[0], __shfl_xor_sync(0xffffffffu, value[0], 2));
  }
  __device__ float largest_difference(const float* mean) const {
    float most = 0.0f;
    const char* from = from_;
#pragma unroll 1
    for (uint32_t row = begin_; row < count_; row += step_, from += pitch_) {
      const Raw raw = read(from);
#pragma unroll
      for (int i = 0; i < kAppendUnit; ++i) {
        const float magnitude = fabsf(number(raw, i) - mean[i]);
        most = magnitude < INFINITY ? fmaxf(most, magnitude) : most;
      }
    }
    return most;
  }

  const QuantizeParams& p_;
  int batch_, head_, first_;       // first channel
  uint32_t count_, begin_, step_;  // rows, the thread's first, and how far they lie apart
  const char* from_;
  int64_t pitch_;
  double sum_[kAppendUnit];
  float low_[kAppendUnit], high_[kAppendUnit];
};

// Means of one group, and y of the group before it, under the scales found with them.
template <int32_t kFrom>
__global__ void __launch_bounds__(kHeldThreads<Held::kLessMean>, kFrom == TESSERA_F32 ? 1 : 2)
    quantize_held_means_kernel(const __grid_constant__ QuantizeParams p) {
  extern __shared__ __align__(128) char shared[];
  ptx::let_next_grid_begin();
  const QuantizeShare share = share_of_block(p);
  if (!share.finds) return store_held<HeldTile<kFrom, Held::kLessMean>>(p, share, shared);
  HeldMeans<kFrom> means(p, share.index);
  if (blockDim.x * kDeepMeanBytes <= kMostMeanBytes)
    means.template walk<kDeepMeanBytes / sizeof(typename HeldMeans<kFrom>::Raw)>(shared);
  else
    means.template walk<kFlatMeanBytes / sizeof(typename HeldMeans<kFrom>::Raw)>(shared);
  means.finish();
}

}  // namespace tessera::cuda

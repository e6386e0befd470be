// Quantisation of rotated rows of 64 or 128 channels, of bf16 or f16, in x's order: a thread has a whole row in
// registers, so that no step of the rotation passes between threads.
// A block takes 128 rows of one head; their x comes into shared memory by copies of 16 bytes, all under way at once.
// Work an element: 1/8 to fetch, 1/2 for signs, 1 to unpack, 6 or 7 to rotate, 1 for the largest magnitude, 2 to scale,
// 1/2 to convert, 1/4 to move. With 16 channels a thread (quantize_held.cuh) three of the seven steps are a shuffle and
// a multiply-add.
// Shared memory: 128 rows of x, 16 bytes swapped by the row so that threads of 8 rows meet all banks; y over them.
// Invariants: quantize.cuh's.
#pragma once

#include "ptx/copy_async.cuh"
#include "quantize_common.cuh"

namespace tessera::cuda {

template <int32_t kFrom, int kDim>
class RotatedTile : public QuantizeBlock {
 public:
  static constexpr int kThreads = kQuantizeRows;
  static constexpr int kSharedBytes = kQuantizeRows * kDim * 2;

  __device__ RotatedTile(const QuantizeParams& params, const QuantizePlace& place) : QuantizeBlock(params, place) {}

  // All but the last step of the rotation and its factor.
  __device__ void load(bool, char* shared) {
    // Rows a multiple of 8 apart are swapped alike.
    constexpr int kStep = kThreads / kChunks;
    const int first = own_row() / kChunks, part = own_row() % kChunks;
    const uint32_t to = ptx::shared_address(shared + chunk_at(first, part));
    const int64_t pitch = p_.x_stride.row * 2;
    const char* from = row_of_x(p_, batch_, rows_.first + begin_, head_) + first * pitch + part * kChunkBytes;
#pragma unroll
    for (int i = 0; i < kChunks; ++i, from += kStep * pitch)
      ptx::copy_async_16(to + i * kThreads * kChunkBytes, from, first + i * kStep < count_ ? kChunkBytes : 0);
    ptx::copy_async_commit();
    ptx::copy_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const uint4 given = *reinterpret_cast<const uint4*>(shared + chunk_at(own_row(), chunk));
      const uint32_t words[4] = {given.x, given.y, given.z, given.w};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const uint32_t pair = words[w] ^ p_.negated_pairs[4 * chunk + w];
        x_[8 * chunk + 2 * w] = unpack(pair, 0);
        x_[8 * chunk + 2 * w + 1] = unpack(pair, 1);
      }
    }
#pragma unroll
    for (int half = 1; half < kDim / 2; half *= 2) add_and_subtract(x_, half);
  }

  // quantize.cuh's find_largest. The larger of |a + b| and |a - b| is |a| + |b|, rounded alike.
  __device__ void find_largest(uint32_t* largest) const {
    largest[own_row()] = 0;
    float most = 0.0f;
#pragma unroll
    for (int c = 0; c < kDim / 2; ++c) most = fmaxf(most, fabsf(x_[c]) + fabsf(x_[c + kDim / 2]));
    if (most == INFINITY) most = largest_of_finite();
    // Rounding keeps the order of numbers, so the factor may come after the maximum.
    uint32_t found = own_row() < count_ ? __float_as_uint(most * p_.rotation_unit) : 0;
    if (p_.scale_rows == 1) {
      largest[own_row()] = found;
    } else {
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, found, lanes);
        found = other > found ? other : found;
      }
      __syncthreads();
      if (threadIdx.x % 32 == 0) atomicMax(&largest[0], found);
    }
    __syncthreads();
  }

  // `inverse`: of the scales, by row or inverse[0] for all.
  __device__ void store(const float* inverse, char* shared) {
    add_and_subtract(x_, kDim / 2);
    const float by = inverse[p_.scale_rows == 1 ? own_row() : 0];
    const auto value = [&](int c) { return x_[c] * p_.rotation_unit * by; };
#pragma unroll
    for (int c = 0; c < kDim; c += kChunkBytes) {
      uint32_t words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const int at = c + 4 * w;
        words[w] = to_bytes(p_, value(at), value(at + 1), value(at + 2), value(at + 3));
      }
      *reinterpret_cast<uint4*>(shared + chunk_at(own_row(), c / kChunkBytes)) =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
    __syncthreads();
    constexpr int kOut = kDim / kChunkBytes, kStep = kThreads / kOut;
    const int first = own_row() / kOut, chunk = own_row() % kOut;
    const char* at = shared + chunk_at(first, chunk);
    char* y = static_cast<char*>(p_.y) + head_ * p_.y_stride.head + chunk * kChunkBytes +
              (rows_.first + begin_ + first) * p_.y_stride.row;
    if (p_.cu_seqlens == nullptr) y += batch_ * p_.y_stride.batch;
#pragma unroll
    for (int i = 0; i < kOut; ++i, y += kStep * p_.y_stride.row) {
      if (first + i * kStep < count_)
        *reinterpret_cast<uint4*>(y) = *reinterpret_cast<const uint4*>(at + i * kStep * kChunks * kChunkBytes);
    }
  }

 private:
  static constexpr int kChunkBytes = 16, kChunks = kDim * 2 / kChunkBytes;  // of a row of x
  static_assert(kThreads / kChunks % 8 == 0);

  __device__ static int own_row() { return static_cast<int>(threadIdx.x); }
  __device__ static int chunk_at(int row, int chunk) { return (row * kChunks + (chunk ^ row % 8)) * kChunkBytes; }
  __device__ static float unpack(uint32_t pair, int second) {
    if constexpr (kFrom == TESSERA_F16) return ptx::unpack_f16(static_cast<uint16_t>(second != 0 ? pair >> 16 : pair));
    return __uint_as_float(second != 0 ? pair & 0xffff0000u : pair << 16);
  }
  __device__ float largest_of_finite() const {
    float most = 0.0f;
#pragma unroll
    for (int c = 0; c < kDim / 2; ++c) {
      const float sum = fabsf(x_[c] + x_[c + kDim / 2]), difference = fabsf(x_[c] - x_[c + kDim / 2]);
      most = sum < INFINITY ? fmaxf(most, sum) : most;
      most = difference < INFINITY ? fmaxf(most, difference) : most;
    }
    return most;
  }

  float x_[kDim];
};

}  // namespace tessera::cuda

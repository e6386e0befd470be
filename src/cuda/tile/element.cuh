// The 16-bit element types: how a pair is packed, a value read, and which tensor-core product takes them.
#pragma once

#include <cstdint>

#include "../ptx/half_type.hpp"
#include "../ptx/math.cuh"
#include "../ptx/mma.cuh"

namespace tessera::cuda {

struct F16 {
  static constexpr ptx::HalfType kType = ptx::HalfType::f16;
  __device__ static uint32_t pack(float low, float high) { return ptx::pack_f16(low, high); }
  __device__ static float unpack(uint16_t bits) { return ptx::unpack_f16(bits); }
  __device__ static void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    ptx::mma_m16n8k16_f16(d, a, b0, b1);
  }
};

struct Bf16 {
  static constexpr ptx::HalfType kType = ptx::HalfType::bf16;
  __device__ static uint32_t pack(float low, float high) { return ptx::pack_bf16(low, high); }
  __device__ static float unpack(uint16_t bits) { return __uint_as_float(uint32_t{bits} << 16); }
  __device__ static void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    ptx::mma_m16n8k16_bf16(d, a, b0, b1);
  }
};

}  // namespace tessera::cuda

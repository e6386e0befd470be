// The shapes of wgmma.mma_async that the sm90 kernels use. Written by scripts/make_wgmma.py; do not edit.
// Executed by the 128 threads of a warpgroup, converged, between wgmma_fence and wgmma_commit. d: row lane / 4 (+ 8 for
// elements 2 and 3) of the warp's 16 rows, columns 8 n + 2 (lane % 4) + {0, 1} in d[n]. accumulate 0: d = a b.
// Source: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions: wgmma.mma_async".
#pragma once

#include <cstdint>

#include "half_type.hpp"

namespace tessera::cuda::ptx {

// d [64, kN] += a [64, 16] b [kN, 16]^T, both in shared memory, K-major.
template <HalfType kType, int kN>
__device__ __forceinline__ void wgmma_shared(float (&d)[kN / 8][4], uint64_t a, uint64_t b, int accumulate);

// d = a b of the same: what d held is not read, so its registers are free before.
template <HalfType kType, int kN>
__device__ __forceinline__ void wgmma_shared_first(float (&d)[kN / 8][4], uint64_t a, uint64_t b);

// d [64, kN] += a [16, 64]^T b [kN, 16]^T, both in shared memory, a MN-major (rows of 64 columns lie one after
// another), b K-major.
template <HalfType kType, int kN>
__device__ __forceinline__ void wgmma_transposed(float (&d)[kN / 8][4], uint64_t a, uint64_t b, int accumulate);
template <HalfType kType, int kN>
__device__ __forceinline__ void wgmma_transposed_first(float (&d)[kN / 8][4], uint64_t a, uint64_t b);

// d [64, kN] += a [64, 16] b [16, kN], a in registers in the fragment layout of mma.m16n8k16, b in shared memory,
// MN-major (rows of b lie one after another).
template <HalfType kType, int kN>
__device__ __forceinline__ void wgmma_registers(float (&d)[kN / 8][4], const uint32_t (&a)[4], uint64_t b,
                                                int accumulate);

// clang-format off
#define TESSERA_WGMMA_SHARED_32(kType, type)                                                                           \
  template <>                                                                                                          \
  __device__ __forceinline__ void wgmma_shared<kType, 32>(float (&d)[4][4], uint64_t a,                                \
      uint64_t b, int accumulate) {                                                                                    \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %18, 0; "                                                              \
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type " {"                                      \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "                             \
                 "%16, %17, p, 1, 1, 0, 0;}"                                                                           \
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),           \
                   "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),           \
                   "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3])                                          \
                 : "l"(a), "l"(b), "r"(accumulate));                                                                   \
  }
TESSERA_WGMMA_SHARED_32(HalfType::f16, "f16")
TESSERA_WGMMA_SHARED_32(HalfType::bf16, "bf16")
#undef TESSERA_WGMMA_SHARED_32

#define TESSERA_WGMMA_SHARED_48(kType, type)                                                                           \
  template <>                                                                                                          \
  __device__ __forceinline__ void wgmma_shared<kType, 48>(float (&d)[6][4], uint64_t a,                                \
      uint64_t b, int accumulate) {                                                                                    \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %26, 0; "                                                              \
                 "wgmma.mma_async.sync.aligned.m64n48k16.f32." type "." type " {"                                      \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "          \
                 "%20, %21, %22, %23}, "                                                                               \
                 "%24, %25, p, 1, 1, 0, 0;}"                                                                           \
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),           \
                   "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),           \
                   "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),           \
                   "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3])            \
                 : "l"(a), "l"(b), "r"(accumulate));                                                                   \
  }
TESSERA_WGMMA_SHARED_48(HalfType::f16, "f16")
TESSERA_WGMMA_SHARED_48(HalfType::bf16, "bf16")
#undef TESSERA_WGMMA_SHARED_48

#define TESSERA_WGMMA_SHARED_64(kType, type)                                                                           \
  template <>                                                                                                          \
  __device__ __forceinline__ void wgmma_shared<kType, 64>(float (&d)[8][4], uint64_t a,                                \
      uint64_t b, int accumulate) {                                                                                    \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; "                                                              \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {"                                      \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "          \
                 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "                                       \
                 "%32, %33, p, 1, 1, 0, 0;}"                                                                           \
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),           \
                   "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),           \
                   "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),           \
                   "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),           \
                   "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),           \
                   "+f"(d[7][2]), "+f"(d[7][3])                                                                        \
                 : "l"(a), "l"(b), "r"(accumulate));                                                                   \
  }
TESSERA_WGMMA_SHARED_64(HalfType::f16, "f16")
TESSERA_WGMMA_SHARED_64(HalfType::bf16, "bf16")
#undef TESSERA_WGMMA_SHARED_64

#define TESSERA_WGMMA_SHARED_80(kType, type)                                                                           \
  template <>                                                                                                          \
  __device__ __forceinline__ void wgmma_shared<kType, 80>(float (&d)[10][4], uint64_t a,                               \
      uint64_t b, int accumulate) {                                                                                    \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %42, 0; "                                                              \
                 "wgmma.mma_async.sync.aligned.m64n80k16.f32." type "." type " {"                                      \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "          \
                 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "          \
                 "%38, %39}, "                                                                                         \
                 "%40, %41, p, 1, 1, 0, 0;}"                                                                           \
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),           \
                   "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),           \
                   "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),           \
                   "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),           \
                   "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),           \
                   "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]),           \
                   "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3])                                          \
                 : "l"(a), "l"(b), "r"(accumulate));                                                                   \
  }
TESSERA_WGMMA_SHARED_80(HalfType::f16, "f16")
TESSERA_WGMMA_SHARED_80(HalfType::bf16, "bf16")
#undef TESSERA_WGMMA_SHARED_80

#define TESSERA_WGMMA_SHARED_96(kType, type)                                                                           \
  template <>                                                                                                          \
  __device__ __forceinline__ void wgmma_shared<kType, 96>(float (&d)[12][4], uint64_t a,                               \
      uint64_t b, int accumulate) {                                                                                    \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %50, 0; "                                                              \
                 "wgmma.mma_async.sync.aligned.m64n96k16.f32." type "." type " {"                                      \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "          \
                 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "          \
                 "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "                                                 \
                 "%48, %49, p, 1, 1, 0, 0;}"                                                                           \
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),           \
                   "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),           \
                   "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),           \
                   "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),           \
                   "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),           \
                   "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]),           \
                   "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]), "+f"(d[10][1]),         \
                   "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3])      \
                 : "l"(a), "l"(b), "r"(accumulate));                                                                   \
  }
TESSERA_WGMMA_SHARED_96(HalfType::f16, "f16")
TESSERA_WGMMA_SHARED_96(HalfType::bf16, "bf16")
#undef TESSERA_WGMMA_SHARED_96

#define TESSERA_WGMMA_SHARED_128(kType, type)                                                                          \
  template <>                                                                                                          \
  __device__ __forceinline__ void wgmma_shared<kType, 128>(float (&d)[16][4], uint64_t a,                              \
      uint64_t b, int accumulate) {                                                                                    \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0; "                                                              \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {"                                     \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "          \
                 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "          \
                 "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "          \
                 "%56, %57, %58, %59, %60, %61, %62, %63}, "                                                           \
                 "%64, %65, p, 1, 1, 0, 0;}"                                                                           \
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),           \
                   "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),           \
                   "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),           \
                   "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),           \
                   "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),           \
                   "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]),           \
                   "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]), "+f"(d[10][1]),         \
                   "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]),     \
                   "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]),     \
                   "+f"(d[13][2]), "+f"(d[13][3]), "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]),     \
                   "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3])                                      \
                 : "l"(a), "l"(b), "r"(accumulate));                                                                   \
  }
TESSERA_WGMMA_SHARED_128(HalfType::f16, "f16")
TESSERA_WGMMA_SHARED_128(HalfType::bf16, "bf16")
#undef TESSERA_WGMMA_SHARED_128

#define TESSERA_WGMMA_SHARED_160(kType, type)                                                                          \
  template <>                                                                                                          \
  __device__ __forceinline__ void wgmma_shared<kType, 160>(float (&d)[20][4], uint64_t a,                              \
      uint64_t b, int accumulate) {                                                                                    \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %82, 0; "                                                              \
                 "wgmma.mma_async.sync.aligned.m64n160k16.f32." type "." type " {"                                     \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "          \
                 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "          \
                 "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "          \
                 "%56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, "          \
                 "%74, %75, %76, %77, %78, %79}, "                                                                     \
                 "%80, %81, p, 1, 1, 0, 0;}"                                                                           \
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),           \
                   "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),           \
                   "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),           \
                   "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),           \
                   "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),           \
                   "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]),           \
                   "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]), "+f"(d[10][1]),         \
                   "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]),     \
                   "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]),     \
                   "+f"(d[13][2]), "+f"(d[13][3]), "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]),     \
                   "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3]), "+f"(d[16][0]), "+f"(d[16][1]),     \
                   "+f"(d[16][2]), "+f"(d[16][3]), "+f"(d[17][0]), "+f"(d[17][1]), "+f"(d[17][2]), "+f"(d[17][3]),     \
                   "+f"(d[18][0]), "+f"(d[18][1]), "+f"(d[18][2]), "+f"(d[18][3]), "+f"(d[19][0]), "+f"(d[19][1]),     \
                   "+f"(d[19][2]), "+f"(d[19][3])                                                                      \
                 : "l"(a), "l"(b), "r"(accumulate));                                                                   \
  }
TESSERA_WGMMA_SHARED_160(HalfType::f16, "f16")
TESSERA_WGMMA_SHARED_160(HalfType::bf16, "bf16")
#undef TESSERA_WGMMA_SHARED_160

#define TESSERA_WGMMA_SHARED_FIRST_64(kType, type)                                                                     \
  template <>                                                                                                          \
  __device__ __forceinline__ void wgmma_shared_first<kType, 64>(float (&d)[8][4], uint64_t a,                          \
      uint64_t b) {                                                                                                    \
    asm volatile("{.reg .pred p; setp.ne.b32 p, 0, 0; "                                                                \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {"                                      \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "          \
                 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "                                       \
                 "%32, %33, p, 1, 1, 0, 0;}"                                                                           \
                 : "=f"(d[0][0]), "=f"(d[0][1]), "=f"(d[0][2]), "=f"(d[0][3]), "=f"(d[1][0]), "=f"(d[1][1]),           \
                   "=f"(d[1][2]), "=f"(d[1][3]), "=f"(d[2][0]), "=f"(d[2][1]), "=f"(d[2][2]), "=f"(d[2][3]),           \
                   "=f"(d[3][0]), "=f"(d[3][1]), "=f"(d[3][2]), "=f"(d[3][3]), "=f"(d[4][0]), "=f"(d[4][1]),           \
                   "=f"(d[4][2]), "=f"(d[4][3]), "=f"(d[5][0]), "=f"(d[5][1]), "=f"(d[5][2]), "=f"(d[5][3]),           \
                   "=f"(d[6][0]), "=f"(d[6][1]), "=f"(d[6][2]), "=f"(d[6][3]), "=f"(d[7][0]), "=f"(d[7][1]),           \
                   "=f"(d[7][2]), "=f"(d[7][3])                                                                        \
                 : "l"(a), "l"(b));                                                                                    \
  }
TESSERA_WGMMA_SHARED_FIRST_64(HalfType::f16, "f16")
TESSERA_WGMMA_SHARED_FIRST_64(HalfType::bf16, "bf16")
#undef TESSERA_WGMMA_SHARED_FIRST_64

#define TESSERA_WGMMA_SHARED_FIRST_128(kType, type)                                                                    \
  template <>                                                                                                          \
  __device__ __forceinline__ void wgmma_shared_first<kType, 128>(float (&d)[16][4], uint64_t a,                        \
      uint64_t b) {                                                                                                    \
    asm volatile("{.reg .pred p; setp.ne.b32 p, 0, 0; "                                                                \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {"                                     \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "          \
                 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "          \
                 "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "          \
                 "%56, %57, %58, %59, %60, %61, %62, %63}, "                                                           \
                 "%64, %65, p, 1, 1, 0, 0;}"                                                                           \
                 : "=f"(d[0][0]), "=f"(d[0][1]), "=f"(d[0][2]), "=f"(d[0][3]), "=f"(d[1][0]), "=f"(d[1][1]),           \
                   "=f"(d[1][2]), "=f"(d[1][3]), "=f"(d[2][0]), "=f"(d[2][1]), "=f"(d[2][2]), "=f"(d[2][3]),           \
                   "=f"(d[3][0]), "=f"(d[3][1]), "=f"(d[3][2]), "=f"(d[3][3]), "=f"(d[4][0]), "=f"(d[4][1]),           \
                   "=f"(d[4][2]), "=f"(d[4][3]), "=f"(d[5][0]), "=f"(d[5][1]), "=f"(d[5][2]), "=f"(d[5][3]),           \
                   "=f"(d[6][0]), "=f"(d[6][1]), "=f"(d[6][2]), "=f"(d[6][3]), "=f"(d[7][0]), "=f"(d[7][1]),           \
                   "=f"(d[7][2]), "=f"(d[7][3]), "=f"(d[8][0]), "=f"(d[8][1]), "=f"(d[8][2]), "=f"(d[8][3]),           \
                   "=f"(d[9][0]), "=f"(d[9][1]), "=f"(d[9][2]), "=f"(d[9][3]), "=f"(d[10][0]), "=f"(d[10][1]),         \
                   "=f"(d[10][2]), "=f"(d[10][3]), "=f"(d[11][0]), "=f"(d[11][1]), "=f"(d[11][2]), "=f"(d[11][3]),     \
                   "=f"(d[12][0]), "=f"(d[12][1]), "=f"(d[12][2]), "=f"(d[12][3]), "=f"(d[13][0]), "=f"(d[13][1]),     \
                   "=f"(d[13][2]), "=f"(d[13][3]), "=f"(d[14][0]), "=f"(d[14][1]), "=f"(d[14][2]), "=f"(d[14][3]),     \
                   "=f"(d[15][0]), "=f"(d[15][1]), "=f"(d[15][2]), "=f"(d[15][3])                                      \
                 : "l"(a), "l"(b));                                                                                    \
  }
TESSERA_WGMMA_SHARED_FIRST_128(HalfType::f16, "f16")
TESSERA_WGMMA_SHARED_FIRST_128(HalfType::bf16, "bf16")
#undef TESSERA_WGMMA_SHARED_FIRST_128

#define TESSERA_WGMMA_TRANSPOSED_32(kType, type)                                                                       \
  template <>                                                                                                          \
  __device__ __forceinline__ void wgmma_transposed<kType, 32>(float (&d)[4][4], uint64_t a,                            \
      uint64_t b, int accumulate) {                                                                                    \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %18, 0; "                                                              \
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type " {"                                      \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "                             \
                 "%16, %17, p, 1, 1, 1, 0;}"                                                                           \
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),           \
                   "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),           \
                   "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3])                                          \
                 : "l"(a), "l"(b), "r"(accumulate));                                                                   \
  }
TESSERA_WGMMA_TRANSPOSED_32(HalfType::f16, "f16")
TESSERA_WGMMA_TRANSPOSED_32(HalfType::bf16, "bf16")
#undef TESSERA_WGMMA_TRANSPOSED_32

#define TESSERA_WGMMA_TRANSPOSED_FIRST_32(kType, type)                                                                 \
  template <>                                                                                                          \
  __device__ __forceinline__ void wgmma_transposed_first<kType, 32>(float (&d)[4][4], uint64_t a,                      \
      uint64_t b) {                                                                                                    \
    asm volatile("{.reg .pred p; setp.ne.b32 p, 0, 0; "                                                                \
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type " {"                                      \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "                             \
                 "%16, %17, p, 1, 1, 1, 0;}"                                                                           \
                 : "=f"(d[0][0]), "=f"(d[0][1]), "=f"(d[0][2]), "=f"(d[0][3]), "=f"(d[1][0]), "=f"(d[1][1]),           \
                   "=f"(d[1][2]), "=f"(d[1][3]), "=f"(d[2][0]), "=f"(d[2][1]), "=f"(d[2][2]), "=f"(d[2][3]),           \
                   "=f"(d[3][0]), "=f"(d[3][1]), "=f"(d[3][2]), "=f"(d[3][3])                                          \
                 : "l"(a), "l"(b));                                                                                    \
  }
TESSERA_WGMMA_TRANSPOSED_FIRST_32(HalfType::f16, "f16")
TESSERA_WGMMA_TRANSPOSED_FIRST_32(HalfType::bf16, "bf16")
#undef TESSERA_WGMMA_TRANSPOSED_FIRST_32

#define TESSERA_WGMMA_TRANSPOSED_64(kType, type)                                                                       \
  template <>                                                                                                          \
  __device__ __forceinline__ void wgmma_transposed<kType, 64>(float (&d)[8][4], uint64_t a,                            \
      uint64_t b, int accumulate) {                                                                                    \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; "                                                              \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {"                                      \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "          \
                 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "                                       \
                 "%32, %33, p, 1, 1, 1, 0;}"                                                                           \
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),           \
                   "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),           \
                   "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),           \
                   "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),           \
                   "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),           \
                   "+f"(d[7][2]), "+f"(d[7][3])                                                                        \
                 : "l"(a), "l"(b), "r"(accumulate));                                                                   \
  }
TESSERA_WGMMA_TRANSPOSED_64(HalfType::f16, "f16")
TESSERA_WGMMA_TRANSPOSED_64(HalfType::bf16, "bf16")
#undef TESSERA_WGMMA_TRANSPOSED_64

#define TESSERA_WGMMA_TRANSPOSED_FIRST_64(kType, type)                                                                 \
  template <>                                                                                                          \
  __device__ __forceinline__ void wgmma_transposed_first<kType, 64>(float (&d)[8][4], uint64_t a,                      \
      uint64_t b) {                                                                                                    \
    asm volatile("{.reg .pred p; setp.ne.b32 p, 0, 0; "                                                                \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {"                                      \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "          \
                 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "                                       \
                 "%32, %33, p, 1, 1, 1, 0;}"                                                                           \
                 : "=f"(d[0][0]), "=f"(d[0][1]), "=f"(d[0][2]), "=f"(d[0][3]), "=f"(d[1][0]), "=f"(d[1][1]),           \
                   "=f"(d[1][2]), "=f"(d[1][3]), "=f"(d[2][0]), "=f"(d[2][1]), "=f"(d[2][2]), "=f"(d[2][3]),           \
                   "=f"(d[3][0]), "=f"(d[3][1]), "=f"(d[3][2]), "=f"(d[3][3]), "=f"(d[4][0]), "=f"(d[4][1]),           \
                   "=f"(d[4][2]), "=f"(d[4][3]), "=f"(d[5][0]), "=f"(d[5][1]), "=f"(d[5][2]), "=f"(d[5][3]),           \
                   "=f"(d[6][0]), "=f"(d[6][1]), "=f"(d[6][2]), "=f"(d[6][3]), "=f"(d[7][0]), "=f"(d[7][1]),           \
                   "=f"(d[7][2]), "=f"(d[7][3])                                                                        \
                 : "l"(a), "l"(b));                                                                                    \
  }
TESSERA_WGMMA_TRANSPOSED_FIRST_64(HalfType::f16, "f16")
TESSERA_WGMMA_TRANSPOSED_FIRST_64(HalfType::bf16, "bf16")
#undef TESSERA_WGMMA_TRANSPOSED_FIRST_64

#define TESSERA_WGMMA_REGISTERS_64(kType, type)                                                                        \
  template <>                                                                                                          \
  __device__ __forceinline__ void wgmma_registers<kType, 64>(float (&d)[8][4], const uint32_t (&a)[4],                 \
      uint64_t b, int accumulate) {                                                                                    \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %37, 0; "                                                              \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {"                                      \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "          \
                 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "                                       \
                 "{%32, %33, %34, %35}, %36, p, 1, 1, 1;}"                                                             \
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),           \
                   "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),           \
                   "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),           \
                   "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),           \
                   "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),           \
                   "+f"(d[7][2]), "+f"(d[7][3])                                                                        \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                               \
  }
TESSERA_WGMMA_REGISTERS_64(HalfType::f16, "f16")
TESSERA_WGMMA_REGISTERS_64(HalfType::bf16, "bf16")
#undef TESSERA_WGMMA_REGISTERS_64

#define TESSERA_WGMMA_REGISTERS_96(kType, type)                                                                        \
  template <>                                                                                                          \
  __device__ __forceinline__ void wgmma_registers<kType, 96>(float (&d)[12][4], const uint32_t (&a)[4],                \
      uint64_t b, int accumulate) {                                                                                    \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %53, 0; "                                                              \
                 "wgmma.mma_async.sync.aligned.m64n96k16.f32." type "." type " {"                                      \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "          \
                 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "          \
                 "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "                                                 \
                 "{%48, %49, %50, %51}, %52, p, 1, 1, 1;}"                                                             \
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),           \
                   "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),           \
                   "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),           \
                   "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),           \
                   "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),           \
                   "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]),           \
                   "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]), "+f"(d[10][1]),         \
                   "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3])      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                               \
  }
TESSERA_WGMMA_REGISTERS_96(HalfType::f16, "f16")
TESSERA_WGMMA_REGISTERS_96(HalfType::bf16, "bf16")
#undef TESSERA_WGMMA_REGISTERS_96

#define TESSERA_WGMMA_REGISTERS_128(kType, type)                                                                       \
  template <>                                                                                                          \
  __device__ __forceinline__ void wgmma_registers<kType, 128>(float (&d)[16][4], const uint32_t (&a)[4],               \
      uint64_t b, int accumulate) {                                                                                    \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %69, 0; "                                                              \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {"                                     \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "          \
                 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "          \
                 "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "          \
                 "%56, %57, %58, %59, %60, %61, %62, %63}, "                                                           \
                 "{%64, %65, %66, %67}, %68, p, 1, 1, 1;}"                                                             \
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),           \
                   "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),           \
                   "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),           \
                   "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),           \
                   "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),           \
                   "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]),           \
                   "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]), "+f"(d[10][1]),         \
                   "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]),     \
                   "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]),     \
                   "+f"(d[13][2]), "+f"(d[13][3]), "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]),     \
                   "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3])                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                               \
  }
TESSERA_WGMMA_REGISTERS_128(HalfType::f16, "f16")
TESSERA_WGMMA_REGISTERS_128(HalfType::bf16, "bf16")
#undef TESSERA_WGMMA_REGISTERS_128

#define TESSERA_WGMMA_REGISTERS_192(kType, type)                                                                       \
  template <>                                                                                                          \
  __device__ __forceinline__ void wgmma_registers<kType, 192>(float (&d)[24][4], const uint32_t (&a)[4],               \
      uint64_t b, int accumulate) {                                                                                    \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %101, 0; "                                                             \
                 "wgmma.mma_async.sync.aligned.m64n192k16.f32." type "." type " {"                                     \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "          \
                 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "          \
                 "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "          \
                 "%56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, "          \
                 "%74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, "          \
                 "%92, %93, %94, %95}, "                                                                               \
                 "{%96, %97, %98, %99}, %100, p, 1, 1, 1;}"                                                            \
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),           \
                   "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),           \
                   "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),           \
                   "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),           \
                   "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),           \
                   "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]),           \
                   "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]), "+f"(d[10][1]),         \
                   "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]),     \
                   "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]),     \
                   "+f"(d[13][2]), "+f"(d[13][3]), "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]),     \
                   "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3]), "+f"(d[16][0]), "+f"(d[16][1]),     \
                   "+f"(d[16][2]), "+f"(d[16][3]), "+f"(d[17][0]), "+f"(d[17][1]), "+f"(d[17][2]), "+f"(d[17][3]),     \
                   "+f"(d[18][0]), "+f"(d[18][1]), "+f"(d[18][2]), "+f"(d[18][3]), "+f"(d[19][0]), "+f"(d[19][1]),     \
                   "+f"(d[19][2]), "+f"(d[19][3]), "+f"(d[20][0]), "+f"(d[20][1]), "+f"(d[20][2]), "+f"(d[20][3]),     \
                   "+f"(d[21][0]), "+f"(d[21][1]), "+f"(d[21][2]), "+f"(d[21][3]), "+f"(d[22][0]), "+f"(d[22][1]),     \
                   "+f"(d[22][2]), "+f"(d[22][3]), "+f"(d[23][0]), "+f"(d[23][1]), "+f"(d[23][2]), "+f"(d[23][3])      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                               \
  }
TESSERA_WGMMA_REGISTERS_192(HalfType::f16, "f16")
TESSERA_WGMMA_REGISTERS_192(HalfType::bf16, "bf16")
#undef TESSERA_WGMMA_REGISTERS_192

#define TESSERA_WGMMA_REGISTERS_256(kType, type)                                                                       \
  template <>                                                                                                          \
  __device__ __forceinline__ void wgmma_registers<kType, 256>(float (&d)[32][4], const uint32_t (&a)[4],               \
      uint64_t b, int accumulate) {                                                                                    \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %133, 0; "                                                             \
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " {"                                     \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "          \
                 "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, "          \
                 "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "          \
                 "%56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, "          \
                 "%74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, "          \
                 "%92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, "            \
                 "%108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, "          \
                 "%123, %124, %125, %126, %127}, "                                                                     \
                 "{%128, %129, %130, %131}, %132, p, 1, 1, 1;}"                                                        \
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]),           \
                   "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]),           \
                   "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]),           \
                   "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]),           \
                   "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]),           \
                   "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]),           \
                   "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]), "+f"(d[10][1]),         \
                   "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3]),     \
                   "+f"(d[12][0]), "+f"(d[12][1]), "+f"(d[12][2]), "+f"(d[12][3]), "+f"(d[13][0]), "+f"(d[13][1]),     \
                   "+f"(d[13][2]), "+f"(d[13][3]), "+f"(d[14][0]), "+f"(d[14][1]), "+f"(d[14][2]), "+f"(d[14][3]),     \
                   "+f"(d[15][0]), "+f"(d[15][1]), "+f"(d[15][2]), "+f"(d[15][3]), "+f"(d[16][0]), "+f"(d[16][1]),     \
                   "+f"(d[16][2]), "+f"(d[16][3]), "+f"(d[17][0]), "+f"(d[17][1]), "+f"(d[17][2]), "+f"(d[17][3]),     \
                   "+f"(d[18][0]), "+f"(d[18][1]), "+f"(d[18][2]), "+f"(d[18][3]), "+f"(d[19][0]), "+f"(d[19][1]),     \
                   "+f"(d[19][2]), "+f"(d[19][3]), "+f"(d[20][0]), "+f"(d[20][1]), "+f"(d[20][2]), "+f"(d[20][3]),     \
                   "+f"(d[21][0]), "+f"(d[21][1]), "+f"(d[21][2]), "+f"(d[21][3]), "+f"(d[22][0]), "+f"(d[22][1]),     \
                   "+f"(d[22][2]), "+f"(d[22][3]), "+f"(d[23][0]), "+f"(d[23][1]), "+f"(d[23][2]), "+f"(d[23][3]),     \
                   "+f"(d[24][0]), "+f"(d[24][1]), "+f"(d[24][2]), "+f"(d[24][3]), "+f"(d[25][0]), "+f"(d[25][1]),     \
                   "+f"(d[25][2]), "+f"(d[25][3]), "+f"(d[26][0]), "+f"(d[26][1]), "+f"(d[26][2]), "+f"(d[26][3]),     \
                   "+f"(d[27][0]), "+f"(d[27][1]), "+f"(d[27][2]), "+f"(d[27][3]), "+f"(d[28][0]), "+f"(d[28][1]),     \
                   "+f"(d[28][2]), "+f"(d[28][3]), "+f"(d[29][0]), "+f"(d[29][1]), "+f"(d[29][2]), "+f"(d[29][3]),     \
                   "+f"(d[30][0]), "+f"(d[30][1]), "+f"(d[30][2]), "+f"(d[30][3]), "+f"(d[31][0]), "+f"(d[31][1]),     \
                   "+f"(d[31][2]), "+f"(d[31][3])                                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                               \
  }
TESSERA_WGMMA_REGISTERS_256(HalfType::f16, "f16")
TESSERA_WGMMA_REGISTERS_256(HalfType::bf16, "bf16")
#undef TESSERA_WGMMA_REGISTERS_256

// clang-format on

}  // namespace tessera::cuda::ptx

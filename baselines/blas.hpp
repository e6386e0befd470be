// A BLAS found at run time: the two matrix products of the textbook method, capped to an instruction set as the kernels
// are. Nothing of it is needed to build or link.
#pragma once

#include <cstdint>

#include "device_info.hpp"

namespace tessera::baselines {

struct Blas {
  // Fortran's calling convention, 32-bit sizes, column-major matrices.
  using Sgemm = void (*)(const char* transpose_a, const char* transpose_b, const int* m, const int* n, const int* k,
                         const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
                         const float* beta, float* c, const int* ldc);
  using Dgemm = void (*)(const char* transpose_a, const char* transpose_b, const int* m, const int* n, const int* k,
                         const double* alpha, const double* a, const int* lda, const double* b, const int* ldb,
                         const double* beta, double* c, const int* ldc);
  Sgemm sgemm = nullptr;
  Dgemm dgemm = nullptr;
  char description[96] = "";      // "libopenblas.so.0 SkylakeX"
  const char* refusal = nullptr;  // a static sentence when there is none
};

// The BLAS for instruction sets up to `isa`, single-threaded, loaded on first use and kept. A second cap in one process
// gets a copy of the library in a namespace of its own.
const Blas& load_blas(core::Isa isa);

}  // namespace tessera::baselines

// The vector code of one instruction set behind plain pointers, so that one test source checks every set the machine
// has while only cpu_isa/<set>.cpp is compiled with its flags.
#pragma once

#include <cstdint>

namespace tessera::test {

template <class T>
struct VectorFunctions {
  int rows, vecs, lanes, score_stride;
  // Elementwise over n values, n a multiple of lanes.
  void (*exp2)(const T* x, T* y, int64_t n);
  void (*tanh)(const T* x, T* y, int64_t n);
  T (*sum)(const T* lanes);
  T (*largest)(const T* lanes);
  // Transpose of [lanes][lanes], the first `columns` columns.
  void (*transpose)(const T* from, T* to, int64_t stride, int64_t columns);
  // The product blocks of `rows` x `vecs`.
  void (*score)(int rows, int vecs, const T* q, const T* panel, int64_t depth, T scale, T* scores);
  void (*value)(int rows, int vecs, const T* probs, const T* panel, int64_t depth, const T* alpha, T* o,
                int64_t stride);
};

struct IsaFunctions {
  const char* name;
  VectorFunctions<float> f32;
  VectorFunctions<double> f64;
  void (*load_f16)(const uint16_t* from, float* to, int64_t n);
  void (*load_bf16)(const uint16_t* from, float* to, int64_t n);
  void (*store_f16)(const float* from, uint16_t* to, int64_t n);
  void (*store_bf16)(const float* from, uint16_t* to, int64_t n);
};

extern const IsaFunctions kPortableFunctions;
#if defined(__x86_64__)
extern const IsaFunctions kAvx2Functions, kAvx512Functions;
#endif

}  // namespace tessera::test

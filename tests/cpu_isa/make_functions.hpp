// Fills IsaFunctions from the vector header included before; TESSERA_CPU_ISA names the namespace, so that every set has
// code of its own.
#pragma once

#include "cpu/exp.hpp"
#include "cpu/microkernel.hpp"
#include "functions.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

template <class V>
struct Probe {
  using T = typename V::Scalar;
  static void exp2_all(const T* x, T* y, int64_t n) {
    for (int64_t i = 0; i < n; i += V::kLanes) exp2(V::load(x + i)).store(y + i);
  }
  static void tanh_all(const T* x, T* y, int64_t n) {
    for (int64_t i = 0; i < n; i += V::kLanes) tanh(V::load(x + i)).store(y + i);
  }
  static T sum(const T* lanes) { return V::reduce_sum(V::load(lanes)); }
  static T largest(const T* lanes) { return V::reduce_max(V::load(lanes)); }
  static void transpose(const T* from, T* to, int64_t stride, int64_t columns) {
    V rows[V::kLanes];
    for (int r = 0; r < V::kLanes; ++r) rows[r] = V::load(from + r * V::kLanes);
    V::store_transposed(rows, to, stride, columns);
  }
  static void score(int rows, int vecs, const T* q, const T* panel, int64_t depth, T scale, T* scores) {
    kBlocks<V>.score[rows - 1][vecs - 1](q, panel, depth, scale, scores);
  }
  static void value(int rows, int vecs, const T* probs, const T* panel, int64_t depth, const T* alpha, T* o,
                    int64_t stride) {
    kBlocks<V>.value[rows - 1][vecs - 1](probs, panel, depth, alpha, o, stride);
  }
  static constexpr test::VectorFunctions<T> functions() {
    return {V::kRows, V::kVecs, V::kLanes, kScoreStride, exp2_all, tanh_all, sum, largest, transpose, score, value};
  }
};

inline void load_f16_all(const uint16_t* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) F32x16::load_f16(from + i).store(to + i);
}
inline void load_bf16_all(const uint16_t* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) F32x16::load_bf16(from + i).store(to + i);
}
inline void store_f16_all(const float* from, uint16_t* to, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) F32x16::load(from + i).store_f16(to + i);
}
inline void store_bf16_all(const float* from, uint16_t* to, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) F32x16::load(from + i).store_bf16(to + i);
}

constexpr test::IsaFunctions make_functions(const char* name) {
  return {
      name,          Probe<F32x16>::functions(), Probe<F64x8>::functions(), load_f16_all, load_bf16_all, store_f16_all,
      store_bf16_all};
}

}  // namespace tessera::cpu::TESSERA_CPU_ISA

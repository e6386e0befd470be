// exp and tanh on the kernels' vector types. Invariants: exp2(0) is exactly 1 and no argument below 0 gives more;
// arguments below the least normal exponent, -inf among them, give +0; NaN stays NaN; tanh never exceeds 1 and keeps
// its relative accuracy near 0.
// Polynomials: minimax in relative error for 2^r, |r| <= 1/2, with the constant term fixed to 1 (iteratively
// reweighted least squares in 60 digits): degree 6, 2.0e-9; degree 11, 3.4e-18.
#pragma once

#include "semantics.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

template <class T>
struct Exp2Constants;
template <>
struct Exp2Constants<float> {
  static constexpr int kTerms = 6;
  static constexpr float kTerm[kTerms] = {0.693147203f,   0.240226479f,   0.0555033252f,
                                          0.00961843751f, 0.00133988597f, 0.000153533471f};
  static constexpr float kLeast = -126.0f;  // 2^-126 is the least normal number
};
template <>
struct Exp2Constants<double> {
  static constexpr int kTerms = 11;
  static constexpr double kTerm[kTerms] = {0.693147180559945326,   0.240226506959101312,   0.0555041086648200866,
                                           0.00961812910759412276, 0.00133335581467736704, 1.54035304571098198e-4,
                                           1.52527334940982116e-5, 1.32154352833125644e-6, 1.01781991561710951e-7,
                                           7.07378307658662288e-9, 4.43483474140450832e-10};
  static constexpr double kLeast = -1022.0;
};

// (2^r - 1) / r for |r| <= 1/2.
template <class V>
inline V exp2_quotient(V r) {
  using Constants = Exp2Constants<typename V::Scalar>;
  V sum = V::broadcast(Constants::kTerm[Constants::kTerms - 1]);
#pragma GCC unroll 16
  for (int i = Constants::kTerms - 2; i >= 0; --i) sum = V::fma(sum, r, V::broadcast(Constants::kTerm[i]));
  return sum;
}

// 2^x for x <= 0 (and up to the largest normal exponent).
template <class V>
inline V exp2(V x) {
  using T = typename V::Scalar;
  const V whole = V::nearest(x);
  const V r = x - whole;
  const V power = V::scale_exponent(V::fma(exp2_quotient(r), r, V::broadcast(T(1))), whole);
  return V::zero_where_less(x, V::broadcast(Exp2Constants<T>::kLeast), power);
}

// e^x for x <= 0.
template <class V>
inline V exp(V x) {
  return exp2(x * V::broadcast(typename V::Scalar(core::kLog2E)));
}

// tanh(|x|) = -e / (2 + e) with e = exp(-2|x|) - 1 formed without cancellation: 2^n (2^r - 1) + (2^n - 1).
template <class V>
inline V tanh(V x) {
  using T = typename V::Scalar;
  // At 2^-64 the power no longer changes e = -1 in either type, so the exponent is bounded there.
  const V exponent = V::max(V::broadcast(T(-64)), V::abs(x) * V::broadcast(T(-2 * core::kLog2E)));
  const V whole = V::nearest(exponent);
  const V r = exponent - whole;
  const V one = V::broadcast(T(1));
  const V power = V::scale_exponent(one, whole);
  const V e = V::fma(power, exp2_quotient(r) * r, power - one);
  return V::with_sign_of((V::zero() - e) / (V::broadcast(T(2)) + e), x);
}

}  // namespace tessera::cpu::TESSERA_CPU_ISA

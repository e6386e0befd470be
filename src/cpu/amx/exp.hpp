// exp2 as exact as probabilities in bf16 parts need it.
#pragma once

#include "cpu/amx/arrange.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

// (2^r - 1) / r for 0 <= r < 1 by kParts, minimax in relative error of 2^r: 8.6e-5 (a bf16 P misses by 2^-9 = 2e-3),
// 8.2e-8 (16 bits of P) and 2.0e-9. By reweighted least squares.
inline constexpr int kExp2Terms[] = {0, 3, 5, 6};
inline constexpr float kExp2Term[][6] = {
    {},
    {0.69511676f, 0.227644995f, 0.07706704f},
    {0.6931513f, 0.24016444f, 0.055799913f, 0.0090170307f, 0.00186713f},
    {0.69314706f, 0.2402293f, 0.05548528f, 0.0096754516f, 0.0012467847f, 0.00021612915f}};
// 2^x, exactly 1 at 0, 0 for -inf, NaN stays. Counted from the whole number below x, since the instruction that scales
// by a power of two takes just that one, and -inf needs no further care.
template <int kParts, class V>
inline V exp2_of_score(V x) {
  constexpr int kTerms = kExp2Terms[kParts];
  const V r = above_floor(x);
  V quotient = V::broadcast(kExp2Term[kParts][kTerms - 1]);
#pragma GCC unroll 5
  for (int i = kTerms - 2; i >= 0; --i) quotient = V::fma(quotient, r, V::broadcast(kExp2Term[kParts][i]));
  return scale_by_floor(V::fma(quotient, r, V::broadcast(1.0f)), x);
}

}  // namespace tessera::cpu::TESSERA_CPU_ISA

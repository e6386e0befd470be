// Which products of two operands' bf16 parts are summed for a product of both, forward and backward.
#pragma once

namespace tessera::cpu::TESSERA_CPU_ISA {

// Pairs of parts whose products are summed, in an order in which a pair shares a part with the one before it, so that
// the other alone is loaded. Two parts: scores take all four, since exp turns their absolute error into a relative one;
// values do without the first, which misses by 2^-16. Three parts: what is left out is below 2^-25.
struct PartPair {
  int a, b;
};
template <int kParts>
inline constexpr PartPair kPartPairs[1] = {{0, 0}};
template <>
inline constexpr PartPair kPartPairs<2>[4] = {{1, 1}, {1, 0}, {0, 0}, {0, 1}};
template <>
inline constexpr PartPair kPartPairs<3>[6] = {{2, 0}, {1, 0}, {1, 1}, {0, 1}, {0, 2}, {0, 0}};
template <int kParts>
inline constexpr int kPairs = sizeof(kPartPairs<kParts>) / sizeof(PartPair);
template <int kParts>
inline constexpr int kFirstValuePair = kParts == 2 ? 1 : 0;
// Pairs of scores whose products are summed over all of the head dim before the others': of three parts those but the
// first of both, so that a sum as large as the score is rounded once in 32 dims, not six times.
template <int kParts>
inline constexpr int kSmallScorePairs = kParts == 3 ? kPairs<kParts> - 1 : 0;

}  // namespace tessera::cpu::TESSERA_CPU_ISA

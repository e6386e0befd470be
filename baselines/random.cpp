#include "random.hpp"

#include <cmath>

namespace tessera::baselines {
namespace {

// SplitMix64's finaliser (Steele, Lea and Flood 2014): a bijection of 64-bit words that passes statistical tests.
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Natural logarithm of a normal x > 0: x = m * 2^e with m in [1/sqrt 2, sqrt 2), ln m = 2 atanh(z), z = (m - 1) / (m +
// 1). |z| <= 0.172, so ten odd terms leave 2e-17.
double portable_log(double x) {
  int exponent;
  double m = std::frexp(x, &exponent);
  if (m < 0.70710678118654752) {
    m *= 2;
    --exponent;
  }
  const double z = (m - 1) / (m + 1), square = z * z;
  double sum = 0;
  for (int term = 19; term >= 1; term -= 2) sum = sum * square + 1.0 / term;
  return exponent * 0.69314718055994530942 + 2 * z * sum;
}

}  // namespace

RandomStream::RandomStream(uint64_t seed, uint64_t stream) : key(mix(mix(seed) ^ (stream * 0xd1342543de82ef95u))) {}

uint64_t RandomStream::bits(uint64_t index) const { return mix(key ^ mix(index)); }

double RandomStream::uniform(uint64_t index) const { return static_cast<double>(bits(index) >> 11) * 0x1p-53; }

double RandomStream::normal(uint64_t index) const {
  // Two 32-bit coordinates from one word; a point outside the unit circle (21 %) draws again from its own bits.
  for (uint64_t word = bits(index);; word = mix(word)) {
    const double u = static_cast<double>(static_cast<int32_t>(word >> 32)) * 0x1p-31 + 0x1p-32;
    const double v = static_cast<double>(static_cast<int32_t>(word & 0xffffffffu)) * 0x1p-31 + 0x1p-32;
    const double square = u * u + v * v;
    if (square < 1) return u * std::sqrt(-2 * portable_log(square) / square);
  }
}

int64_t RandomStream::below(uint64_t index, int64_t bound) const {
  return bound <= 1 ? 0 : static_cast<int64_t>(uniform(index) * static_cast<double>(bound));
}

}  // namespace tessera::baselines

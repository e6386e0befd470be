// Bytes of a cache to f16, by the instruction that newer GPUs have and by integers: every byte, in every place.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "cuda/tile/cache.cuh"
#include "element.hpp"
#include "emulator/half.hpp"

namespace tessera::test_kernels {
namespace {

void expect_number(uint16_t found, float expected, uint32_t byte) {
  const float number = emulator::from_f16(found);
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(number)) << byte;
  } else {
    EXPECT_EQ(number, expected) << byte;
    EXPECT_EQ(std::signbit(number), std::signbit(expected)) << byte;
  }
}

// `pairs` makes {0, 1} and {2, 3}, or {0, 2} and {1, 3}.
template <class Pairs>
void check_places(const int (&order)[4], const Pairs& pairs, float (*value)(uint32_t)) {
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const uint32_t of[4] = {byte, (byte * 7 + 1) & 255, (byte * 5 + 2) & 255, (byte * 3 + 3) & 255};
    uint32_t pair[2];
    pairs(of[0] | of[1] << 8 | of[2] << 16 | of[3] << 24, pair[0], pair[1]);
    for (int i = 0; i < 4; ++i) {
      expect_number(static_cast<uint16_t>(pair[i / 2] >> i % 2 * 16), value(of[order[i]]), of[order[i]]);
    }
  }
}

float int8_value(uint32_t byte) { return static_cast<int8_t>(byte); }
float e4m3_value(uint32_t byte) {
  if ((byte & 0x7f) == 0x7f) return NAN;
  return core::bits_float((byte & 0x80) << 24 | (byte & 0x7f) << 20) * 0x1p120f;  // the bias is 7, not 127
}

TEST(EmulatorBytes, PairsAreTheBytesNumbers) {
  using Int8 = cuda::ByteCache<cuda::ByteType::int8>;
  using E4m3 = cuda::ByteCache<cuda::ByteType::e4m3>;
  constexpr int kInOrder[] = {0, 1, 2, 3}, kApart[] = {0, 2, 1, 3};
  check_places(kInOrder, Int8::pairs<0, 1>, int8_value);
  check_places(kApart, Int8::pairs<0, 2>, int8_value);
  check_places(kInOrder, E4m3::pairs<0, 1>, e4m3_value);
  check_places(kApart, E4m3::pairs<0, 2>, e4m3_value);
}

TEST(EmulatorBytes, IntegersMakeE4m3Too) {
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const uint32_t pair = cuda::shifted_e4m3(byte << 8 | (255 - byte) << 24);
    expect_number(static_cast<uint16_t>(pair), e4m3_value(byte) / 256, byte);
    expect_number(static_cast<uint16_t>(pair >> 16), e4m3_value(255 - byte) / 256, 255 - byte);
  }
}

}  // namespace
}  // namespace tessera::test_kernels

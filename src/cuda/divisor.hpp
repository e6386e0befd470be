// Division by a number that the host knows, for kernels. Host and device.
#pragma once

#include <cstdint>

#include "semantics.hpp"

namespace tessera::cuda {

// A number that dividends below 2^31 are divided by, in three instructions.
struct Divisor {
  uint32_t value, factor, shift;

  Divisor() = default;
  explicit Divisor(uint32_t number) : value(number), factor(0), shift(31) {
    while (uint64_t{1} << (shift - 31) < number) ++shift;
    if (number > 0) factor = static_cast<uint32_t>(((uint64_t{1} << shift) + number - 1) / number);
  }
  TESSERA_HD uint32_t divide(uint32_t dividend) const {
    return static_cast<uint32_t>(uint64_t{dividend} * factor >> shift);
  }
};

}  // namespace tessera::cuda

// Random numbers by counter: value number i of a stream depends on (seed, stream, i) alone, so data are the same on
// every platform, for any number of threads, and for every layout that stores the same logical element. Only IEEE
// additions, multiplications, divisions and square roots are used; the C library's log and cos differ between
// platforms.
#pragma once

#include <cstdint>

namespace tessera::baselines {

struct RandomStream {
  uint64_t key;

  RandomStream(uint64_t seed, uint64_t stream);
  uint64_t bits(uint64_t index) const;
  double uniform(uint64_t index) const;                // [0, 1)
  double normal(uint64_t index) const;                 // mean 0, variance 1 (Marsaglia's polar method)
  int64_t below(uint64_t index, int64_t bound) const;  // [0, bound), 0 for bound <= 1
};

}  // namespace tessera::baselines

// The loops of the probe, compiled once per instruction set: the including source sets kVectorBytes and kChains.
// Vectors are GCC's, so the source is the same everywhere. kChains independent sums cover latency times issue width (4
// x 2 on current cores) and still fit the register file beside two constants. Everything is in an unnamed namespace:
// two sources compiled for different instruction sets must never share a function.
#include <cstring>

#include "cli/probe.hpp"

namespace tessera::cli {
namespace {

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes)));
};

template <class T>
double fma_loop(int64_t iterations) {
  using Vector = typename VectorOf<T>::type;
  constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));
  volatile T factor_source = T(0.999), addend_source = T(0.001);
  const Vector factor = Vector{} + factor_source, addend = Vector{} + addend_source;
  Vector sums[kChains];
  for (int chain = 0; chain < kChains; ++chain) sums[chain] = Vector{} + T(chain);
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 32
    for (int chain = 0; chain < kChains; ++chain) sums[chain] = sums[chain] * factor + addend;
  }
  Vector total{};
  for (int chain = 0; chain < kChains; ++chain) total += sums[chain];
  volatile T sink = total[0];
  (void)sink;
  return 2.0 * kLanes * kChains * static_cast<double>(iterations);
}

// `bytes` is a multiple of 8 vectors. Lines are asked for ahead: plain loads alone read up to a tenth less.
int64_t read_loop(const void* data, size_t bytes) {
  using Vector = VectorOf<uint64_t>::type;  // unsigned: the sums wrap
  constexpr int kStreams = 8;
  const char* next = static_cast<const char*>(data);
  Vector sums[kStreams] = {};
  constexpr int kAhead = 4096, kStep = kStreams * sizeof(Vector);
  for (const char* end = next + bytes; next != end; next += kStep) {
#pragma GCC unroll 8
    for (int line = 0; line < kStep; line += 64) __builtin_prefetch(next + kAhead + line);
#pragma GCC unroll 8
    for (int stream = 0; stream < kStreams; ++stream) {
      Vector value;
      std::memcpy(&value, next + static_cast<size_t>(stream) * sizeof value, sizeof value);
      sums[stream] += value;
    }
  }
  Vector total{};
  for (int stream = 0; stream < kStreams; ++stream) total += sums[stream];
  uint64_t checksum = 0;
  for (size_t lane = 0; lane < sizeof(Vector) / sizeof(uint64_t); ++lane) checksum += total[lane];
  return static_cast<int64_t>(checksum);
}

}  // namespace
}  // namespace tessera::cli

// What src/cuda/ptx/opaque.cuh has.
#pragma once

namespace tessera::cuda::ptx {

inline int opaque(int value) { return value; }
inline float opaque(float value) { return value; }
inline unsigned long long opaque(unsigned long long value) { return value; }

}  // namespace tessera::cuda::ptx

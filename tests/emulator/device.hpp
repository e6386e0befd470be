// The one device: a part with few multiprocessors, of sm_80 or of the architecture in TESSERA_EMULATED_ARCH.
#pragma once

#include <cstddef>

namespace tessera::emulator {

// 80 or 90: compute capability times 10.
int architecture();

inline constexpr int kMultiprocessors = 4;
inline constexpr size_t kSharedPerBlock = 48 * 1024;
inline constexpr size_t kMemoryBytes = size_t{4} << 30;
inline constexpr int kL2Bytes = 1 << 20;

}  // namespace tessera::emulator

// The one device: an sm_80 part with few multiprocessors.
#pragma once

#include <cstddef>

namespace tessera::emulator {

inline constexpr int kMultiprocessors = 4;
inline constexpr size_t kSharedPerBlock = 48 * 1024, kSharedPerSm = 164 * 1024;
inline constexpr size_t kMemoryBytes = size_t{4} << 30;
inline constexpr int kL2Bytes = 1 << 20;

}  // namespace tessera::emulator

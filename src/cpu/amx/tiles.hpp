// The eight AMX tile registers, as instructions and as a scalar emulation with the same interface, so that everything
// around them (packing, masks, loops) runs and is tested on any x86-64. Every register is used in one shape: 16 rows of
// 64 bytes, that is 16 x 16 float32 or 16 x 32 bf16 (Intel Architecture Instruction Set Extensions, chapter "AMX").
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace tessera::cpu::amx {

inline constexpr int kTileRows = 16;
inline constexpr int kTileBytes = 16 * 64;

// c[m][n] += sum over k of a[m][2k] * b[k][2n] + a[m][2k+1] * b[k][2n+1], bf16 products summed in float32; denormal
// inputs and results count as zero, as in the instruction.
class EmulatedTiles {
 public:
  static constexpr bool kNative = false;

  static void begin() {}
  static void end() {}

  template <int T>
  void zero() {
    std::memset(registers_[T], 0, kTileBytes);
  }
  template <int T>
  void load(const void* base, int64_t stride_bytes) {
    for (int r = 0; r < kTileRows; ++r)
      std::memcpy(registers_[T][r], static_cast<const char*>(base) + r * stride_bytes, 64);
  }
  template <int T>
  void store(void* base, int64_t stride_bytes) const {
    for (int r = 0; r < kTileRows; ++r) std::memcpy(static_cast<char*>(base) + r * stride_bytes, registers_[T][r], 64);
  }
  template <int C, int A, int B>
  void dp_bf16() {
    for (int m = 0; m < 16; ++m)
      for (int k = 0; k < 16; ++k) {
        const float even = widen(registers_[A][m][k] << 16), odd = widen(registers_[A][m][k] & 0xffff0000u);
        for (int n = 0; n < 16; ++n) {
          const uint32_t pair = registers_[B][k][n];
          float sum = std::bit_cast<float>(registers_[C][m][n]);
          sum += even * widen(pair << 16);
          sum += odd * widen(pair & 0xffff0000u);
          registers_[C][m][n] = std::bit_cast<uint32_t>(sum);
        }
      }
  }

 private:
  static float widen(uint32_t bits) { return (bits & 0x7f800000u) == 0 ? 0.0f : std::bit_cast<float>(bits); }
  uint32_t registers_[8][16][16];
};

#if defined(__AMX_BF16__) || defined(__AMXBF16__)  // gcc; clang 14

// asm instead of the intrinsics: gcc 12 drops the stores that fill the configuration, and its tile loads do not order
// against the stores that feed them; the "memory" clobbers do.
class NativeTiles {
 public:
  static constexpr bool kNative = true;

  // Palette 1, all eight registers 16 rows x 64 bytes; per thread, undone by end().
  static void begin() {
    struct alignas(64) Config {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
  }
  static void end() { asm volatile("tilerelease" ::: "memory"); }

  template <int T>
  void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(T));
  }
  template <int T>
  void load(const void* base, int64_t stride_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(base), "r"(stride_bytes), "i"(T) : "memory");
  }
  template <int T>
  void store(void* base, int64_t stride_bytes) const {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(base), "r"(stride_bytes), "i"(T) : "memory");
  }
  template <int C, int A, int B>
  void dp_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
};

#endif

}  // namespace tessera::cpu::amx

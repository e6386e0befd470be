// The eight AMX tile registers, as instructions and as a scalar emulation with the same interface, so that everything
// around them (packing, masks, loops) runs and is tested on any x86-64. A register holds up to 16 rows of 64 bytes:
// 16 x 16 float32 or int32, 16 x 32 bf16 or 16 x 64 int8; begin() says how many of each (Intel Architecture Instruction
// Set Extensions, chapter "AMX").
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace tessera::cpu::amx {

inline constexpr int kTileRows = 16;
inline constexpr int kTileBytes = 16 * 64;

// Rows and bytes of a row of each register. A product c += a b has the rows of a and the columns of b, four bytes each,
// in c, and a dword of a's rows for every row of b.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// c[m][n] += sum over k of a[m][2k] * b[k][2n] + a[m][2k+1] * b[k][2n+1] as the instruction does it, to the bit (Intel
// SDM, TDPBF16PS; a Xeon's results were the same): even and odd terms are summed apart from 0 on in float32, then both
// and c; denormal inputs and results count as zero.
class EmulatedTiles {
 public:
  static constexpr bool kNative = false;

  void begin(const TileShapes& shapes = {}) { shapes_ = shapes; }
  static void end() {}

  template <int T>
  void zero() {
    std::memset(registers_[T], 0, kTileBytes);
  }
  template <int T>
  void load(const void* base, int64_t stride_bytes) {
    for (int r = 0; r < shapes_.rows[T]; ++r)
      std::memcpy(registers_[T][r], static_cast<const char*>(base) + r * stride_bytes, shapes_.row_bytes[T]);
  }
  template <int T>
  void store(void* base, int64_t stride_bytes) const {
    for (int r = 0; r < shapes_.rows[T]; ++r)
      std::memcpy(static_cast<char*>(base) + r * stride_bytes, registers_[T][r], shapes_.row_bytes[T]);
  }
  template <int C, int A, int B>
  void dp_bf16() {
    const int columns = shapes_.row_bytes[B] / 4;
    float b_even[16][16], b_odd[16][16];  // widened once for all rows of a
    for (int k = 0; k < shapes_.rows[B]; ++k)
      for (int n = 0; n < columns; ++n) {
        const uint32_t pair = registers_[B][k][n];
        b_even[k][n] = widen(pair << 16), b_odd[k][n] = widen(pair & 0xffff0000u);
      }
    for (int m = 0; m < shapes_.rows[A]; ++m) {
      float even[16] = {}, odd[16] = {};
      for (int k = 0; k < shapes_.rows[B]; ++k) {
        const uint32_t pair = registers_[A][m][k];
        const float a_even = widen(pair << 16), a_odd = widen(pair & 0xffff0000u);
        for (int n = 0; n < columns; ++n) even[n] += a_even * b_even[k][n], odd[n] += a_odd * b_odd[k][n];
      }
      uint32_t* c = registers_[C][m];
      for (int n = 0; n < columns; ++n)
        c[n] = std::bit_cast<uint32_t>(flush(std::bit_cast<float>(c[n]) + (even[n] + odd[n])));
    }
  }
  // c[m][n] += sum over k of a[m][4k + i] * b[k][4n + i], signed bytes summed in int32, which wraps.
  template <int C, int A, int B>
  void dp_int8() {
    for (int m = 0; m < shapes_.rows[A]; ++m)
      for (int k = 0; k < shapes_.rows[B]; ++k)
        for (int n = 0; n < shapes_.row_bytes[B] / 4; ++n)
          for (int i = 0; i < 4; ++i)
            registers_[C][m][n] += static_cast<uint32_t>(digit(registers_[A][m][k], i) * digit(registers_[B][k][n], i));
  }

 private:
  static int32_t digit(uint32_t quad, int i) { return static_cast<int8_t>(quad >> (8 * i)); }
  static float widen(uint32_t bits) { return (bits & 0x7f800000u) == 0 ? 0.0f : std::bit_cast<float>(bits); }
  static float flush(float x) { return widen(std::bit_cast<uint32_t>(x)); }

  TileShapes shapes_;
  uint32_t registers_[8][16][16];
};

#if defined(__AMX_BF16__) || defined(__AMXBF16__)  // gcc; clang 14

// asm instead of the intrinsics: gcc 12 drops the stores that fill the configuration, and its tile loads do not order
// against the stores that feed them; the "memory" clobbers do.
class NativeTiles {
 public:
  static constexpr bool kNative = true;

  // Of the calling thread, undone by end().
  static void begin(const TileShapes& shapes = {}) { asm volatile("ldtilecfg %0" ::"m"(shapes) : "memory"); }
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
  template <int C, int A, int B>
  void dp_int8() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
};

#endif

}  // namespace tessera::cpu::amx

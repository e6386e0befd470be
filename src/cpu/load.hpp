// Element types as the kernels read and write them: a row piece at any address, misaligned ones too, becomes one vector
// of the compute type (float for 16-bit types and f32, double for f64). Invariant: never touches a byte outside the
// `count` elements it is given; what a partial load lacks is +0. A quantised element is one more struct here, its
// scale applied by the caller to the whole row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cpu/convert.hpp"
#include "tessera/tessera.h"

namespace tessera::cpu::TESSERA_CPU_ISA {

struct F64Element {
  static constexpr int kBytes = 8;
  static constexpr bool kScaled = false;
  static F64x8 load(const void* p) { return F64x8::load(p); }
  static void store(F64x8 v, void* p) { v.store(p); }
};
struct F32Element {
  static constexpr int kBytes = 4;
  static constexpr bool kScaled = false;
  static constexpr bool kInterleaved = false;
  static F32x16 load(const void* p) { return F32x16::load(p); }
  static void store(F32x16 v, void* p) { v.store(p); }
};
struct F16Element {
  static constexpr int kBytes = 2;
  static constexpr bool kScaled = false;
  static constexpr bool kInterleaved = false;
  static F32x16 load(const void* p) { return F32x16::load_f16(p); }
  static void store(F32x16 v, void* p) { v.store_f16(p); }
};
struct Bf16Element {
  static constexpr int kBytes = 2;
  static constexpr bool kScaled = false;
  static constexpr bool kInterleaved = F32x16::kBf16Interleaved;
  static F32x16 load(const void* p) { return F32x16::load_bf16(p); }
  static void store(F32x16 v, void* p) { v.store_bf16(p); }
};

// The element whose storage is V's own scalar.
template <class V>
using NativeElement = std::conditional_t<sizeof(typename V::Scalar) == 8, F64Element, F32Element>;

// Quantised; the scale of a row is the caller's.
struct Int8Element {
  static constexpr int kBytes = 1;
  static constexpr bool kScaled = true;
  static constexpr bool kInterleaved = false;
  static F32x16 load(const void* p) { return F32x16::load_i8(p); }
  static float load_one(const std::byte* p) { return static_cast<float>(static_cast<int8_t>(*p)); }
};
struct E4m3Element {
  static constexpr int kBytes = 1;
  static constexpr bool kScaled = true;
  static constexpr bool kInterleaved = false;
  static F32x16 load(const void* p) {
    const auto* stored = static_cast<const uint8_t*>(p);
    alignas(64) float lane[16];
    for (int i = 0; i < 16; ++i) lane[i] = float_from_e4m3(stored[i]);
    return F32x16::load(lane);
  }
  static float load_one(const std::byte* p) { return float_from_e4m3(static_cast<uint8_t>(*p)); }
};

// The 32 elements at p as two vectors: the first and the last 16 in order or, where Element is kInterleaved, those of
// even and those of odd index. Which it is does not matter to sums over the elements, as long as both factors agree.
template <class V, class Element>
[[gnu::always_inline]] inline void load_pair(const std::byte* p, V& first, V& second) {
  if constexpr (Element::kInterleaved) {
    V::load_bf16_even_odd(p, first, second);
  } else {
    first = Element::load(p);
    second = Element::load(p + V::kLanes * Element::kBytes);
  }
}
// Where element `at` of a row lies when pairs are loaded up to element `whole` and single vectors from there on.
template <class Element>
inline int64_t paired_place(int64_t at, int64_t whole) {
  if (!Element::kInterleaved || at >= whole) return at;
  const int64_t inside = at % 32;
  return at - inside + inside / 2 + inside % 2 * 16;
}
// 32 floats in the order of the elements to the order of load_pair, in place, and back.
template <class Element>
inline void put_in_order(float* pair) {
  if constexpr (Element::kInterleaved) {
    float even[16], odd[16];
    for (int i = 0; i < 16; ++i) even[i] = pair[2 * i], odd[i] = pair[2 * i + 1];
    std::memcpy(pair, even, sizeof even);
    std::memcpy(pair + 16, odd, sizeof odd);
  }
}
template <class Element>
inline void take_from_order(float* pair) {
  if constexpr (Element::kInterleaved) {
    float whole[32];
    for (int i = 0; i < 16; ++i) whole[2 * i] = pair[i], whole[2 * i + 1] = pair[16 + i];
    std::memcpy(pair, whole, sizeof whole);
  }
}

// Calls f with the element type of `dtype`, whose vectors are V.
template <class V, class F>
inline void with_element(int32_t dtype, F&& f) {
  if constexpr (sizeof(typename V::Scalar) == 8) {
    f(F64Element{});
  } else if (dtype == TESSERA_F16) {
    f(F16Element{});
  } else if (dtype == TESSERA_BF16) {
    f(Bf16Element{});
  } else {
    f(F32Element{});
  }
}

// The same of an input, which may be quantised.
template <class V, class F>
inline void with_input_element(int32_t dtype, F&& f) {
  if constexpr (sizeof(typename V::Scalar) == 4) {
    if (dtype == TESSERA_INT8) return f(Int8Element{});
    if (dtype == TESSERA_E4M3) return f(E4m3Element{});
  }
  with_element<V>(dtype, f);
}

template <class V, class Element>
inline V load_partial(const std::byte* from, int64_t count) {
  if (count >= V::kLanes) return Element::load(from);
  alignas(64) std::byte piece[V::kLanes * Element::kBytes] = {};
  std::memcpy(piece, from, static_cast<size_t>(count) * Element::kBytes);
  return Element::load(piece);
}

// A piece of row `row` times its scale, where Element has one.
template <class V, class Element>
inline V load_scaled(const std::byte* from, int64_t count, [[maybe_unused]] const typename V::Scalar* scale,
                     [[maybe_unused]] int64_t row) {
  const V stored = load_partial<V, Element>(from, count);
  if constexpr (Element::kScaled) return stored * V::broadcast(scale[row]);
  return stored;
}

template <class V, class Element>
inline void store_partial(V v, std::byte* to, int64_t count) {
  if (count >= V::kLanes) return Element::store(v, to);
  alignas(64) std::byte piece[V::kLanes * Element::kBytes];
  Element::store(v, piece);
  std::memcpy(to, piece, static_cast<size_t>(count) * Element::kBytes);
}

}  // namespace tessera::cpu::TESSERA_CPU_ISA

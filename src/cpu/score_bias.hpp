// The additive bias or u8 mask of one row, as terms to add to its scores.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include "load.hpp"
#include "problem.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

struct BiasRow {
  int64_t batch, head, position;
};

template <class V, class Element>
inline void load_bias_elements(const std::byte* base, int64_t at, int64_t stride, core::Range columns,
                               typename V::Scalar* to) {
  constexpr int64_t kLanes = V::kLanes;
  for (int64_t j = columns.begin; j < columns.end; j += kLanes) {
    const int64_t count = columns.end - j < kLanes ? columns.end - j : kLanes;
    alignas(64) std::byte gathered[kLanes * Element::kBytes];
    const std::byte* from = base + (at + j * stride) * Element::kBytes;
    if (stride != 1) {
      for (int64_t c = 0; c < count; ++c)
        std::memcpy(gathered + c * Element::kBytes, from + c * stride * Element::kBytes, Element::kBytes);
      from = gathered;
    }
    store_partial<V, NativeElement<V>>(load_partial<V, Element>(from, count), reinterpret_cast<std::byte*>(to + j),
                                       count);
  }
}

// to[j] for j in `columns`, which count from key `first_key`: a u8 mask becomes 0 and -inf. Nothing else is read.
template <class V>
inline void load_bias(const core::Problem& problem, const tessera_tensors& tensors, const BiasRow& row,
                      int64_t first_key, core::Range columns, typename V::Scalar* to) {
  using T = typename V::Scalar;
  const core::BiasOperand& bias = problem.bias;
  const int64_t at = row.batch * bias.stride[0] + row.head * bias.stride[1] + row.position * bias.stride[2] +
                     first_key * bias.stride[3];
  const auto* base = static_cast<const std::byte*>(tensors.bias);
  if (bias.dtype == TESSERA_U8) {
    for (int64_t j = columns.begin; j < columns.end; ++j) {
      to[j] = base[at + j * bias.stride[3]] != std::byte{0} ? T(0) : -std::numeric_limits<T>::infinity();
    }
  } else if (bias.dtype == TESSERA_F32 && sizeof(T) == 8) {
    for (int64_t j = columns.begin; j < columns.end; ++j) {
      float value;
      std::memcpy(&value, base + (at + j * bias.stride[3]) * int64_t{sizeof value}, sizeof value);
      to[j] = T(value);
    }
  } else {
    with_element<V>(bias.dtype, [&](auto element) {
      load_bias_elements<V, decltype(element)>(base, at, bias.stride[3], columns, to);
    });
  }
}

}  // namespace tessera::cpu::TESSERA_CPU_ISA

// The second half of decode: the partial states of one kv head's rows merged in the order of the splits, with the sink
// last, and the stores of o and lse.
#pragma once

#include <cstring>

#include "decode_call.hpp"
#include "load.hpp"
#include "semantics.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

struct PartialState {
  const PartialHeader* header;
  float* o;
};
inline PartialState partial_state(const DecodeTiles& tiles, std::byte* partials, int64_t split, int64_t row) {
  std::byte* base = partials + split * tiles.partial_bytes;
  return {reinterpret_cast<const PartialHeader*>(base) + row,
          reinterpret_cast<float*>(base + tiles.partial_o_at) + row * tiles.head_dim_v_padded};
}

inline void store_decode_row(const DecodeCall& call, const DecodeUnit& unit, int64_t position, int32_t head,
                             const float* o, double lse) {
  using V = F32x16;
  const core::Problem& problem = *call.problem;
  with_element<V>(problem.o.dtype, [&](auto element) {
    using Element = decltype(element);
    std::byte* to =
        static_cast<std::byte*>(call.tensors->o) +
        (core::query_row_offset(unit.sequence, problem.o, position) + head * problem.o.head_stride) * Element::kBytes;
    for (int64_t c = 0; c < problem.head_dim_v; c += V::kLanes)
      store_partial<V, Element>(V::load(o + c), to + c * Element::kBytes, problem.head_dim_v - c);
  });
  if (!problem.has(TESSERA_FLAG_LSE)) return;
  const float value = static_cast<float>(lse);
  const int64_t at = head * unit.sequence.lse_stride + unit.sequence.lse_row + position;
  std::memcpy(static_cast<std::byte*>(call.tensors->lse) + at * int64_t{sizeof value}, &value, sizeof value);
}

inline void decode_finish(const DecodeCall& call, const DecodeUnit& unit, std::byte* partials) {
  using V = F32x16;
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  const core::Problem& problem = *call.problem;
  const DecodeTiles& tiles = call.tiles;
  alignas(64) float total[512];
  for (int64_t r = unit.row_begin; r < unit.row_end; ++r) {
    const int64_t position = r / problem.group;
    const int32_t head = unit.head_begin * problem.group + static_cast<int32_t>(r % problem.group);
    const bool used = position < unit.sequence.seqlen_q;
    double lse = kNone;
    std::memset(total, 0, sizeof total);
    for (int64_t split = 0; used && split < unit.splits; ++split) {
      const PartialState state = partial_state(tiles, partials, split, r - unit.row_begin);
      if (state.header->lse == kNone) continue;
      const core::MergeWeights<double> weights = core::merge_weights(lse, state.header->lse);
      const V keep = V::broadcast(static_cast<float>(weights.first)),
              add = V::broadcast(static_cast<float>(weights.second));
      for (int64_t c = 0; c < tiles.head_dim_v_padded; c += V::kLanes)
        V::fma(V::load(total + c), keep, V::load(state.o + c) * add).store(total + c);
      lse = core::merge_lse(lse, state.header->lse);
    }
    if (used && problem.has(TESSERA_FLAG_SINKS)) {
      const double sink = double(call.tensors->sinks[head]);
      const V weight = V::broadcast(static_cast<float>(core::merge_weights(lse, sink).first));
      for (int64_t c = 0; c < tiles.head_dim_v_padded; c += V::kLanes) (V::load(total + c) * weight).store(total + c);
      lse = core::merge_lse(lse, sink);
    }
    store_decode_row(call, unit, position, head, total, lse);
  }
}

}  // namespace tessera::cpu::TESSERA_CPU_ISA

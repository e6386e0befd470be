// The body of each build's decode source: the decode kernel with its products on one tile type.
#pragma once

#include "cpu/amx/decode_bf16.hpp"
#include "cpu/amx/decode_int8.hpp"
#include "cpu/decode.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

template <class Tiles>
inline void tile_attend(const DecodeCall& call, const DecodeUnit& unit, int64_t split, bool continues, std::byte* task,
                        std::byte* partial, int64_t head_bytes) {
  using V = F32x16;
  if (call.problem->k.dtype == TESSERA_INT8)
    DecodeRun<V, Int8Element, Int8Products<Tiles, V>>(call, unit, task, partial, head_bytes).attend(split, continues);
  else
    DecodeRun<V, Bf16Element, Bf16Products<Tiles, V>>(call, unit, task, partial, head_bytes).attend(split, continues);
}

template <class Tiles>
inline constexpr DecodeKernel kTileDecode = {true, tile_attend<Tiles>, decode_finish};

}  // namespace tessera::cpu::TESSERA_CPU_ISA

// The body of each build's backward source: instantiates the kernel for one tile type and one vector type.
#pragma once

#include "cpu/amx/backward.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

template <class Tiles>
void tile_backward_task(const BackwardCall& call, const BackwardTask& task, std::byte* workspace) {
  using V = F32x16;
  switch (tile_parts(*call.problem)) {
    case 1:
      return backward_task<V, TileProducts<1, Tiles, V>>(call, task, workspace);
    case 2:
      return backward_task<V, TileProducts<2, Tiles, V>>(call, task, workspace);
    default:
      return backward_task<V, TileProducts<3, Tiles, V>>(call, task, workspace);
  }
}

template <class Tiles>
inline constexpr BackwardKernel kTileBackward = {
    kUnit, F32x16::kLanes, 0, 0, 0, {tile_backward_task<Tiles>, finish_queries<TileQueries<F32x16>>, nullptr}, {},
    true};

}  // namespace tessera::cpu::TESSERA_CPU_ISA

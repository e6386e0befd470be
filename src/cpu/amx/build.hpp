// The body of each build's source: instantiates the kernel for one tile type and one vector type.
#pragma once

#include "cpu/amx/forward.hpp"
#include "cpu/amx/kernel.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

template <class Tiles>
void run_item(const amx::Item& item, std::byte* memory) {
  const core::Problem& problem = *item.problem;
  const ItemContext context{
      &problem,   item.tensors, item.shape, item.sequence, problem.band(item.sequence.seqlen_q, item.sequence.seqlen_k),
      item.batch, item.head_kv};
  if (item.shape->parts == 1)
    ForwardTask<1, Tiles, F32x16>(context, memory).run(item.unit_begin, item.unit_end);
  else if (item.shape->parts == 3)
    ForwardTask<3, Tiles, F32x16>(context, memory).run(item.unit_begin, item.unit_end);
  else
    ForwardTask<2, Tiles, F32x16>(context, memory).run(item.unit_begin, item.unit_end);
}

template <class Tiles>
void begin_task() {
  Tiles().begin();
}

template <class Tiles>
inline constexpr amx::Kernel kKernel{begin_task<Tiles>, Tiles::end, run_item<Tiles>};

}  // namespace tessera::cpu::TESSERA_CPU_ISA

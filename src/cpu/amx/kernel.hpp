// What the plan side of the tile kernel calls: one build with the instructions, one with their emulation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/amx/task.hpp"
#include "kernel_entry.hpp"
#include "sequence.hpp"

namespace tessera::cpu::amx {

// Units [unit_begin, unit_end) of one (batch, kv head).
struct Item {
  const core::Problem* problem;
  const tessera_tensors* tensors;
  const Shape* shape;
  core::Sequence sequence;
  int64_t batch, unit_begin, unit_end;
  int32_t head_kv;
};

struct Kernel {
  void (*begin)();  // once a task, before its items
  void (*end)();
  void (*item)(const Item&, std::byte* memory);
};

#if defined(__x86_64__)
extern const Kernel kNative;
#endif
extern const Kernel kEmulated;

}  // namespace tessera::cpu::amx

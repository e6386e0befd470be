// Sizes and memory of one task of the tile kernel: plain arithmetic, shared by planning and by both builds of the
// kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "problem.hpp"

namespace tessera::cpu::amx {

inline constexpr int64_t kChunkKeys = 256;  // keys packed at a time
inline constexpr int64_t kMaxUnits = 64;    // units of an item: 2048 rows
inline constexpr int64_t kUnit = 32;        // rows of a unit
inline constexpr int64_t kStep = 64;        // keys of a step

struct Shape {
  int64_t parts;                // 1 for bf16, 2 for f16, 3 for f32
  int64_t qk_padded, v_padded;  // head dims, multiples of 32; of one part, v's of 16
  int64_t q_elements;           // bf16 elements of one unit's packed Q
  int64_t o_elements;           // floats of one unit's O
  int64_t units;                // units of an item
  int64_t value_steps;          // steps whose P meets V together
  int64_t scores_bytes, p_bytes, scratch_bytes, k_bytes, v_bytes, unit_bytes, task_bytes;
};

inline Shape make_shape(const core::Problem& problem, int64_t units) {
  const auto round_up = [](int64_t x, int64_t to) { return (x + to - 1) / to * to; };
  Shape shape{};
  shape.parts = problem.q.dtype == TESSERA_F32 ? 3 : problem.q.dtype == TESSERA_F16 ? 2 : 1;
  shape.qk_padded = round_up(problem.head_dim_qk, 32);
  shape.v_padded = round_up(problem.head_dim_v, shape.parts == 1 ? 16 : 32);
  shape.q_elements = shape.parts * shape.qk_padded * kUnit;
  shape.o_elements = shape.v_padded * kUnit;
  shape.units = units;
  shape.scores_bytes = 2 * kStep * kUnit * 4;
  // 0.92 of the time of one step at head dim 128, 1.19 of it at 64 (docs/notes/cpu.md).
  shape.value_steps = shape.parts == 1 && shape.v_padded > 64 ? kChunkKeys / kStep : 1;
  const bool in_scores = shape.parts == 1 && shape.value_steps == 1;
  shape.p_bytes = in_scores ? 0 : 2 * shape.value_steps * shape.parts * kStep * kUnit * 2;
  shape.scratch_bytes = 16 * shape.parts * shape.qk_padded * 2;
  shape.k_bytes = shape.parts * kChunkKeys * shape.qk_padded * 2;
  shape.v_bytes = shape.parts * kChunkKeys * shape.v_padded * 2;
  shape.unit_bytes = shape.q_elements * 2 + shape.o_elements * 4 + 2 * kUnit * 4;
  shape.task_bytes = round_up(shape.scores_bytes + shape.p_bytes + shape.scratch_bytes + shape.k_bytes + shape.v_bytes +
                                  units * shape.unit_bytes,
                              256);
  return shape;
}

struct TaskMemory {
  float* scores[2];
  uint16_t* p[2];
  uint16_t *scratch, *k, *v, *q;
  float *o, *statistics;

  TaskMemory(std::byte* memory, const Shape& shape) {
    const auto take = [&memory](int64_t bytes) {
      std::byte* at = memory;
      memory += bytes;
      return at;
    };
    scores[0] = reinterpret_cast<float*>(take(shape.scores_bytes / 2));
    scores[1] = reinterpret_cast<float*>(take(shape.scores_bytes / 2));
    for (int i = 0; i < 2; ++i)
      p[i] = shape.p_bytes == 0 ? reinterpret_cast<uint16_t*>(scores[i])
                                : reinterpret_cast<uint16_t*>(take(shape.p_bytes / 2));
    scratch = reinterpret_cast<uint16_t*>(take(shape.scratch_bytes));
    k = reinterpret_cast<uint16_t*>(take(shape.k_bytes));
    v = reinterpret_cast<uint16_t*>(take(shape.v_bytes));
    q = reinterpret_cast<uint16_t*>(take(shape.units * shape.q_elements * 2));
    o = reinterpret_cast<float*>(take(shape.units * shape.o_elements * 4));
    statistics = reinterpret_cast<float*>(take(shape.units * 2 * kUnit * 4));
  }
};

}  // namespace tessera::cpu::amx

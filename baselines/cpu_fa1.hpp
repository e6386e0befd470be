// cpu.fa1: FlashAttention-1's schedule (fa1.hpp) on the CPU kernels' vectors and products. One task a (batch,
// query head); O, l and m lie in memory between their updates, as wide as the products' results.
#pragma once

#include <cstddef>

#include "fa1.hpp"

namespace tessera::baselines {

// The rows of kFa1Budgets.
extern const core::KernelEntry kCpuFa1[kFa1Rows];

// Sizes in elements of the type computed in; places in bytes.
struct CpuFa1Tiles {
  int64_t rows, keys, head_dim_v_padded;
  int64_t o_at, max_at, sum_at;                            // [batch, heads_q, seqlen_q, ...], in the workspace
  int64_t scratch_at, task_bytes;                          // the first task's scratch, and how far the next one lies
  int64_t q_at, k_at, v_at, scores_at, address_at, bytes;  // in a task's scratch; of the whole workspace
};

struct CpuFa1Call {
  const core::Problem* problem;
  const tessera_tensors* tensors;
  CpuFa1Tiles tiles;
  std::byte* workspace;
};

// One instruction set's build of the kernel.
struct CpuFa1Kernel {
  int32_t rows_f32, lanes_f32, rows_f64, lanes_f64;  // of the products
  int32_t most_keys, scores_row;                     // keys of a tile at most; elements of one row of scores
  // All of head `index` = batch * heads_q + head.
  void (*head_f32)(const CpuFa1Call&, int64_t index, std::byte* scratch);
  void (*head_f64)(const CpuFa1Call&, int64_t index, std::byte* scratch);
};
extern const CpuFa1Kernel kCpuFa1Portable;
#if defined(__x86_64__)
extern const CpuFa1Kernel kCpuFa1Avx2, kCpuFa1Avx512;
#elif defined(__aarch64__)
extern const CpuFa1Kernel kCpuFa1Neon;
#endif

}  // namespace tessera::baselines

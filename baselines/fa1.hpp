// FlashAttention-1's schedule, what its CPU and CUDA rows share: the tiles that a budget of on-chip memory gives, and
// the device memory traffic of the model.
//
//   for each block j of B_c keys:              K_j and V_j on chip, once
//     for each block i of B_r queries:         Q_i, O_i, l_i, m_i from device memory
//       S = Q_i K_j^T, m' = rowmax S, P = exp(S - m'), l' = rowsum P
//       m = max(m_i, m'), l = e^(m_i - m) l_i + e^(m' - m) l'
//       O_i = (l_i e^(m_i - m) O_i + e^(m' - m) P V_j) / l;  O_i, l, m to device memory
//
// B_c = ceil(M / 4d), B_r = min(B_c, d), M the elements that fit on chip: N^2 d^2 / M accesses of device memory. A row
// for each budget, pinned only: kernel=cuda.fa1 has 64 KiB, kernel=cuda.fa1.200k has 200.
// Source: Dao, Fu, Ermon, Rudra, Re, "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness"
// (2022), Algorithm 1.
#pragma once

#include <algorithm>
#include <iterator>

#include "kernel_entry.hpp"

namespace tessera::baselines {

struct Fa1Budget {
  int32_t kib;
  const char *cpu_row, *cuda_row, *schedule;
};
// The first stands without its size: it fits every GPU, several blocks a multiprocessor.
inline constexpr Fa1Budget kFa1Budgets[] = {
    {64, "cpu.fa1", "cuda.fa1", "keys outside, queries inside, O, l and m rewritten; tiles for 64 KiB"},
    {32, "cpu.fa1.32k", "cuda.fa1.32k", "keys outside, queries inside, O, l and m rewritten; tiles for 32 KiB"},
    {128, "cpu.fa1.128k", "cuda.fa1.128k", "keys outside, queries inside, O, l and m rewritten; tiles for 128 KiB"},
    {200, "cpu.fa1.200k", "cuda.fa1.200k", "keys outside, queries inside, O, l and m rewritten; tiles for 200 KiB"},
};
inline constexpr int kFa1Rows = static_cast<int>(std::size(kFa1Budgets));

// B_r and B_c of the paper for `kib` KiB of elements of `width` bytes.
struct Fa1Tile {
  int32_t rows, keys;
};
constexpr Fa1Tile fa1_tile(int32_t kib, int32_t dim, int32_t width) {
  const int32_t elements = kib * 1024 / width, keys = (elements + 4 * dim - 1) / (4 * dim);
  return {std::min(keys, dim), keys};
}

// What every row of the schedule refuses: all that the kernels do not read.
inline core::Refusal refuse_fa1(const core::Problem& p) {
  if (p.pass != TESSERA_FORWARD) return {"is a forward schedule", "pass", p.pass};
  if (p.layout_q != TESSERA_DENSE) return {"takes dense layouts only", "layout_q", p.layout_q};
  if (p.layout_kv != TESSERA_DENSE) return {"takes dense layouts only", "layout_kv", p.layout_kv};
  constexpr uint64_t kTaken = TESSERA_FLAG_LSE | TESSERA_FLAG_DETERMINISTIC | TESSERA_FLAG_BATCH_INVARIANT;
  if ((p.flags & ~kTaken) != 0)
    return {"takes neither used lengths, cache rows, left padding, bias, ALiBi, sinks nor v_mean"};
  if (p.batch_kv != p.batch) return {"takes one cache row a sequence", "batch_kv", p.batch_kv};
  if (p.softcap != 0) return {"takes no softcap"};
  if (p.v_order != 0) return {"reads v in the order of its rows only", "v_order", p.v_order};
  if (p.num_splits > 1) return {"does not split keys", "num_splits", p.num_splits};
  if (p.sm_margin != 0) return {"has no sm_margin: its blocks are not persistent", "sm_margin", p.sm_margin};
  return {};
}

// How often a row of O, l and m is updated, over all queries of one head: every row by the first block of keys, by
// later ones if it sees them.
inline double fa1_updates(const core::Problem& p, int64_t keys) {
  const core::Band band = p.band(p.seqlen_q, p.seqlen_k);
  double updates = static_cast<double>(p.seqlen_q);
  for (int64_t key = keys; key < p.seqlen_k; key += keys) {
    updates += static_cast<double>(band.seeing_rows(key, key + keys).size());
  }
  return updates;
}

// Bytes of device memory by the model: K and V once a query head, Q at each update, O and its statistics (state_bytes
// a row) read but at the first update and written but at the last, which writes o and lse.
inline double fa1_bytes(const core::Problem& p, int64_t keys, int64_t state_bytes) {
  const double updates = fa1_updates(p, keys), rows = static_cast<double>(p.seqlen_q);
  const int32_t width = core::dtype_bytes(p.q.dtype), lse = p.has(TESSERA_FLAG_LSE) ? 4 : 0;
  double bytes = static_cast<double>(p.seqlen_k) * width * (p.head_dims());
  bytes += updates * width * p.head_dim_qk + 2 * (updates - rows) * static_cast<double>(state_bytes);
  bytes += rows * (core::dtype_bytes(p.o.dtype) * p.head_dim_v + lse);
  return bytes * static_cast<double>(p.batch * p.heads_q);
}

}  // namespace tessera::baselines

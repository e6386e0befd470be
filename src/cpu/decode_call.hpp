// What the instruction-set independent half of the CPU decode kernel (decode_plan.cpp) hands to the vector half
// (decode.hpp). Plain data, so nothing here is compiled twice.
#pragma once

#include <cstddef>
#include <cstdint>

#include "problem.hpp"
#include "sequence.hpp"
#include "tessera/tessera.h"

namespace tessera::cpu {

// Rows (queries x heads of a group) that the decode rows take of unquantised caches. Up to 32 rows share one read of K
// and V; a few times that is still faster here than in the forward rows, which do not split the keys over threads.
inline constexpr int64_t kMaxDecodeRows = 128;
inline constexpr int64_t kDecodeStrip = 32;                  // rows that share one pass over the keys
inline constexpr int64_t kDecodeBlock = 64;                  // keys whose scores are formed before the softmax
inline constexpr int64_t kDecodeKeyUnit = 16;                // keys that a product takes at once, at most
inline constexpr int64_t kDecodeSplit = 1024;                // keys of a split when the caller names no number
inline constexpr int64_t kDecodeStride = kDecodeBlock + 16;  // floats between rows of scores

struct DecodeTiles {
  int64_t rows;       // of a strip, at most
  int64_t strips;     // of the seqlen_q * group rows of a kv head
  int64_t heads;      // kv heads of a unit, at most: they walk the keys together, in the order of memory
  int64_t splits;     // of the longest sequence
  int64_t near_rows;  // that are asked for ahead into L1; 0: the next block into L2
  int64_t head_dim_qk_padded, head_dim_v_padded;
  // Byte offsets into a task's piece of the workspace, its size, and that of one kv head's partial states of a split.
  int64_t rows_at, q_at, scores_at, bias_at, scale_at, address_at, task_bytes, partial_bytes;
  int64_t partial_o_at;  // bytes from a partial state's headers to its rows of o
  // Of the tile kernel alone, else empty: q as it takes them, tile_q_bytes a head, and the units of their digits; keys
  // that do not lie evenly, probabilities, values and a product.
  int64_t tile_q_at, tile_q_bytes, tile_steps_at, tile_k_at, tile_p_at, tile_v_at, tile_product_at;
};

struct DecodeCall {
  const core::Problem* problem;
  const tessera_tensors* tensors;
  DecodeTiles tiles;
};

// A strip of rows of one sequence, for the kv heads [head_begin, head_end): row r of kv head h is query r / group of
// head h * group + r % group.
struct DecodeUnit {
  core::Sequence sequence;
  int64_t batch, row_begin, row_end;
  int64_t splits;  // that this sequence has
  int32_t head_begin, head_end;
};

// What a row keeps while it walks the keys of a split.
struct DecodeRowState {
  core::Range keys;  // that its band shows it
  double row_sum;
  float row_max, slope;
  int64_t position;
  int32_t head;
};

// The state of one row over one split: o, normalised, head_dim_v_padded floats, lies behind all the headers.
struct PartialHeader {
  double lse;
};

struct DecodeKernel {
  bool tiles;  // uses the tile kernel's memory
  // The partial states of `split`, those of head_begin to `partial` and the others head_bytes apart. `continues` says
  // that split + 1 of the unit comes next on the same thread.
  void (*attend)(const DecodeCall&, const DecodeUnit&, int64_t split, bool continues, std::byte* task,
                 std::byte* partial, int64_t head_bytes);
  // Merges the states of the unit's first kv head, partial_bytes apart from `partial` on, in the order of the splits;
  // stores o and lse.
  void (*finish)(const DecodeCall&, const DecodeUnit&, std::byte* partial);
};

extern const DecodeKernel kDecodePortable;
extern const DecodeKernel kDecodeAmxEmulated;
#if defined(__x86_64__)
extern const DecodeKernel kDecodeAvx2;
extern const DecodeKernel kDecodeAvx512;
extern const DecodeKernel kDecodeAmx;
#elif defined(__aarch64__)
extern const DecodeKernel kDecodeNeon;
#endif

}  // namespace tessera::cpu

// What the lanes of a warp do together, by kind. Operands are structs on the lanes' stacks; results are written there.
#pragma once

#include <cstdint>

#include "block.hpp"
#include "failure.hpp"
#include "where.hpp"

namespace tessera::emulator {

struct MmaOperand {
  float* d;
  const uint32_t* a;
  uint32_t b0, b1;
};
extern const WarpOperation kMmaF16, kMmaBf16;

// Four 8 x 8 matrices; `row` is where this lane's row lies, checked already.
struct LoadOperand {
  uint32_t* r;
  const char* row;
};
extern const WarpOperation kLoadMatrix, kLoadMatrixTransposed;

// The same stored.
struct StoreOperand {
  const uint32_t* r;
  char* row;
};
extern const WarpOperation kStoreMatrix, kStoreMatrixTransposed;

// A value of 4 or 8 bytes from another lane: `source` counts from 0; a lane that is not named gives its own back.
struct ShuffleOperand {
  uint64_t value;
  int source;
};
extern const WarpOperation kShuffle;

// A bit of every lane, to all lanes.
struct VoteOperand {
  bool predicate;
  uint32_t ballot;
};
extern const WarpOperation kVote;

extern const WarpOperation kSyncWarp;

// By the running thread.
inline void meet(uint32_t mask, const WarpOperation& operation, void* operand, Where where) {
  Block::running()->meet(mask, operation, operand, where);
}
inline uint32_t vote(uint32_t mask, bool predicate, Where where) {
  VoteOperand operand{predicate, 0};
  meet(mask, kVote, &operand, where);
  return operand.ballot;
}

}  // namespace tessera::emulator

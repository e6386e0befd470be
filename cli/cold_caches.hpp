// Copies of K and V for benchmarks that memory bounds: successive runs read different copies, 1 GiB in all, so that no
// cache of the machine serves them. There are at most 65536: of K and V below 16 KiB together, they add up to less.
#pragma once

#include "baselines/operands.hpp"
#include "cli/tensor.hpp"
#include "problem.hpp"

namespace tessera::cli {

class ColdCaches {
 public:
  // One set, the operands themselves, where `work` does more than 32 FLOPs a byte: arithmetic bounds that.
  // `limit`: bytes that the copies may occupy.
  ColdCaches(const baselines::OperandSet& operands, const core::Work& work, size_t limit = size_t{1} << 30);
  // The tensors of the next run.
  const tessera_tensors& next();
  // The operands' own K and V and the copies of them.
  size_t copies() const { return copies_ + 1; }
  // What the copies occupy, in one allocation: at most the limit.
  size_t bytes() const { return storage_.bytes(); }

 private:
  tessera_tensors original_, copy_;
  AlignedBytes storage_;  // copies_ strides of K and V, each from a multiple of 256 bytes
  size_t copies_ = 0, stride_ = 0, k_offset_ = 0, v_offset_ = 0, turn_ = 0;
};

}  // namespace tessera::cli

// Copies of K and V for benchmarks that memory bounds: successive runs read different copies, 1 GiB or more in all, so
// that no cache of the machine serves them.
#pragma once

#include <vector>

#include "baselines/operands.hpp"
#include "cli/tensor.hpp"
#include "problem.hpp"

namespace tessera::cli {

class ColdCaches {
 public:
  // One set, the operands themselves, where `work` does more than 32 FLOPs a byte: arithmetic bounds that.
  ColdCaches(const baselines::OperandSet& operands, const core::Work& work);
  // The tensors of the next run.
  const tessera_tensors& next();
  size_t copies() const { return sets_.size(); }

 private:
  std::vector<tessera_tensors> sets_;
  std::vector<AlignedBytes> storage_;
  size_t turn_ = 0;
};

}  // namespace tessera::cli

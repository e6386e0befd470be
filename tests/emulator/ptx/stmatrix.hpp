// The instructions of src/cuda/ptx/stmatrix.cuh.
#pragma once

namespace tessera::cuda::ptx {

inline void stmatrix_x4(uint32_t shared_address, const uint32_t (&r)[4], TESSERA_WHERE) {
  emulator::StoreOperand operand{r, emulator::shared_pointer(shared_address, 16, 16, "stmatrix", where)};
  emulator::meet(emulator::kAllLanes, emulator::kStoreMatrix, &operand, where);
}
inline void stmatrix_x4_trans(uint32_t shared_address, const uint32_t (&r)[4], TESSERA_WHERE) {
  emulator::StoreOperand operand{r, emulator::shared_pointer(shared_address, 16, 16, "stmatrix.trans", where)};
  emulator::meet(emulator::kAllLanes, emulator::kStoreMatrixTransposed, &operand, where);
}

}  // namespace tessera::cuda::ptx

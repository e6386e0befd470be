// The instructions of src/cuda/ptx/mma.cuh.
#pragma once

namespace tessera::cuda::ptx {

inline void mma_m16n8k16_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, TESSERA_WHERE) {
  emulator::MmaOperand operand{d, a, b0, b1};
  emulator::meet(emulator::kAllLanes, emulator::kMmaF16, &operand, where);
}
inline void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, TESSERA_WHERE) {
  emulator::MmaOperand operand{d, a, b0, b1};
  emulator::meet(emulator::kAllLanes, emulator::kMmaBf16, &operand, where);
}

inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t shared_address, TESSERA_WHERE) {
  emulator::LoadOperand operand{r, emulator::shared_pointer(shared_address, 16, 16, "ldmatrix", where)};
  emulator::meet(emulator::kAllLanes, emulator::kLoadMatrix, &operand, where);
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t shared_address, TESSERA_WHERE) {
  emulator::LoadOperand operand{r, emulator::shared_pointer(shared_address, 16, 16, "ldmatrix.trans", where)};
  emulator::meet(emulator::kAllLanes, emulator::kLoadMatrixTransposed, &operand, where);
}

inline uint32_t transpose(uint32_t row, TESSERA_WHERE) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  uint32_t column = 0;
  for (int e = 0; e < 2; ++e) {
    emulator::ShuffleOperand operand{row, (2 * t + e) * 4 + g / 2};
    emulator::meet(emulator::kAllLanes, emulator::kShuffle, &operand, where);
    column |= (static_cast<uint32_t>(operand.value) >> 16 * (g % 2) & 0xffffu) << 16 * e;
  }
  return column;
}

}  // namespace tessera::cuda::ptx

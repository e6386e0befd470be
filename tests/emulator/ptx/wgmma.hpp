// The instructions of src/cuda/ptx/wgmma.cuh, wgmma_products.cuh and wgmma_bytes.cuh, of any shape.
#pragma once

namespace tessera::cuda::ptx {

constexpr emulator::ProductType product_type(HalfType type) {
  return type == HalfType::bf16 ? emulator::ProductType::bf16 : emulator::ProductType::f16;
}

template <HalfType kType, int kN, bool kTransposeA = false, bool kTransposeB = false>
void wgmma_shared(float (&d)[kN / 8][4], uint64_t a, uint64_t b, int accumulate, TESSERA_WHERE) {
  static_assert(kN % 8 == 0 && kN >= 8 && kN <= emulator::kMostColumns);
  const emulator::Product product{product_type(kType), false, kTransposeA, kTransposeB, accumulate != 0, kN, a, b};
  emulator::Block::running()->warpgroups().issue(product, d[0], nullptr, where);
}

template <HalfType kType, int kN>
void wgmma_shared_first(float (&d)[kN / 8][4], uint64_t a, uint64_t b, TESSERA_WHERE) {
  wgmma_shared<kType, kN>(d, a, b, 0, where);
}
template <HalfType kType, int kN>
void wgmma_transposed(float (&d)[kN / 8][4], uint64_t a, uint64_t b, int accumulate, TESSERA_WHERE) {
  wgmma_shared<kType, kN, true>(d, a, b, accumulate, where);
}
template <HalfType kType, int kN>
void wgmma_transposed_first(float (&d)[kN / 8][4], uint64_t a, uint64_t b, TESSERA_WHERE) {
  wgmma_shared<kType, kN, true>(d, a, b, 0, where);
}

template <HalfType kType, int kN, bool kTransposeB = true>
void wgmma_registers(float (&d)[kN / 8][4], const uint32_t (&a)[4], uint64_t b, int accumulate, TESSERA_WHERE) {
  static_assert(kN % 8 == 0 && kN >= 8 && kN <= emulator::kMostColumns);
  const emulator::Product product{product_type(kType), true, false, kTransposeB, accumulate != 0, kN, 0, b};
  emulator::Block::running()->warpgroups().issue(product, d[0], a, where);
}

template <int kN>
void wgmma_bytes_shared(float (&d)[kN / 8][4], uint64_t a, uint64_t b, int accumulate, TESSERA_WHERE) {
  static_assert(kN % 8 == 0 && kN >= 8 && kN <= emulator::kMostColumns);
  const emulator::Product product{emulator::ProductType::e4m3, false, false, false, accumulate != 0, kN, a, b};
  emulator::Block::running()->warpgroups().issue(product, d[0], nullptr, where);
}
template <int kN>
void wgmma_bytes_shared_first(float (&d)[kN / 8][4], uint64_t a, uint64_t b, TESSERA_WHERE) {
  wgmma_bytes_shared<kN>(d, a, b, 0, where);
}
template <int kN>
void wgmma_bytes_registers(float (&d)[kN / 8][4], const uint32_t (&a)[4], uint64_t b, int accumulate, TESSERA_WHERE) {
  static_assert(kN % 8 == 0 && kN >= 8 && kN <= emulator::kMostColumns);
  const emulator::Product product{emulator::ProductType::e4m3, true, false, false, accumulate != 0, kN, 0, b};
  emulator::Block::running()->warpgroups().issue(product, d[0], a, where);
}
template <int kN>
void wgmma_bytes_registers_first(float (&d)[kN / 8][4], const uint32_t (&a)[4], uint64_t b, TESSERA_WHERE) {
  wgmma_bytes_registers<kN>(d, a, b, 0, where);
}

inline void wgmma_fence(TESSERA_WHERE) { emulator::Block::running()->warpgroups().fence(where); }
inline void wgmma_commit(TESSERA_WHERE) { emulator::Block::running()->warpgroups().commit(where); }
template <int kPending>
void wgmma_wait(TESSERA_WHERE) {
  emulator::Block::running()->warpgroups().wait(kPending, where);
}
template <int kColumns>
void pin(float (&)[kColumns][4]) {}

template <int kRegisters>
void shrink_registers(TESSERA_WHERE) {
  emulator::Block::running()->warpgroups().set_registers(kRegisters, false, where);
}
template <int kRegisters>
void grow_registers(TESSERA_WHERE) {
  emulator::Block::running()->warpgroups().set_registers(kRegisters, true, where);
}

}  // namespace tessera::cuda::ptx

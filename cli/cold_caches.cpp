#include "cli/cold_caches.hpp"

#include <algorithm>
#include <cstring>

namespace tessera::cli {
namespace {

constexpr double kMemoryBound = 32;  // FLOPs a byte
constexpr size_t kMaxCopies = size_t{1} << 16;

size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

const baselines::Buffer* buffer_of(const baselines::OperandSet& operands, const void* pointer) {
  for (const baselines::Buffer& buffer : operands.buffers)
    if (pointer >= buffer.data() && pointer < buffer.data() + buffer.bytes()) return &buffer;
  return nullptr;
}

}  // namespace

ColdCaches::ColdCaches(const baselines::OperandSet& operands, const core::Work& work, size_t limit)
    : original_(operands.tensors), copy_(operands.tensors) {
  const baselines::Buffer *k = buffer_of(operands, original_.k), *v = buffer_of(operands, original_.v);
  if (k == nullptr || v == nullptr || work.flops > kMemoryBound * work.bytes) return;
  const size_t k_bytes = aligned(k->bytes());
  stride_ = k_bytes + aligned(v->bytes());
  copies_ = std::min(limit / stride_, kMaxCopies);
  k_offset_ = static_cast<size_t>(static_cast<const std::byte*>(original_.k) - k->data());
  v_offset_ = k_bytes + static_cast<size_t>(static_cast<const std::byte*>(original_.v) - v->data());
  storage_ = AlignedBytes(copies_ * stride_, false);
  for (size_t i = 0; i < copies_; ++i) {
    std::byte* const begin = storage_.data() + i * stride_;
    std::memcpy(begin, k->data(), k->bytes());
    std::memcpy(begin + k_bytes, v->data(), v->bytes());
  }
}

const tessera_tensors& ColdCaches::next() {
  const size_t turn = turn_++ % copies();
  if (turn == 0) return original_;
  const std::byte* const begin = storage_.data() + (turn - 1) * stride_;
  copy_.k = begin + k_offset_;
  copy_.v = begin + v_offset_;
  return copy_;
}

}  // namespace tessera::cli

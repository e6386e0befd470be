#include "cli/cold_caches.hpp"

#include <cstring>

namespace tessera::cli {
namespace {

constexpr double kMemoryBound = 32;  // FLOPs a byte
constexpr size_t kColdBytes = size_t{1} << 30;

const baselines::Buffer* buffer_of(const baselines::OperandSet& operands, const void* pointer) {
  for (const baselines::Buffer& buffer : operands.buffers)
    if (pointer >= buffer.data() && pointer < buffer.data() + buffer.bytes()) return &buffer;
  return nullptr;
}

}  // namespace

ColdCaches::ColdCaches(const baselines::OperandSet& operands, const core::Work& work) : sets_{operands.tensors} {
  const baselines::Buffer *k = buffer_of(operands, operands.tensors.k), *v = buffer_of(operands, operands.tensors.v);
  if (k == nullptr || v == nullptr || work.flops > kMemoryBound * work.bytes) return;
  const auto copy = [this](const baselines::Buffer& from, const void* pointer) {
    storage_.emplace_back(from.bytes(), false);
    std::memcpy(storage_.back().data(), from.data(), from.bytes());
    return storage_.back().data() + (static_cast<const std::byte*>(pointer) - from.data());
  };
  const size_t one = k->bytes() + v->bytes();
  for (size_t bytes = one; bytes < kColdBytes; bytes += one) {
    tessera_tensors set = operands.tensors;
    set.k = copy(*k, set.k);
    set.v = copy(*v, set.v);
    sets_.push_back(set);
  }
}

const tessera_tensors& ColdCaches::next() { return sets_[turn_++ % sets_.size()]; }

}  // namespace tessera::cli

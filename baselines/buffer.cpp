// Buffers with canaries, and the checks of what a call left around its outputs.
#include <algorithm>
#include <cstring>

#include "operands.hpp"

namespace tessera::baselines {
namespace {

// Differs from byte to byte, so that a shifted copy shows too.
std::byte canary(size_t index) { return static_cast<std::byte>(0xa5 ^ (index * 29)); }

}  // namespace

Buffer::Buffer(size_t bytes, size_t align, size_t offset)
    : storage_(new std::byte[bytes + 2 * kCanaryBytes + align + offset]), bytes_(bytes) {
  const auto address = reinterpret_cast<uintptr_t>(storage_.get()) + kCanaryBytes;
  const uintptr_t aligned = (address + align - 1) / align * align + offset;
  data_ = storage_.get() + (aligned - reinterpret_cast<uintptr_t>(storage_.get()));
  for (size_t i = 0; i < kCanaryBytes; ++i) {
    data_[static_cast<ptrdiff_t>(i) - static_cast<ptrdiff_t>(kCanaryBytes)] = canary(i);
    data_[bytes_ + i] = canary(i);
  }
}

bool Buffer::canaries_intact() const {
  if (data_ == nullptr) return true;
  for (size_t i = 0; i < kCanaryBytes; ++i) {
    if (data_[static_cast<ptrdiff_t>(i) - static_cast<ptrdiff_t>(kCanaryBytes)] != canary(i)) return false;
    if (data_[bytes_ + i] != canary(i)) return false;
  }
  return true;
}

void OperandSet::poison_outputs() const {
  for (const size_t index : outputs) std::memset(buffers[index].data(), 0xff, buffers[index].bytes());
}

bool OperandSet::canaries_intact() const {
  return std::all_of(buffers.begin(), buffers.end(), [](const Buffer& buffer) { return buffer.canaries_intact(); });
}

bool OperandSet::gaps_intact(const core::Problem& checked) const {
  for (const OutputView& view : output_views(checked, tensors)) {
    const auto owner =
        std::find_if(buffers.begin(), buffers.end(), [&](const Buffer& buffer) { return buffer.data() == view.data; });
    if (owner == buffers.end()) continue;
    std::vector<bool> owned(owner->bytes(), false);
    const int64_t width = core::dtype_bytes(view.dtype);
    for (int64_t row = 0; row < view.rows(); ++row) {
      for (int64_t c = 0; c < view.extent[3]; ++c) {
        const int64_t first = (view.row_offset(row) + c * view.stride[3]) * width;
        std::fill_n(owned.begin() + first, width, true);
      }
    }
    for (size_t i = 0; i < owner->bytes(); ++i) {
      if (!owned[i] && owner->data()[i] != std::byte{0xff}) return false;
    }
  }
  return true;
}

void OperandSet::add_to(Mirror* mirror) const {
  for (const Buffer& buffer : buffers) {
    if (buffer.data() != nullptr)
      mirror->add(buffer.data() - Buffer::kCanaryBytes, buffer.bytes() + 2 * Buffer::kCanaryBytes);
  }
}

}  // namespace tessera::baselines

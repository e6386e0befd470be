// A tensor of a file: element type by its .safetensors name, shape and bytes. Invariant of a TensorView that a reader
// returns: bytes == element size * product of shape, computed without overflow, and data covers them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::cli {

struct TensorView {
  std::string name;   // empty in .npy
  std::string dtype;  // "F32"
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  size_t bytes = 0;
};

// Owned bytes whose address is a multiple of 256 (what a workspace needs), zero-filled on request.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  AlignedBytes(size_t bytes, bool zero) : bytes_(bytes) {
    const size_t rounded = (bytes / kAlign + 1) * kAlign;
    if (rounded < bytes) throw std::bad_alloc();
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlign, rounded)));
    if (!data_) throw std::bad_alloc();
    if (zero) std::fill_n(data_.get(), bytes, std::byte{0});
  }
  std::byte* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  static constexpr size_t kAlign = 256;
  std::unique_ptr<std::byte[], Free> data_;
  size_t bytes_ = 0;
};

// Bytes of one element of a .safetensors dtype name, 0 for a name that the format does not have.
size_t element_bytes(std::string_view dtype);
// The TESSERA_* dtype of a name, 0 where attention has none ("I64").
int32_t tessera_dtype(std::string_view dtype);
// The name of a TESSERA_* dtype.
std::string_view tensor_dtype(int32_t dtype);
// Product of `shape` times `element`; false on overflow past int64 or a negative extent.
bool checked_bytes(const std::vector<int64_t>& shape, size_t element, size_t* bytes);
// "[1, 64, 9, 64]".
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace tessera::cli

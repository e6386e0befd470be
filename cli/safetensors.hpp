// The .safetensors format: 8 bytes of header length (little endian), a JSON header, then the tensors back to back.
// Source: the format section of the safetensors README. A file passes only when its tensors tile the data section
// exactly: no overlap, no hole, nothing out of range, no name twice, no size that disagrees with dtype and shape.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/tensor.hpp"

namespace tessera::cli {

// Every tensor of `file`, by rising offset; the views point into its bytes. `__metadata__` is checked and left out.
// Throws Failure (bad input) with one line that begins with `label`.
std::vector<TensorView> read_safetensors(std::span<const std::byte> file, std::string_view label);

// Bytes of the whole file that begins with `begin`; nullopt as long as its header is not complete. Throws as
// read_safetensors.
std::optional<size_t> safetensors_size(std::span<const std::byte> begin, std::string_view label);

// Length and JSON header for `tensors` in this order (name, dtype, shape, bytes); a multiple of 64 bytes long, so the
// data of a file that is read to an aligned address are aligned too.
std::string safetensors_header(const std::vector<TensorView>& tensors);

}  // namespace tessera::cli

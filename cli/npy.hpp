// NumPy's .npy format, versions 1 to 3, for f2, f4 and f8 in C order. Source: numpy.lib.format. Every byte of the
// header is checked before a size is believed; the file must end where the header says that the data end.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/tensor.hpp"

namespace tessera::cli {

// The array in `file`, whose bytes the view points into. Throws Failure (bad input) with one line that begins with
// `label`.
TensorView read_npy(std::span<const std::byte> file, std::string_view label);

// Bytes of the whole file that begins with `begin`; nullopt as long as its header is not complete. Throws as read_npy.
std::optional<size_t> npy_size(std::span<const std::byte> begin, std::string_view label);

// Magic, version 1.0 and header for an array of dtype F16, F32 or F64; a multiple of 64 bytes long.
std::string npy_header(std::string_view dtype, const std::vector<int64_t>& shape);

}  // namespace tessera::cli

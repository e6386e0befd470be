// The element types of .safetensors and their sizes; shapes.
#include "cli/tensor.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/tessera.h"

namespace tessera::cli {
namespace {

struct Dtype {
  std::string_view name;
  size_t bytes;
  int32_t tessera;
};
constexpr Dtype kDtypes[] = {{"F64", 8, TESSERA_F64},
                             {"F32", 4, TESSERA_F32},
                             {"F16", 2, TESSERA_F16},
                             {"BF16", 2, TESSERA_BF16},
                             {"I8", 1, TESSERA_INT8},
                             {"F8_E4M3", 1, TESSERA_E4M3},
                             {"U8", 1, TESSERA_U8},
                             {"BOOL", 1, TESSERA_U8},
                             {"I32", 4, 0},
                             {"F8_E5M2", 1, 0},
                             {"I16", 2, 0},
                             {"U16", 2, 0},
                             {"U32", 4, 0},
                             {"I64", 8, 0},
                             {"U64", 8, 0}};

}  // namespace

size_t element_bytes(std::string_view dtype) {
  for (const Dtype& entry : kDtypes)
    if (entry.name == dtype) return entry.bytes;
  return 0;
}

int32_t tessera_dtype(std::string_view dtype) {
  for (const Dtype& entry : kDtypes)
    if (entry.name == dtype) return entry.tessera;
  return 0;
}

std::string_view tensor_dtype(int32_t dtype) {
  for (const Dtype& entry : kDtypes)
    if (entry.tessera == dtype) return entry.name;
  return "?";
}

bool checked_bytes(const std::vector<int64_t>& shape, size_t element, size_t* bytes) {
  *bytes = 0;
  if (std::any_of(shape.begin(), shape.end(), [](int64_t extent) { return extent < 0; })) return false;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return true;  // whatever the other extents are
  int64_t product = static_cast<int64_t>(element);
  for (const int64_t extent : shape)
    if (__builtin_mul_overflow(product, extent, &product)) return false;
  *bytes = static_cast<size_t>(product);
  return true;
}

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace tessera::cli

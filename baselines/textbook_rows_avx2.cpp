#include "textbook_rows.inl"

namespace tessera::baselines {

template <>
const RowFunctions<float>& row_functions<core::Isa::avx2, float>() {
  return kFunctionsF32;
}

template <>
const RowFunctions<double>& row_functions<core::Isa::avx2, double>() {
  return kFunctionsF64;
}

}  // namespace tessera::baselines

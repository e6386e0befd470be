#include "textbook_rows.inl"

namespace tessera::baselines {

template <>
const RowFunctions<float>& row_functions<core::Isa::portable, float>() {
  return kFunctionsF32;
}

template <>
const RowFunctions<double>& row_functions<core::Isa::portable, double>() {
  return kFunctionsF64;
}

}  // namespace tessera::baselines

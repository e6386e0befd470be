// Names of the 16-bit types as template arguments of the matrix instructions.
#pragma once

namespace tessera::cuda::ptx {

enum class HalfType { f16, bf16 };

}  // namespace tessera::cuda::ptx

// The backward kernel with the AMX instructions and AVX-512 vectors. Compiled with those flags: everything here lives
// in its own namespace.
#define TESSERA_CPU_ISA amx_native_backward
#include "cpu/vec_avx512.hpp"

#include "cpu/amx/backward_build.hpp"

namespace tessera::cpu {
const BackwardKernel kBackwardAmx = amx_native_backward::kTileBackward<amx::NativeTiles>;
}  // namespace tessera::cpu

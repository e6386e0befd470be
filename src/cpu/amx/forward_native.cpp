// The tile kernel with the AMX instructions and AVX-512 vectors. Compiled with those flags: everything here lives in
// its own namespace.
#define TESSERA_CPU_ISA amx_native
#include "cpu/vec_avx512.hpp"

#include "cpu/amx/build.hpp"

namespace tessera::cpu::amx {
const Kernel kNative = amx_native::kKernel<NativeTiles>;
}  // namespace tessera::cpu::amx

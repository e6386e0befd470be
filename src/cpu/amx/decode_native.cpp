// The decode kernel with the AMX instructions and AVX-512 vectors. Compiled with those flags: everything here lives in
// its own namespace.
#define TESSERA_CPU_ISA amx_native_decode
#include "cpu/vec_avx512.hpp"

#include "cpu/amx/decode_build.hpp"

namespace tessera::cpu {
const DecodeKernel kDecodeAmx = amx_native_decode::kTileDecode<amx::NativeTiles>;
}  // namespace tessera::cpu

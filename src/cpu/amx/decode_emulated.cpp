// The decode kernel with emulated tiles and portable vectors: the same loops on any machine.
#define TESSERA_CPU_ISA amx_emulated_decode
#include "cpu/vec_portable.hpp"

#include "cpu/amx/decode_build.hpp"

namespace tessera::cpu {
const DecodeKernel kDecodeAmxEmulated = amx_emulated_decode::kTileDecode<amx::EmulatedTiles>;
}  // namespace tessera::cpu

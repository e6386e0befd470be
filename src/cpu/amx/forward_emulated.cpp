// The tile kernel with emulated tiles and portable vectors: the same packing, masks and loops on any machine.
#define TESSERA_CPU_ISA amx_emulated
#include "cpu/vec_portable.hpp"

#include "cpu/amx/build.hpp"

namespace tessera::cpu::amx {
const Kernel kEmulated = amx_emulated::kKernel<EmulatedTiles>;
}  // namespace tessera::cpu::amx

// The backward kernel with emulated tiles and portable vectors: the same packing, masks and loops on any machine.
#define TESSERA_CPU_ISA amx_emulated_backward
#include "cpu/vec_portable.hpp"

#include "cpu/amx/backward_build.hpp"

namespace tessera::cpu {
const BackwardKernel kBackwardAmxEmulated = amx_emulated_backward::kTileBackward<amx::EmulatedTiles>;
}  // namespace tessera::cpu

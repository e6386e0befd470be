// The probe's loop for the matrix tiles: products alone, operands in registers.
#include "cli/probe.hpp"

#if defined(__x86_64__)

#define TESSERA_CPU_ISA amx_probe
#include "cpu/amx/tiles.hpp"

namespace tessera::cli {

// Four independent accumulators cover the instruction's latency. 16 x 16 x 32 multiply-adds a product.
double probe_tiles_bf16(int64_t iterations) {
  using Tiles = cpu::amx::NativeTiles;
  alignas(64) static constexpr unsigned char kZeros[cpu::amx::kTileBytes] = {};
  Tiles tiles;
  Tiles::begin();
  tiles.zero<0>();
  tiles.zero<1>();
  tiles.zero<2>();
  tiles.zero<3>();
  tiles.load<4>(kZeros, 64);
  tiles.load<5>(kZeros, 64);
  tiles.load<6>(kZeros, 64);
  tiles.load<7>(kZeros, 64);
  for (int64_t i = 0; i < iterations; ++i) {
    tiles.dp_bf16<0, 4, 6>();
    tiles.dp_bf16<1, 4, 7>();
    tiles.dp_bf16<2, 5, 6>();
    tiles.dp_bf16<3, 5, 7>();
  }
  Tiles::end();
  return 4.0 * 2 * 16 * 16 * 32 * static_cast<double>(iterations);
}

}  // namespace tessera::cli

#endif

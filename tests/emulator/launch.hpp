// A launch as the emulator runs it, and the settings of the environment that it runs under.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>

namespace tessera::emulator {

struct Launch {
  dim3 grid, block;
  size_t shared_bytes = 0;
  std::function<void()> kernel;  // what one thread does
};

// Runs all blocks to their end. Blocks follow one another on TESSERA_EMULATED_SMS host threads (default 1), in an order
// that the seed chooses. The n-th launch of a process takes seed TESSERA_EMULATED_SEED + n (default 1 + n).
void run(const Launch& launch);

// TESSERA_EMULATED_SMS.
uint64_t multiprocessors();
// The most shared memory of a block: TESSERA_EMULATED_SHARED_KB, default 163 as an 8.0 has it, 227 for a 9.0; an 8.6 or
// 12.0 has 99.
size_t most_shared_bytes();

// For tests of launches that overlap: what the one before does last. It is done once, when a thread first waits for it.
void set_launch_before(std::function<void()> last);
void end_launch_before();

// The seed of the next launch of this process, for tests that go over orders.
void set_seed(uint64_t seed);

}  // namespace tessera::emulator

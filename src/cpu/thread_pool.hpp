// The default executor: a small pool of std::threads, made on first use, shared by concurrent runs, remade in a forked
// child. Tasks never wait for one another, so a pool with fewer threads than tasks only serialises them.
#pragma once

#include <cstdint>

#include "tessera/tessera.h"

namespace tessera::cpu {

// The executor a run uses when the caller brings none. Its `threads` is the CPU count of the affinity mask.
const tessera_executor& default_executor();

// Runs body(task) for task in [0, count) on `executor`; count 1 runs inline.
template <class Body>
void parallel_tasks(const tessera_executor& executor, int64_t count, Body& body) {
  if (count <= 1) {
    if (count == 1) body(int64_t{0});
    return;
  }
  executor.parallel(
      executor.context, count, [](void* arg, int64_t task) { (*static_cast<Body*>(arg))(task); }, &body);
}

}  // namespace tessera::cpu

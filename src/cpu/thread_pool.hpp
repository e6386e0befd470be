// The default executor: a small pool of std::threads, made on first use, shared by concurrent runs, remade in a forked
// child. Tasks never wait for one another, so a pool with fewer threads than tasks only serialises them.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "tessera/tessera.h"

namespace tessera::cpu {

// CPUs that this process may run on (its affinity mask), at least 1.
int32_t affinity_cpus();

// The executor a run uses when the caller brings none. Its `threads` is affinity_cpus() at first use.
const tessera_executor& default_executor();

// Round to nearest, no flushing of subnormals, whatever the calling thread has set; restores its mode. Without it a
// result would depend on who calls and on who started the pool.
class FloatMode {
 public:
#if defined(__x86_64__)
  FloatMode() : saved_(_mm_getcsr()) {
    if (saved_ != kDefault) _mm_setcsr(kDefault);
  }
  ~FloatMode() {
    if (saved_ != kDefault) _mm_setcsr(saved_);
  }

 private:
  static constexpr unsigned kDefault = 0x1f80;  // MXCSR at process start: all exceptions masked
  unsigned saved_;
#elif defined(__aarch64__)
  FloatMode() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
  }
  ~FloatMode() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }

 private:
  uint64_t saved_;
#else
  FloatMode() {}
#endif

 public:
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;
};

// Runs body(task) for task in [0, count) on `executor`, each under FloatMode; count 1 runs inline.
template <class Body>
void parallel_tasks(const tessera_executor& executor, int64_t count, const Body& body) {
  if (count <= 1) {
    const FloatMode mode;
    if (count == 1) body(int64_t{0});
    return;
  }
  executor.parallel(
      executor.context, count,
      [](void* arg, int64_t task) {
        const FloatMode mode;
        (*static_cast<const Body*>(arg))(task);
      },
      const_cast<Body*>(&body));
}

}  // namespace tessera::cpu

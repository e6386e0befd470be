// Floating-point control of one task: the default mode (nearest even, no flushing of subnormals, no traps) while it
// lives, the caller's mode after, so that results do not depend on the caller's settings.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tessera::cpu {

class DefaultFloatMode {
 public:
#if defined(__x86_64__)
  DefaultFloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
  ~DefaultFloatMode() { _mm_setcsr(saved_); }
#elif defined(__aarch64__)
  DefaultFloatMode() : saved_(__builtin_aarch64_get_fpcr()) { __builtin_aarch64_set_fpcr(0); }
  ~DefaultFloatMode() { __builtin_aarch64_set_fpcr(saved_); }
#else
  DefaultFloatMode() = default;
#endif
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
#if defined(__x86_64__) || defined(__aarch64__)
  unsigned int saved_;
#endif
};

}  // namespace tessera::cpu

// What this machine can do at most, measured in the process that measures kernels: multiply-adds a second of the vector
// unit at an instruction set, and bytes a second read from memory. A share of these is honest; a share of a data sheet
// is not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/tensor.hpp"
#include "tessera/tessera.h"

namespace tessera::cli {

// The loops of one instruction set (probe_portable.cpp, probe_avx2.cpp, probe_avx512.cpp).
struct ProbeLoops {
  const char* name;
  double (*fma_f32)(int64_t iterations);  // returns the FLOPs done
  double (*fma_f64)(int64_t iterations);
  int64_t (*read)(const void* data, size_t bytes);  // a checksum, so that nothing is left out
};
extern const ProbeLoops kProbePortable;
#if defined(__x86_64__)
extern const ProbeLoops kProbeAvx2, kProbeAvx512;
double probe_tiles_bf16(int64_t iterations);  // as fma_f32, on AMX tiles
#endif

// The loops of the machine's highest instruction set below the cap (TESSERA_ISA_*; 0: none).
const ProbeLoops& probe_loops(int32_t isa_cap);

// The median of samples taken between the runs of kernels, which thus meet the same clock and the same neighbours, on
// `threads` threads at once: multiply-adds of the unit that a kernel for the problem's type can use under its cap, that
// is the tiles for 16-bit types and f32 (a sixth of it, in six products) where the machine has them, else the vector
// unit.
class FmaProbe {
 public:
  FmaProbe(const tessera_problem& problem, int threads);
  void sample();  // about 5 ms
  double flops_per_second() const;
  std::string text() const;                   // "139 GFLOP/s (avx2, 2 threads)"
  const char* unit() const { return unit_; }  // "FMA" or "AMX"

 private:
  double (*loop_)(int64_t iterations);
  const char *name_, *unit_ = "FMA";
  int threads_, products_ = 1;  // that one multiply-add takes
  int64_t iterations_ = 1024;
  std::vector<double> samples_;
};

// Bytes a second read by `threads` threads from a buffer of 1 GiB (a quarter of the memory where that is less), which
// no cache holds: the median of samples between the runs of kernels, each of another eighth of the buffer.
class ReadProbe {
 public:
  explicit ReadProbe(int threads);
  void sample();  // about 5 ms
  double bytes_per_second() const;
  int threads() const { return threads_; }
  void forget() { samples_.clear(); }  // before another problem

 private:
  int threads_;
  size_t share_;  // bytes that a thread reads a sample
  AlignedBytes buffer_;
  int64_t turn_ = 0;
  std::vector<double> samples_;
};

}  // namespace tessera::cli

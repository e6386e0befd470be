// Threads start together at a gate and the slowest one ends the sample, as it ends a kernel's run.
#include "cli/probe.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "cli/runner.hpp"
#include "cli/units.hpp"
#include "device_info.hpp"

namespace tessera::cli {
namespace {

constexpr double kSampleSeconds = 5e-3;
constexpr size_t kReadBytes = size_t{1} << 30;
constexpr size_t kReadPieces = 8;

// Seconds from the moment all threads stand ready until the last one is done.
template <class Body>
double timed_together(int threads, const Body& body) {
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> others;
  for (int t = 1; t < threads; ++t)
    others.emplace_back([&, t] {
      ready.fetch_add(1);
      while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
      body(t);
    });
  while (ready.load() != threads - 1) std::this_thread::yield();
  const double begin = now();
  go.store(true, std::memory_order_release);
  body(0);
  for (std::thread& other : others) other.join();
  return now() - begin;
}

}  // namespace

const ProbeLoops& probe_loops(int32_t isa_cap) {
#if defined(__x86_64__)
  int32_t level = static_cast<int32_t>(core::cpu_info().isa);
  if (isa_cap != TESSERA_ISA_AUTO) level = std::min(level, isa_cap);
  if (level >= TESSERA_ISA_AVX512 && level != TESSERA_ISA_NEON) return kProbeAvx512;
  if (level == TESSERA_ISA_AVX2) return kProbeAvx2;
#else
  (void)isa_cap;
#endif
  return kProbePortable;
}

FmaProbe::FmaProbe(const tessera_problem& problem, int threads) : threads_(threads) {
  const ProbeLoops& loops = probe_loops(problem.isa);
  const int32_t dtype = problem.q.dtype;
  loop_ = dtype == TESSERA_F64 ? loops.fma_f64 : loops.fma_f32;
  name_ = loops.name;
#if defined(__x86_64__)
  const bool capped = problem.isa != TESSERA_ISA_AUTO && problem.isa < TESSERA_ISA_AMX;
  const bool in_parts = dtype == TESSERA_F32;
  if ((dtype == TESSERA_BF16 || dtype == TESSERA_F16 || in_parts) && core::cpu_info().has_amx_bf16 && !capped) {
    loop_ = probe_tiles_bf16;
    products_ = in_parts ? 6 : 1;
    name_ = in_parts ? "amx-bf16 in six products" : "amx-bf16";
    unit_ = "AMX";
  }
#endif
}

void FmaProbe::sample() {
  for (;;) {
    std::vector<double> flops(static_cast<size_t>(threads_));
    const double seconds = timed_together(threads_, [&](int t) { flops[static_cast<size_t>(t)] = loop_(iterations_); });
    double total = 0;
    for (const double f : flops) total += f;
    // A short sample measures the gate, not the unit: grow until it lasts, then count it.
    if (seconds < kSampleSeconds) {
      iterations_ *= 2;
      continue;
    }
    samples_.push_back(total / seconds / products_);
    return;
  }
}

double FmaProbe::flops_per_second() const { return samples_.empty() ? 0 : median(samples_); }

std::string FmaProbe::text() const {
  return rate_text(flops_per_second()) + " (" + name_ + ", " + std::to_string(threads_) +
         (threads_ == 1 ? " thread)" : " threads)");
}

ReadProbe::ReadProbe(int threads) : threads_(threads) {
  const size_t memory = static_cast<size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  constexpr size_t kGrain = 4096;
  const size_t pieces = kReadPieces * static_cast<size_t>(threads);
  share_ = std::max(std::min(kReadBytes, memory / 4) / pieces / kGrain, size_t{1}) * kGrain;
  buffer_ = AlignedBytes(share_ * pieces, false);
  timed_together(threads, [&](int t) {
    std::memset(buffer_.data() + static_cast<size_t>(t) * kReadPieces * share_, 1, kReadPieces * share_);
  });
}

void ReadProbe::sample() {
  const ProbeLoops& loops = probe_loops(TESSERA_ISA_AUTO);
  const std::byte* const piece = buffer_.data() + static_cast<size_t>(turn_++) % kReadPieces * share_;
  std::atomic<int64_t> checksum{0};
  const double seconds = timed_together(threads_, [&](int t) {
    const int64_t sum = loops.read(piece + static_cast<size_t>(t) * kReadPieces * share_, share_);
    checksum.fetch_add(sum, std::memory_order_relaxed);
  });
  samples_.push_back(static_cast<double>(share_) * threads_ / seconds);
}

double ReadProbe::bytes_per_second() const { return samples_.empty() ? 0 : median(samples_); }

}  // namespace tessera::cli

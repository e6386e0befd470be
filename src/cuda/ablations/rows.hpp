// Ablations: rows that a pin alone chooses, each a kernel of ours with one step taken back. Only in a build with
// TESSERA_ABLATIONS, and in the emulator's tests.
#pragma once

#include "../sm80/launch.hpp"
#include "../sm90/launch.hpp"
#include "kernel_entry.hpp"

namespace tessera::cuda {

// All of them.
core::KernelList ablations();

// What no ablation takes: they are there for bf16, head dim 64 or 128, dense, full and causal.
core::Refusal refuse_ablation(const core::Problem& p);

namespace sm90 {
struct AblatedBuckets {
  Bucket d64, d128;
};
extern const AblatedBuckets kNoTurns, kNoOverlap, kNoTurnsNoOverlap, kOtherRescale, kNoProducer;
inline constexpr size_t kAblations = 6;
extern const core::KernelEntry kAblatedForward[kAblations];
}  // namespace sm90

namespace sm80 {
struct AblatedInstances {
  ForwardInstance d64, d128;
};
extern const AblatedInstances kWholeHead, kNormalised, kKeyWarps;
inline constexpr size_t kAblations = 3;
extern const core::KernelEntry kAblatedForward[kAblations];
}  // namespace sm80

}  // namespace tessera::cuda

// How a forward of Hopper is cut into pieces of work, and its launch: what the 16-bit and the e4m3 kernel's planning
// share.
#pragma once

#include "kernel_entry.hpp"
#include "launch.hpp"

namespace tessera::cuda::sm90 {

struct Cut {
  const Instance* instance;
  int32_t pack;     // query heads that share a tile
  int32_t workers;  // blocks at most
  int64_t rows;     // queries a tile
  int64_t tiles;    // query tiles a head of packs
  int64_t heads;    // batch * heads_q / pack
  int32_t splits;   // of the keys
  int64_t items() const { return tiles * heads * splits; }
  // Tickets pay where blocks take several pieces of different weight.
  bool takes_tickets() const { return items() > workers; }
};

// One split so far; keys are split below.
Cut start_cut(const core::Problem& p, const core::DeviceInfo& device, const Instance& instance);
// The cut of a forward whose instances are `bucket`'s, with its splits.
Cut choose_cut(const core::Problem& p, const core::DeviceInfo& device, const Bucket& bucket);
// Splits the keys as asked, or where query tiles leave multiprocessors idle, as far as the estimate falls.
void split_keys(const core::Problem& p, const core::DeviceInfo& device, Cut* c);
double estimate_seconds(const core::Problem& p, const core::DeviceInfo& device, const Cut& c);

// The architecture, sizes, layouts and strides that neither kernel takes on this device.
core::Refusal refuse_launch(const core::Problem& p, const core::DeviceInfo& device, const Instance& instance);
// A launch but for the words about its instructions.
core::Launch configure_cut(const core::Problem& p, const core::DeviceInfo& device, const Cut& c);
// `params`: the run's, but for what the cut fills in.
int run_cut(const core::Plan& plan, const core::RunContext& context, const Cut& c, Params* params);
int prepare_cut(const core::Plan& plan, const Cut& c, tessera_status* status);

}  // namespace tessera::cuda::sm90

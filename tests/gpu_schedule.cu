// Who does what in a launch of the Hopper forward: the scheduler warp as it is, beside a warp that plays producer and
// consumers and writes down which pieces of work it was shown. Every piece must come once, whatever the workspace held
// before, and in every replay of a launch, though the lengths on the device have changed since.
#include <cuda/ptx>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/sm90/forward.cuh"
#include "gpu_encodings.hpp"

namespace tessera::tests {
namespace {

using cuda::sm90::Control;
using cuda::sm90::Params;
using cuda::sm90::Ring;
using cuda::sm90::Tickets;
using cuda::sm90::TileView;
using Config = cuda::sm90::ForwardConfig<128, 128>::Plain;

constexpr int kBlocks = 132;

// seen[row of q in memory][head][split]: how often the tile that begins there was shown.
__global__ void __launch_bounds__(64) walk(const __grid_constant__ Params p, uint32_t* seen) {
  __shared__ Control<Config> control;
  if (threadIdx.x == 0) control.init();
  __syncthreads();
  if (threadIdx.x < 32) {
    cuda::sm90::schedule_tiles<Config>(p, control);
  } else if (threadIdx.x == 32) {
    Ring<Control<Config>::kViews> views;
    uint32_t wants = 0;
    while (true) {
      cuda::sm90::wait(control.view_full[views.stage], views.phase);
      const TileView& view = control.views[views.stage];
      if (!view.valid) return;
      const auto& s = view.sequence;
      const int64_t row = s.q_batch * p.forward.seqlen_q + s.q_row + view.first_row;
      atomicAdd(&seen[(row * p.forward.heads_q + view.head) * p.forward.num_splits + view.split], 1);
      ::cuda::ptx::mbarrier_arrive(&control.view_wanted[wants]);
      wants ^= 1;
      for (int i = 0; i < 4 * Config::kGroups + 1; ++i) ::cuda::ptx::mbarrier_arrive(&control.view_empty[views.stage]);
      views.advance();
    }
  }
}

// A launch with `heads` query heads in packs of `pack`, packed queries where `cu` is given.
struct Launch {
  Launch(uint32_t batches, int32_t heads, int32_t pack, int32_t splits, int32_t longest, const int32_t* cu)
      : tickets(1), params{} {
    const uint32_t rows = static_cast<uint32_t>(Config::kTileM / pack), packs = static_cast<uint32_t>(heads / pack);
    const uint32_t tiles = (static_cast<uint32_t>(longest) + rows - 1) / rows, work = batches * packs;
    const uint32_t group = std::max(1u, work / 3);
    cuda::ForwardParams& f = params.forward;
    f.cu_seqlens_q = cu;
    f.total_q = cu != nullptr ? int64_t{batches} * longest : 0;
    f.seqlen_q = longest;
    f.seqlen_k = 1000;
    f.left = f.right = -1;
    f.heads_q = heads;
    f.group = pack;
    f.num_splits = splits;
    f.batch_kv = static_cast<int32_t>(batches);
    f.schedule = {tiles, work, group};
    params.pack = pack;
    params.packs = static_cast<int32_t>(packs);
    params.by_packs = cuda::Divisor(packs);
    params.tile_rows = static_cast<int32_t>(rows);
    params.kv_box_rows = Config::kTileN;
    params.kv_bounded = true;
    params.run = 0x2000000000000000u;
    items = tiles * work * static_cast<uint32_t>(splits);
    if (items > kBlocks) params.tickets = tickets.data();
  }

  // Runs it and compares what was seen; begin[b] and rows[b] say where sequence b lies.
  void expect_every_piece_once(const std::vector<int64_t>& begin, const std::vector<int64_t>& rows) const {
    const int64_t heads = params.forward.heads_q, splits = params.forward.num_splits;
    const int64_t all =
        std::max<int64_t>(params.forward.total_q, int64_t{params.forward.seqlen_q} * params.forward.batch_kv);
    std::vector<uint32_t> expected(static_cast<size_t>(all * heads * splits), 0);
    for (size_t b = 0; b < rows.size(); ++b) {
      for (int64_t row = 0; row < rows[b]; row += Config::kTileM / params.pack) {
        for (int64_t head = 0; head < heads; head += params.pack) {
          for (int64_t split = 0; split < splits; ++split) {
            expected[static_cast<size_t>(((begin[b] + row) * heads + head) * splits + split)] = 1;
          }
        }
      }
    }
    for (const uint32_t ahead : {0u, 1u}) {
      SCOPED_TRACE("ahead " + std::to_string(ahead));
      Params asked = params;
      asked.ahead = ahead;
      const Managed<uint32_t> seen(expected.size());
      std::fill_n(seen.data(), seen.size(), 0u);
      ASSERT_NO_FATAL_FAILURE(tests::launch(walk, std::min<uint32_t>(items, kBlocks), 64, 0, asked, seen.data()));
      Differences differences;
      for (size_t i = 0; i < expected.size(); ++i) {
        differences.compare(seen[i], expected[i], static_cast<int64_t>(i) / (heads * splits),
                            static_cast<int64_t>(i) % (heads * splits));
      }
      if (params.tickets != nullptr) {
        EXPECT_EQ(tickets[0].run, 0u) << "a replay would not start anew";
      }
    }
  }

  Managed<Tickets> tickets;
  Params params;
  uint32_t items;
};

void expect_dense(uint32_t batches, int32_t heads, int32_t pack, int32_t splits, int32_t seqlen_q) {
  SCOPED_TRACE("b" + std::to_string(batches) + " heads " + std::to_string(heads) + " pack " + std::to_string(pack) +
               " splits " + std::to_string(splits) + " rows " + std::to_string(seqlen_q));
  const Launch launch(batches, heads, pack, splits, seqlen_q, nullptr);
  std::vector<int64_t> begin, rows;
  for (int64_t b = 0; b < batches; ++b) {
    begin.push_back(b * seqlen_q);
    rows.push_back(seqlen_q);
  }
  for (int replay = 0; replay < 3; ++replay) launch.expect_every_piece_once(begin, rows);
}

TEST(GpuSchedule, DensePiecesComeOnce) {
  TESSERA_NEEDS_HOPPER();
  expect_dense(1, 1, 1, 1, 1);
  expect_dense(4, 33, 1, 1, 100);  // as many pieces as blocks
  expect_dense(7, 19, 1, 1, 100);  // one more
  expect_dense(5, 8, 1, 1, 3000);
  expect_dense(5, 8, 4, 1, 1000);  // heads that share tiles
  expect_dense(3, 8, 8, 4, 200);
  expect_dense(2, 6, 1, 32, 500);
}

class PackedLengths {
 public:
  explicit PackedLengths(size_t batches) : cu(batches + 1) {}
  // Sequence b has length(b) rows.
  template <class Length>
  void set(Length length) {
    begin.clear();
    rows.clear();
    cu[0] = 0;
    for (size_t b = 0; b + 1 < cu.size(); ++b) {
      begin.push_back(cu[b]);
      rows.push_back(length(static_cast<int32_t>(b)));
      cu[b + 1] = static_cast<int32_t>(begin[b] + rows[b]);
    }
  }
  Managed<int32_t> cu;
  std::vector<int64_t> begin, rows;
};

TEST(GpuSchedule, PackedPiecesComeOnce) {
  TESSERA_NEEDS_HOPPER();
  for (const uint32_t batches : {1u, 2u, 31u, 32u, 33u, 100u}) {
    for (const int32_t pack : {1, 4}) {
      for (const int32_t splits : {1, 3}) {
        SCOPED_TRACE("b" + std::to_string(batches) + " pack " + std::to_string(pack) + " splits " +
                     std::to_string(splits));
        PackedLengths lengths(batches);
        const Launch launch(batches, 8, pack, splits, 700, lengths.cu.data());
        lengths.set([](int32_t b) { return b % 5 == 1 ? 0 : (b * 211 + 700) % 701; });
        launch.expect_every_piece_once(lengths.begin, lengths.rows);
      }
    }
  }
}

// The launch is made for the longest lengths that there may be; most blocks of a shorter replay find nothing to do.
TEST(GpuSchedule, ReplaysServeOtherLengths) {
  TESSERA_NEEDS_HOPPER();
  constexpr uint32_t kBatches = 40;
  PackedLengths lengths(kBatches);
  const Launch launch(kBatches, 8, 1, 1, 1000, lengths.cu.data());
  for (int replay = 0; replay < 10; ++replay) {
    SCOPED_TRACE(replay);
    lengths.set([&](int32_t b) { return b % 10 == replay ? 130 : 0; });
    launch.expect_every_piece_once(lengths.begin, lengths.rows);
    lengths.set([](int32_t) { return 0; });
    launch.expect_every_piece_once(lengths.begin, lengths.rows);
    lengths.set([&](int32_t b) { return 1000 - b - replay; });
    launch.expect_every_piece_once(lengths.begin, lengths.rows);
  }
}

// [step] = 2 stage + phase
template <int kStages>
__global__ void ring_steps(int steps, uint32_t* out) {
  cuda::sm90::Ring<kStages> ring;
  for (int i = 0; i < steps; ++i) {
    out[i] = 2 * ring.stage + ring.phase;
    ring.advance();
  }
}

// A stage's phase is the parity of how often it was taken before.
template <uint32_t kStages>
void check_ring() {
  const Managed<uint32_t> out(13);
  ASSERT_NO_FATAL_FAILURE(launch(ring_steps<kStages>, 1, 1, 0, 13, out.data()));
  for (uint32_t i = 0; i < 13; ++i) EXPECT_EQ(out[i], 2 * (i % kStages) + i / kStages % 2) << kStages << ", step " << i;
}

TEST(GpuSchedule, RingsTakeTheirStagesInTurn) {
  TESSERA_NEEDS_HOPPER();
  check_ring<1>();
  check_ring<2>();
  check_ring<3>();
}

}  // namespace
}  // namespace tessera::tests

// A consumer warpgroup: 64 rows of the query tile against all its key tiles. While the tensor cores multiply p_{j-1} by
// v_{j-1}, the warps turn s_j into p_j: both products of a step are in flight before the softmax begins.
// Warpgroups take turns at issuing them, so that one's softmax meets the others' products.
// Source: Shah et al., FlashAttention-3, sections 3.1 and 3.2.
#pragma once

#include "../ptx/wgmma.cuh"
#include "../tile/element.cuh"
#include "../tile/score.cuh"
#include "../tile/softmax.cuh"
#include "control.cuh"
#include "epilogue.cuh"
#include "issue_turns.cuh"
#include "mask.cuh"
#include "producer.cuh"

namespace tessera::cuda::sm90 {

template <class Element, class Config, ScoreKind kKind>
struct Consumer {
  static constexpr int kSpan = Config::kSpan, kSteps = kSpan / 32;  // products of 16 columns in a span
  // Whether a warpgroup leaves out key tiles of which none of its rows sees anything: where a tile has more rows than
  // keys. A warp that copies goes through all, and general scores need the registers.
  static constexpr bool kTrims = Config::kProduces && kKind == ScoreKind::plain && Config::kTileM > Config::kTileN;
  using Scores = float[1][Config::kTileN / 8][4];
  using Accumulators = float[1][Config::kDimV / 8][4];

  const Params& p;
  Control<Config>& control;
  uint32_t shared;            // address of the tiles
  int group;                  // of the consumers, counted from 0
  Producer<Config> producer;  // gives the tiles' place; idle but where a warp of ours is it (kProduces)
  Ring<Config::kStages> k, v;
  Ring<Config::kQueryStages> q;
  Ring<Control<Config>::kViews> views;

  // Whether this warp copies what the others multiply: K of a tile once the products before it are issued, V once its
  // softmax is done, when the stages that they fill have been left.
  __device__ __forceinline__ static bool copies() { return !Config::kProduces && uniform(threadIdx.x / 32) == 4; }

  // Issues scores = q k^T of the current stages.
  __device__ __forceinline__ void multiply_query_key(Scores& scores) const {
    const uint64_t a = ptx::matrix_descriptor<kSpan>(shared + q.stage * Config::kQueryBytes + group * 64 * kSpan, 16);
    const uint64_t b = ptx::matrix_descriptor<kSpan>(shared + Config::kKeyOffset + k.stage * Config::kKeyBytes, 16);
#pragma unroll
    for (int step = 0; step < Config::kDimQk / 16; ++step) {
      const int span = step / kSteps, inner = step % kSteps * 32;
      ptx::wgmma_shared<Element::kType, Config::kTileN>(scores[0], a + (span * Config::kTileM * kSpan + inner) / 16,
                                                        b + (span * Config::kTileN * kSpan + inner) / 16, step != 0);
    }
  }

  // Issues acc += p v of the current stage.
  __device__ __forceinline__ void multiply_probs_value(Accumulators& acc,
                                                       const uint32_t (&probs)[Config::kTileN / 16][4]) const {
    const uint64_t b = ptx::matrix_descriptor<kSpan>(shared + Config::kValueOffset + v.stage * Config::kValueBytes,
                                                     Config::kTileN * kSpan);
#pragma unroll
    for (int step = 0; step < Config::kTileN / 16; ++step) {
      ptx::wgmma_registers<Element::kType, Config::kDimV>(acc[0], probs[step], b + step * 16 * kSpan / 16, 1);
    }
  }

  // The accumulators' layout of two blocks of 8 keys is the operand's layout of 16.
  __device__ __forceinline__ static void pack_probs(const Scores& scores, uint32_t (&probs)[Config::kTileN / 16][4]) {
#pragma unroll
    for (int step = 0; step < Config::kTileN / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&pair)[4] = scores[0][2 * step + i / 2];
        probs[step][i] = Element::pack(pair[2 * (i % 2)], pair[2 * (i % 2) + 1]);
      }
    }
  }

  // Where the keys that a row of the tile keeps begin and end.
  __device__ __forceinline__ static int kept_begin(const RowView& view, int row) {
    const int begin = view.kept_begin + row;
    return begin > 0 ? begin : 0;
  }
  __device__ __forceinline__ static int kept_end(const RowView& view, int row) {
    const int behind = view.behind - row, end = view.keys - (behind > 0 ? behind : 0);
    return end > 0 ? end : 0;
  }

  // The rows of this lane, and the keys that each keeps.
  struct Rows {
    LaneRows<1> rows;
    int begin[2], end[2];
  };
  __device__ __forceinline__ Rows find_rows(const RowView& view) const {
    Rows found;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = first_row() + fragment_row(0, half);
      const auto row = static_cast<int>(p.by_pack.divide(r));
      found.rows.row[0][half] = view.first_row + row;
      found.begin[half] = kept_begin(view, row);
      found.end[half] = kept_end(view, row);
    }
    return found;
  }

  // How far this warpgroup's rows reach of a view's key tiles: they keep every key of the tiles from unmasked_begin to
  // unmasked_end, and none of tile `end` or later.
  struct Reach {
    int unmasked_begin, unmasked_end, end;
  };
  __device__ __forceinline__ Reach find_reach(const RowView& view, int begin, int end) const {
    if (!kTrims) {
      return {uniform(static_cast<int>(view.tiles.unmasked_begin)), uniform(static_cast<int>(view.tiles.unmasked_end)),
              end};
    }
    const auto first = static_cast<int>(p.by_pack.divide(group * 64));
    auto last = static_cast<int>(p.by_pack.divide(group * 64 + 63));
    if (last >= view.rows) last = view.rows - 1;
    int own_end = (kept_end(view, last) + Config::kTileN - 1) / Config::kTileN;
    if (own_end <= begin) own_end = begin + 1;  // multiplied before this is known
    int unmasked_begin = (kept_begin(view, last) + Config::kTileN - 1) / Config::kTileN;
    if (unmasked_begin > own_end) unmasked_begin = own_end;
    return {uniform(unmasked_begin), uniform(kept_end(view, first) / Config::kTileN), uniform(own_end)};
  }

  // How many of a view's first key tiles none of this warpgroup's rows sees.
  __device__ __forceinline__ int count_before(const RowView& view, int begin, int end) const {
    const auto first = static_cast<int>(p.by_pack.divide(group * 64));
    int own_begin = kept_begin(view, first) / Config::kTileN;
    if (own_begin >= end) own_begin = end - 1;
    return uniform(own_begin > begin ? own_begin - begin : 0);
  }

  template <bool kMasked>
  __device__ __forceinline__ void score_tile(Scores& scores, const RowView& view, const Rows& rows, int tile) const {
    const int key = tile * Config::kTileN;
    if constexpr (kKind == ScoreKind::general) general_scores<Element>(scores, p.forward, view, rows.rows, key);
    if constexpr (kMasked) {
      keep_columns(scores[0], 0, rows.begin[0] - key, rows.end[0] - key);
      keep_columns(scores[0], 1, rows.begin[1] - key, rows.end[1] - key);
    }
  }

  // All key tiles of the view, in order. On return acc holds the unnormalised rows.
  __device__ __forceinline__ FinishedRows run_tiles(const RowView& view, int begin, int end, Accumulators& acc) {
    Scores scores;
    uint32_t probs[Config::kTileN / 16][4];

    if (copies()) {
      producer.load_query(view);
      producer.load_key(view, begin);
    }
    issue_first<Config>(
        *this, [&]() __attribute__((always_inline)) { multiply_query_key(scores); });
    if (copies()) producer.load_key(view, begin + 1);
    // What a tile begins with, while the tensor cores are busy.
    const Reach reach = find_reach(view, begin, end);
    const Rows rows = find_rows(view);
    RowStatistics<1> statistics;
    statistics.clear();
    clear(acc);
    ptx::wgmma_wait<0>();
    ptx::pin(scores[0]);
    leave(control.k_empty, k);
    if (begin < reach.unmasked_begin || begin >= reach.unmasked_end) {
      score_tile<true>(scores, view, rows, begin);
    } else {
      score_tile<false>(scores, view, rows, begin);
    }
    SoftmaxStep<1> first = update_maxima<Config::kLazy>(scores, statistics, scale());
    exponentiate(scores, statistics, first, scale());
    if (copies()) producer.load_value(view, begin);
    pack_probs(scores, probs);

    const auto advance = [&]<bool kMasked>(int tile) __attribute__((always_inline)) {
      wait(control.k_full[k.stage], k.phase);
      wait_turn<Config>(group);
      ptx::wgmma_fence();
      multiply_query_key(scores);
      ptx::wgmma_commit();
      wait(control.v_full[v.stage], v.phase);
      multiply_probs_value(acc, probs);
      ptx::wgmma_commit();
      pass_turn<Config>(group);
      if (copies()) producer.load_key(view, tile + 1);
      ptx::wgmma_wait<Config::kOverlaps ? 1 : 0>();
      ptx::pin(scores[0]);
      leave(control.k_empty, k);
      score_tile<kMasked>(scores, view, rows, tile);
      SoftmaxStep<1> step = update_maxima<Config::kLazy>(scores, statistics, scale());
      rescale(statistics, step);
      exponentiate(scores, statistics, step, scale());
      ptx::wgmma_wait<0>();
      ptx::pin(acc[0]);
      leave(control.v_empty, v);
      if (copies()) producer.load_value(view, tile);
      pack_probs(scores, probs);
      // Where the bases of a whole warp stayed, every correction is exactly 1.
      if (!Config::kLazy || __any_sync(0xffffffffu, step.changed)) rescale(acc, step);
    };
    const int tile = for_each_tile(begin + 1, reach.unmasked_begin, reach.unmasked_end, reach.end, advance);
    leave(control.q_empty, q);

    wait(control.v_full[v.stage], v.phase);
    ptx::wgmma_fence();
    multiply_probs_value(acc, probs);
    ptx::wgmma_commit();
    // The others wait for our turn, not for what we multiply last.
    const bool rests = kTrims && tile < end;
    if (rests) skip_turn<Config>(group);
    __syncwarp();  // the products are issued before anything of what follows
    const FinishedRows finished = finish(view, statistics);
    ptx::wgmma_wait<0>();
    ptx::pin(acc[0]);
    leave(control.v_empty, v);
    if (rests) pass_tiles(end - tile);
    return finished;
  }

  // Tiles that the view has and none of our rows sees: they are the others'. The first one's turn has been passed.
  __device__ __forceinline__ void pass_tiles(int count) {
#pragma unroll 1
    while (true) {
      skip(control.k_full, control.k_empty, k);
      skip(control.v_full, control.v_empty, v);
      if (--count == 0) break;
      skip_turn<Config>(group);
    }
  }

  // A view with keys of whose queries none is ours.
  __device__ __forceinline__ void leave_tiles(int count) {
    skip(control.q_full, control.q_empty, q);
    skip_tiles(count);
  }
  __device__ __forceinline__ void skip_tiles(int count) {
    skip_turn<Config>(group);
    pass_tiles(count);
  }

  // Rows that see no key.
  __device__ __forceinline__ FinishedRows run_empty(const RowView& view, Accumulators& acc) {
    if (copies()) producer.want_view();
    RowStatistics<1> statistics;
    statistics.clear();
    clear(acc);
    return finish(view, statistics);
  }

  // What the rows need beside the accumulators; after it nobody reads the view.
  __device__ __forceinline__ FinishedRows finish(const RowView& view, const RowStatistics<1>& statistics) {
    const FinishedRows rows = finish_rows(p, view, first_row(), scale(), statistics);
    __syncwarp();  // the scheduler overwrites the view, which lanes that write lse alone may still read
    leave(control.view_empty, views);
    return rows;
  }

  __device__ __forceinline__ static void clear(Accumulators& acc) {
#pragma unroll
    for (int n = 0; n < Config::kDimV / 8; ++n) acc[0][n][0] = acc[0][n][1] = acc[0][n][2] = acc[0][n][3] = 0.0f;
  }

  // Of the scores as they come, to base 2.
  __device__ __forceinline__ float scale() const { return kKind == ScoreKind::plain ? p.forward.scale_log2 : 1.0f; }

  // Of this warp in the tile.
  __device__ __forceinline__ int first_row() const { return group * 64 + static_cast<int>(threadIdx.x / 32 % 4) * 16; }

  __device__ __forceinline__ void run() {
    open_turns<Config>(group);
    char* const output =
        producer.shared + Config::kOutputOffset + (group * 4 + threadIdx.x / 32 % 4) * Config::kWarpOutputBytes;
    while (true) {
      wait(control.view_full[views.stage], views.phase);
      const RowView& view = control.views[views.stage];
      // Read together: the first product waits for them.
      const int valid = view.valid, end = uniform(static_cast<int>(view.tiles.end)),
                queries = kTrims ? uniform(view.rows) : 0,
                unmasked_begin = kTrims ? uniform(static_cast<int>(view.tiles.unmasked_begin)) : 0;
      int begin = uniform(static_cast<int>(view.tiles.begin));
      if (!uniform(valid)) return;
      Accumulators acc;
      FinishedRows rows;
      if (begin < end && (!kTrims || group * 64 < queries * p.pack)) [[likely]] {
        if (kTrims && begin < unmasked_begin) {
          const int before = count_before(view, begin, end);
          if (before > 0) skip_tiles(before);
          begin += before;
        }
        rows = run_tiles(view, begin, end, acc);
      } else {
        if (kTrims && begin < end) leave_tiles(end - begin);
        rows = run_empty(view, acc);
      }
      store_finished_rows<Element, kSpan>(p.forward, rows, acc[0], output);
    }
  }
};

}  // namespace tessera::cuda::sm90

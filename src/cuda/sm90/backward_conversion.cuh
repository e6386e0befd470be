// dq of heads that are done, out of their sums, by the main kernel itself, in wide blocks: two warps that have nothing
// else to do convert while others compute. To postprocess is left what they did not come to, mostly the last heads.
// A block counts its key tile as done when that has added to dq. Till then it converts units of the head that comes
// heads_ahead before its own, if all tiles of that are done. Units are claimed one after another, by whole warps, none
// shortly before the tile's end, which would keep the multiprocessor from the next block.
#pragma once

#include "../ptx/atomic.cuh"
#include "../ptx/mma.cuh"
#include "../tile/dq_sums.cuh"
#include "../tile/element.cuh"
#include "../tile/layout.cuh"
#include "backward_control.cuh"

namespace tessera::cuda::sm90 {

template <class Element, class Config>
struct BackwardConversion {
  static constexpr int kUnitRows = kConversionRows<Config::kDim>;

  const BackwardParams& p;
  BackwardControl<Config>& control;

  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x % 32); }

  // Four fragments of 16 columns x 8 rows, whose lanes hold two rows each of two columns, to rows: by 8 x 8 matrices.
  __device__ __forceinline__ void store(const float (&sums)[4][4], char* to, int chunks) const {
#pragma unroll
    for (int f = 0; f < 4; ++f) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto scaled = [this](float sum) { return fmaf(sum, p.f.scale, 0.0f); };
        const uint32_t word = ptx::transpose(Element::pack(scaled(sums[f][2 * half]), scaled(sums[f][2 * half + 1])));
        if (2 * f + half < chunks) *reinterpret_cast<uint32_t*>(to + (2 * f + half) * 16) = word;
      }
    }
  }

  // 8 rows of one query head, `row` being this lane's. Sixteen of a thread's 24 registers hold what is under way.
  __device__ __forceinline__ void convert_rows(int64_t batch, int head, int first) const {
    const float* sums =
        p.dq_sum + lane() * 4 +
        dq_transposed_fragment(p.scratch_rows, head, batch * p.row_tiles * kRowTile + first, 0, Config::kDim);
    const int row = first + lane() / 4;
    char* to = static_cast<char*>(p.dq) + lane() % 4 * 4 +
               2 * (batch * p.dq_stride.batch + head * p.dq_stride.head + row * p.dq_stride.row);
    const bool exists = row < p.f.seqlen_q;
#pragma unroll 1
    for (int chunks = p.f.head_dim_qk / 8; chunks > 0; chunks -= 8) {
      float four[4][4];
#pragma unroll
      for (int f = 0; f < 4; ++f) load_four(four[f], sums + f * 128);
      store(four, to, exists ? chunks : 0);
      sums += 512;
      to += 128;
    }
  }
  // A unit of the query heads of a group.
  __device__ __forceinline__ void convert(uint32_t head_batch, uint32_t unit) const {
    const uint32_t units = static_cast<uint32_t>(p.row_tiles) * (kRowTile / kUnitRows);
    const uint32_t batch = head_batch / p.heads_kv, head = head_batch % p.heads_kv * p.f.group + unit / units;
#pragma unroll 1
    for (uint32_t row = unit % units * kUnitRows, end = row + kUnitRows; row < end; row += 8)
      convert_rows(batch, static_cast<int>(head), static_cast<int>(row));
  }

  __device__ __forceinline__ bool is_done(uint32_t head_batch) const {
    const int32_t count = lane() == 0 ? ptx::load_acquire(&p.progress[head_batch].tiles_done) : 0;
    const bool done = __shfl_sync(0xffffffffu, count, 0) == static_cast<int32_t>(p.f.schedule.query_blocks);
    __syncwarp();  // orders the other lanes' reads behind the first one's
    return done;
  }
  // By both warps.
  __device__ __forceinline__ void run() const {
    const KeyTileView& view = control.views[0];
    const uint32_t head_batch = view.batch * p.heads_kv + view.kv_head, ahead = p.heads_ahead;
    if (head_batch >= ahead && is_done(head_batch - ahead)) {
      const uint32_t earlier = head_batch - ahead,
                     units = static_cast<uint32_t>(p.f.group) * p.row_tiles * (kRowTile / kUnitRows);
#pragma unroll 1
      while (!ends_soon(control, 0, 0)) {
        const uint32_t claimed = lane() == 0 ? ptx::fetch_increment(&p.progress[earlier].units_claimed) : 0;
        const uint32_t unit = __shfl_sync(0xffffffffu, claimed, 0);
        if (unit >= units) break;
        convert(earlier, unit);
      }
    }
    if (threadIdx.x != 32) return;
    wait(control.sums_done, 0);
    ptx::reduce_add_release(&p.progress[head_batch].tiles_done, 1);
  }
};

}  // namespace tessera::cuda::sm90

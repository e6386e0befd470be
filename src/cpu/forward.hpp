// The tiled forward kernel: one block of query rows against all the keys it sees.
//
//   for each split of the keys, for each chunk of up to 256 keys that some row of the block sees:
//     pack the chunk's K and V (once for all rows and all heads of the group in the block)
//     for each strip of kRows rows: scores = scale * Q K^T -> terms, mask -> online softmax -> O = O * alpha + P V
//   normalise, merge splits, merge the sink, store o and lse
//
// Nothing of size seqlen_q x seqlen_k exists: a strip's scores, kRows x 256, stay in L1, the block's Q, O and the
// packed chunk in L2. FLOPs 2 * rows * keys * (head_dim_qk + head_dim_v); bound by FMA: K and V are read from memory
// once a block. Source: Dao, FlashAttention-2, algorithm 1, with the loops ordered for a cache instead of a grid.
// Invariants: chunk boundaries depend on the split alone and a row's arithmetic on its own scores alone, so a result
// does not depend on threads, block size or batch mates; bytes outside of a sequence's lengths are never read.
#pragma once

#include <cmath>
#include <cstring>

#include "forward_call.hpp"
#include "load.hpp"
#include "microkernel.hpp"
#include "pack.hpp"
#include "score_bias.hpp"
#include "semantics.hpp"
#include "softmax.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

using core::Range;

inline int64_t align_down(int64_t n, int64_t unit) { return n - n % unit; }
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t align_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

template <class T>
struct RowState {
  int64_t position;
  Range keys;  // kept by the band
  double row_sum, lse;
  T row_max, slope;
  int32_t head;
};

template <class V>
class ForwardRun {
  using T = typename V::Scalar;
  static constexpr int64_t kRows = V::kRows, kLanes = V::kLanes;
  // Columns are cut at multiples of two vectors, so that which of exponentiate's two sums takes a key does not depend
  // on the strip.
  static constexpr int64_t kColumnUnit = 2 * kLanes;
  static_assert(V::kVecs <= 2);

 public:
  ForwardRun(const ForwardCall& call, const ForwardBlock& block, std::byte* workspace)
      : problem_(*call.problem),
        tensors_(*call.tensors),
        tiles_(call.tiles),
        block_(block),
        band_(problem_.band(block.sequence.seqlen_q, block.sequence.seqlen_k)),
        q_(piece<T>(workspace, tiles_.q_at)),
        o_(piece<T>(workspace, tiles_.o_at)),
        total_(piece<T>(workspace, tiles_.total_at)),
        k_(piece<T>(workspace, tiles_.k_at)),
        v_(piece<T>(workspace, tiles_.v_at)),
        scores_(piece<T>(workspace, tiles_.scores_at)),
        bias_(piece<T>(workspace, tiles_.bias_at)),
        rows_(piece<RowState<T>>(workspace, tiles_.rows_at)),
        row_address_(piece<const std::byte*>(workspace, tiles_.row_address_at)),
        scale_(piece<T>(workspace, tiles_.scale_at)) {
    const double factor = problem_.softcap > 0 ? problem_.scale / problem_.softcap : problem_.scale;
    constexpr double kMost = std::numeric_limits<T>::max();
    score_factor_ = T(factor > kMost ? kMost : factor < -kMost ? -kMost : factor);
    with_input_element<V>(problem_.k.dtype, [&](auto element) {
      k_row_bytes_ = problem_.head_dim_qk * decltype(element)::kBytes;
      // Under v_order 1 a key's elements lie in as many rows as it has.
      v_row_bytes_ = problem_.v_order == 1 ? 0 : problem_.head_dim_v * decltype(element)::kBytes;
      is_scaled_ = decltype(element)::kScaled;
    });
    if (problem_.has(TESSERA_FLAG_V_MEAN)) {
      const core::Sequence& sequence = block_.sequence;
      const int64_t outer = problem_.layout_kv == TESSERA_PACKED ? block_.batch : sequence.kv_batch;
      const int64_t batch = sequence.pages != nullptr ? 0 : outer * problem_.v_mean_stride;
      v_mean_ = tensors_.v_mean + batch + block_.head_begin / problem_.group * problem_.head_dim_v;
    }
    has_terms_ = problem_.softcap > 0 || problem_.has(TESSERA_FLAG_BIAS | TESSERA_FLAG_ALIBI);
  }

  void run() {
    begin_rows();
    if (row_count_ > 0) {
      load_queries();
      const int64_t splits = problem_.num_splits > 1 ? problem_.num_splits : 1;
      for (int64_t split = 0; split < splits; ++split) {
        const Range keys = core::split_keys(block_.sequence.seqlen_k, splits, split);
        if (split > 0 && keys.empty()) break;
        attend(keys);
        if (splits == 1) {
          normalise();
        } else {
          merge_split(split == 0);
        }
      }
      store(splits == 1 ? o_ : total_);
    }
    clear_unused_rows();
  }

 private:
  template <class U>
  static U* piece(std::byte* workspace, int64_t at) {
    return reinterpret_cast<U*>(workspace + at);
  }
  int64_t padded_dim_v() const { return tiles_.head_dim_v_padded; }

  // Rows of the block: position outermost, so that the rows of a strip see nearly the same keys.
  void begin_rows() {
    const int64_t used_end = block_.row_end < block_.sequence.seqlen_q ? block_.row_end : block_.sequence.seqlen_q;
    for (int64_t i = block_.row_begin; i < used_end; ++i) {
      const Range keys = band_.visible_keys(i);
      for (int32_t h = block_.head_begin; h < block_.head_end; ++h) {
        const T slope = problem_.has(TESSERA_FLAG_ALIBI)
                            ? T(tensors_.alibi_slopes[block_.batch * problem_.alibi_stride + h])
                            : T(0);
        rows_[row_count_++] = {i, keys, 0.0, 0.0, T(0), slope, h};
      }
    }
  }

  void load_queries() {
    const core::Operand& q = problem_.q;
    const auto* base = static_cast<const std::byte*>(tensors_.q);
    with_input_element<V>(q.dtype, [&](auto element) {
      using Element = decltype(element);
      for (int64_t first = 0; first < row_count_; first += kMaxChunk) {
        const int64_t count = row_count_ - first < kMaxChunk ? row_count_ - first : kMaxChunk;
        for (int64_t r = 0; r < count; ++r) {
          const RowState<T>& row = rows_[first + r];
          row_address_[r] =
              base +
              (core::query_row_offset(block_.sequence, q, row.position) + row.head * q.head_stride) * Element::kBytes;
          if constexpr (Element::kScaled) scale_[r] = query_scale(row);
        }
        pack_queries<V, Element>(row_address_, first, count, problem_.head_dim_qk, scale_, q_);
      }
    });
  }

  T query_scale(const RowState<T>& row) const {
    if (tensors_.q_scale == nullptr) return T(1);
    const core::ScaleOperand& scale = problem_.q_scale;
    const int64_t block = scale.rows > 0 ? row.position / scale.rows : 0;
    return T(tensors_.q_scale[block_.batch * scale.stride[0] + block * scale.stride[1] + row.head * scale.stride[2]]);
  }

  // The state (o_, row_max, row_sum) of every row over `keys`.
  void attend(Range keys) {
    std::memset(o_, 0, static_cast<size_t>(row_count_ * padded_dim_v()) * sizeof(T));
    for (int64_t r = 0; r < row_count_; ++r) {
      rows_[r].row_max = -kInfinity<T>;
      rows_[r].row_sum = 0;
    }
    const Range seen = visible(0, row_count_, keys);
    if (seen.empty()) return;
    int64_t grid = keys.begin + align_down(seen.begin - keys.begin, tiles_.chunk);
    Range chunk = chunk_at(grid, seen);
    locate_chunk(chunk);
    while (!chunk.empty()) {
      pack_chunk(chunk);
      grid += tiles_.chunk;
      const Range next = chunk_at(grid, seen);
      locate_chunk(next);
      for (int64_t row = 0; row < row_count_; row += kRows) {
        prefetch_rows(next.size(), row);
        attend_strip(row, chunk);
      }
      chunk = next;
    }
  }

  // The chunk that starts at `grid`, less what no row of the block sees.
  Range chunk_at(int64_t grid, Range seen) const {
    const int64_t skipped = seen.begin > grid ? align_down(seen.begin - grid, kColumnUnit) : 0;
    return {grid + skipped, grid + tiles_.chunk < seen.end ? grid + tiles_.chunk : seen.end};
  }

  // Keys of `within` that some row of [row, row + count) sees.
  Range visible(int64_t row, int64_t count, Range within) const {
    const core::TileRange tiles = band_.visible_tiles(rows_[row].position, rows_[row + count - 1].position + 1, 1);
    return {tiles.begin > within.begin ? tiles.begin : within.begin, tiles.end < within.end ? tiles.end : within.end};
  }

  void pack_chunk(Range chunk) {
    const int64_t keys = chunk.size(), dim_v = problem_.head_dim_v;
    const std::byte* const* values = row_address_ + kMaxChunk;
    if (is_scaled_) {
      find_scales(problem_.k_scale, tensors_.k_scale, chunk, scale_);
      find_scales(problem_.v_scale, tensors_.v_scale, chunk, scale_ + kMaxChunk);
    }
    with_input_element<V>(problem_.k.dtype, [&](auto element) {
      using Element = decltype(element);
      pack_keys<V, Element>(row_address_, keys, problem_.head_dim_qk, scale_, k_);
      if constexpr (Element::kScaled) {
        if (problem_.v_order == 1) {
          return pack_ordered_values<V, Element>(values, keys, dim_v, problem_.v.row_stride, scale_ + kMaxChunk,
                                                 v_mean_, v_);
        }
      }
      pack_values<V, Element>(values, keys, dim_v, scale_ + kMaxChunk, v_mean_, v_);
    });
  }

  // The factors of a chunk's rows of k or v.
  void find_scales(const core::ScaleOperand& operand, const float* scales, Range chunk, T* to) const {
    const int64_t head = block_.head_begin / problem_.group * operand.stride[2];
    for (int64_t j = chunk.begin; j < chunk.end; ++j) {
      const int64_t at =
          scales == nullptr ? 0 : core::key_scale_offset(problem_, block_.sequence, block_.batch, operand, j) + head;
      to[j - chunk.begin] = scales == nullptr ? T(1) : T(scales[at]);
    }
  }

  // Addresses of the chunk's K rows, and kMaxChunk further of its V rows.
  void locate_chunk(Range chunk) {
    locate_rows(problem_.k, tensors_.k, chunk, false, row_address_);
    locate_rows(problem_.v, tensors_.v, chunk, problem_.v_order == 1, row_address_ + kMaxChunk);
  }

  void locate_rows(const core::Operand& operand, const void* data, Range chunk, bool ordered,
                   const std::byte** address) {
    const auto* base = static_cast<const std::byte*>(data);
    const int64_t kv_head = block_.head_begin / problem_.group;
    with_input_element<V>(operand.dtype, [&](auto element) {
      for (int64_t j = chunk.begin; j < chunk.end; ++j) {
        const int64_t row = ordered ? core::ordered_value_offset(problem_, block_.sequence, block_.batch, operand, j)
                                    : core::key_row_offset(problem_, block_.sequence, operand, j);
        address[j - chunk.begin] = base + (row + kv_head * operand.head_stride) * decltype(element)::kBytes;
      }
    });
  }

  // Asks for a strip's share of the next chunk's K and V rows while the strip is computed: it saves 4 to 10 % of the
  // time at 16 heads.
  void prefetch_rows(int64_t keys, int64_t row) {
    const int64_t begin = keys * row / row_count_, end = keys * smaller(row + kRows, row_count_) / row_count_;
    for (int64_t j = begin; j < end; ++j) {
      prefetch_row(row_address_[j], k_row_bytes_);
      prefetch_row(row_address_[kMaxChunk + j], v_row_bytes_);
    }
  }

  void attend_strip(int64_t first, Range chunk) {
    const int64_t count = row_count_ - first < kRows ? row_count_ - first : kRows;
    const Range seen = visible(first, count, chunk);
    if (seen.empty()) return;
    const Range columns = {seen.begin - chunk.begin, seen.end - chunk.begin};
    score_strip(first, count, columns, chunk.size());
    T alpha[kRows];
    softmax_strip(first, count, columns, chunk.begin, alpha);
    add_values(first, count, columns, chunk.size(), alpha);
  }

  void score_strip(int64_t first, int64_t count, Range columns, int64_t keys) {
    const int64_t dim = problem_.head_dim_qk, padded = align_up(keys, kLanes);
    const T* strip = q_ + first * dim;
    for (int64_t column = align_down(columns.begin, V::kVecs * kLanes); column < columns.end;
         column += V::kVecs * kLanes) {
      const int vecs = panel_vecs<V>(column, padded);
      kBlocks<V>.score[count - 1][vecs - 1](strip, k_ + column * dim, dim, score_factor_, scores_ + column);
    }
  }

  // Scores of rows [first, first + count) become e^(score - row_max); alpha is what the rows' O so far is scaled by.
  void softmax_strip(int64_t first, int64_t count, Range columns, int64_t chunk_begin, T (&alpha)[kRows]) {
    constexpr int64_t kPadded = (kRows + kLanes - 1) / kLanes * kLanes;
    alignas(64) T growth[kPadded] = {}, high[kRows];
    const int64_t begin = align_down(columns.begin, kColumnUnit), end = align_up(columns.end, kLanes);
    for (int64_t r = 0; r < count; ++r) {
      RowState<T>& row = rows_[first + r];
      T* scores = scores_ + r * kScoreStride;
      const Range keep = {row.keys.begin - chunk_begin, row.keys.end - chunk_begin};
      if (has_terms_) add_terms(row, chunk_begin, keep, begin, end, scores);
      mask_row(scores, begin, end, keep.begin, keep.end);
      const T found = largest<V>(scores, begin, end);
      const T row_max = found > row.row_max ? found : row.row_max;
      high[r] = row_max == -kInfinity<T> ? T(0) : row_max;
      growth[r] = row.row_max - high[r];
      row.row_max = row_max;
    }
    for (int64_t r = 0; r < kPadded; r += kLanes) exp(V::load(growth + r)).store(growth + r);
    for (int64_t r = 0; r < count; ++r) {
      RowState<T>& row = rows_[first + r];
      const T sum = exponentiate<V>(high[r], scores_ + r * kScoreStride, begin, end);
      row.row_sum = row.row_sum * double(growth[r]) + double(sum);
      alpha[r] = growth[r];
    }
  }

  void add_terms(const RowState<T>& row, int64_t chunk_begin, Range keep, int64_t begin, int64_t end, T* scores) {
    if (problem_.softcap > 0) cap_scores<V>(T(problem_.softcap), scores, begin, end);
    if (problem_.has(TESSERA_FLAG_BIAS)) {
      const Range read = {keep.begin > begin ? keep.begin : begin, keep.end < end ? keep.end : end};
      load_bias<V>(problem_, tensors_, {block_.batch, row.head, row.position}, chunk_begin, read, bias_);
      add_bias<V>(bias_, scores, begin, end);
    }
    if (problem_.has(TESSERA_FLAG_ALIBI)) {
      add_alibi<V>(row.slope, T(band_.diagonal(row.position) - chunk_begin), scores, begin, end);
    }
  }

  void add_values(int64_t first, int64_t count, Range columns, int64_t keys, const T* alpha) {
    const int64_t padded = padded_dim_v();
    for (int64_t column = 0; column < padded; column += V::kVecs * kLanes) {
      const int vecs = panel_vecs<V>(column, padded);
      const T* panel = v_ + column * keys + columns.begin * vecs * kLanes;
      kBlocks<V>.value[count - 1][vecs - 1](scores_ + columns.begin, panel, columns.size(), alpha,
                                            o_ + first * padded + column, padded);
    }
  }

  // o_ = o_ / row_sum, 0 for empty rows, and lse.
  void normalise() {
    const int64_t padded = padded_dim_v();
    for (int64_t r = 0; r < row_count_; ++r) {
      RowState<T>& row = rows_[r];
      T* o = o_ + r * padded;
      row.lse = core::lse_from_base_e(double(row.row_max), row.row_sum);
      if (row.row_sum == 0) {
        std::memset(o, 0, static_cast<size_t>(padded) * sizeof(T));
        continue;
      }
      const V divisor = V::broadcast(T(row.row_sum));
      for (int64_t c = 0; c < padded; c += kLanes) (V::load(o + c) / divisor).store(o + c);
    }
  }

  // Merges the state in o_ into total_, in the order of the splits.
  void merge_split(bool first) {
    const int64_t padded = padded_dim_v();
    for (int64_t r = 0; r < row_count_; ++r) {
      RowState<T>& row = rows_[r];
      T *from = o_ + r * padded, *to = total_ + r * padded;
      if (first) {
        row.lse = -kInfinity<double>;
        std::memset(to, 0, static_cast<size_t>(padded) * sizeof(T));
      }
      if (row.row_sum == 0) continue;
      const double lse = core::lse_from_base_e(double(row.row_max), row.row_sum);
      const core::MergeWeights<double> weights = core::merge_weights(row.lse, lse);
      const V keep = V::broadcast(T(weights.first)), add = V::broadcast(T(weights.second));
      const V divisor = V::broadcast(T(row.row_sum));
      for (int64_t c = 0; c < padded; c += kLanes) {
        V::fma(V::load(to + c), keep, V::load(from + c) / divisor * add).store(to + c);
      }
      row.lse = core::merge_lse(row.lse, lse);
    }
  }

  // Merges the sinks and writes o and lse.
  void store(T* result) {
    const int64_t padded = padded_dim_v();
    for (int64_t r = 0; r < row_count_; ++r) {
      RowState<T>& row = rows_[r];
      const double sink = problem_.has(TESSERA_FLAG_SINKS) ? double(tensors_.sinks[row.head]) : -kInfinity<double>;
      if (sink != -kInfinity<double>) {
        const V weight = V::broadcast(T(core::merge_weights(row.lse, sink).first));
        for (int64_t c = 0; c < padded; c += kLanes)
          (V::load(result + r * padded + c) * weight).store(result + r * padded + c);
        row.lse = core::merge_lse(row.lse, sink);
      }
      store_row(row.position, row.head, result + r * padded);
      store_lse(row.position, row.head, row.lse);
    }
  }

  void store_row(int64_t position, int64_t head, const T* result) {
    const core::Operand& o = problem_.o;
    with_element<V>(o.dtype, [&](auto element) {
      using Element = decltype(element);
      std::byte* to = static_cast<std::byte*>(tensors_.o) +
                      (core::query_row_offset(block_.sequence, o, position) + head * o.head_stride) * Element::kBytes;
      for (int64_t c = 0; c < problem_.head_dim_v; c += kLanes) {
        store_partial<V, Element>(V::load(result + c), to + c * Element::kBytes, problem_.head_dim_v - c);
      }
    });
  }

  void store_lse(int64_t position, int64_t head, double lse) {
    if (!problem_.has(TESSERA_FLAG_LSE)) return;
    const core::Sequence& sequence = block_.sequence;
    const int64_t at = head * sequence.lse_stride + sequence.lse_row + position;
    const T value = T(lse);
    std::memcpy(static_cast<std::byte*>(tensors_.lse) + at * int64_t{sizeof value}, &value, sizeof value);
  }

  // Rows past the used length: +0 and -inf.
  void clear_unused_rows() {
    const core::Sequence& sequence = block_.sequence;
    const int64_t end = block_.row_end < sequence.rows_q ? block_.row_end : sequence.rows_q;
    const int64_t begin = block_.row_begin > sequence.seqlen_q ? block_.row_begin : sequence.seqlen_q;
    if (begin < end) std::memset(o_, 0, static_cast<size_t>(padded_dim_v()) * sizeof(T));
    for (int64_t i = begin; i < end; ++i) {
      for (int32_t h = block_.head_begin; h < block_.head_end; ++h) {
        store_row(i, h, o_);
        store_lse(i, h, -kInfinity<double>);
      }
    }
  }

  const core::Problem& problem_;
  const tessera_tensors& tensors_;
  const ForwardTiles& tiles_;
  const ForwardBlock& block_;
  const core::Band band_;
  T *q_, *o_, *total_, *k_, *v_, *scores_, *bias_;
  RowState<T>* rows_;
  const std::byte** row_address_;
  T* scale_;  // of the rows in row_address_, where they are quantised
  const float* v_mean_ = nullptr;
  int64_t row_count_ = 0;
  int64_t k_row_bytes_ = 0, v_row_bytes_ = 0;
  T score_factor_;
  bool has_terms_, is_scaled_ = false;
};

template <class V>
void forward_block(const ForwardCall& call, const ForwardBlock& block, std::byte* workspace) {
  ForwardRun<V>(call, block, workspace).run();
}

inline constexpr ForwardKernel kForwardKernel = {F32x16::kRows,         F32x16::kLanes,           F64x8::kRows,
                                                 F64x8::kLanes,         sizeof(RowState<double>), kScoreStride,
                                                 forward_block<F32x16>, forward_block<F64x8>};

}  // namespace tessera::cpu::TESSERA_CPU_ISA

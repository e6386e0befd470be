// Decode: few query rows against a long cache. The floor is the time to read K and V once, so each key row is loaded,
// converted and used by all rows of its group, straight from where it lies.
//
//   for each block of 64 keys of the split:
//     scores[row][key] = q . k        a few rows x a few keys of vector sums, reduced sixteen at a time
//     terms, mask, online softmax     as in the forward kernel
//     o[row] = o[row] * alpha + sum over keys of p v
//   o / row_sum and lse are the split's state; states are merged in the order of the splits
//
// While a block is worked on, the next one is prefetched: a head's rows are a head stride apart, which the hardware's
// prefetchers do not follow. A group of 4 at d = 128 and bf16 does 2048 FMAs for 512 bytes: memory is the bound from
// AVX2 on. Source: Dao et al., Flash-Decoding (2023).
// Invariants: split bounds depend on the sequence alone, a row's arithmetic on its own scores alone; bytes outside of a
// sequence's lengths are never read.
#pragma once

#include <cstring>

#include "decode_call.hpp"
#include "decode_merge.hpp"
#include "load.hpp"
#include "score_bias.hpp"
#include "semantics.hpp"
#include "softmax.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

// Rows and keys of a score block, rows and vectors of a value block: 16 accumulators on 32 registers, 4 pairs on 16.
inline constexpr int kDecodeRows = 4;
template <class V>
inline constexpr int kDecodeWidth = V::kVecs > 1 ? 4 : 1;

template <class V, class Element>
class DecodeRun {
  static constexpr int64_t kLanes = V::kLanes;
  static constexpr int kWidth = kDecodeWidth<V>;
  static_assert(kDecodeRows * 4 == kLanes, "a reduction takes 4 rows x 4 keys");

  struct RowState {
    core::Range keys;
    double row_sum;
    float row_max, slope;
    int64_t position;
    int32_t head;
  };

 public:
  DecodeRun(const DecodeCall& call, const DecodeItem& item, std::byte* task, std::byte* partial)
      : problem_(*call.problem),
        tensors_(*call.tensors),
        tiles_(call.tiles),
        item_(item),
        band_(problem_.band(item.sequence.seqlen_q, item.sequence.seqlen_k)),
        q_(reinterpret_cast<float*>(task + tiles_.q_at)),
        scores_(reinterpret_cast<float*>(task + tiles_.scores_at)),
        bias_(reinterpret_cast<float*>(task + tiles_.bias_at)),
        scale_(reinterpret_cast<float*>(task + tiles_.scale_at)),
        address_(reinterpret_cast<const std::byte**>(task + tiles_.address_at)),
        header_(reinterpret_cast<PartialHeader*>(partial)),
        o_(reinterpret_cast<float*>(partial + (tiles_.rows * int64_t{sizeof(PartialHeader)} + 63) / 64 * 64)) {
    const double factor = problem_.softcap > 0 ? problem_.scale / problem_.softcap : problem_.scale;
    factor_ = static_cast<float>(factor);
    has_terms_ = problem_.softcap > 0 || problem_.has(TESSERA_FLAG_BIAS | TESSERA_FLAG_ALIBI);
    begin_rows();
  }

  void attend(int64_t split) {
    const core::Range keys = visible(split_range(split));
    std::memset(o_, 0, static_cast<size_t>(row_count_ * tiles_.head_dim_v_padded) * sizeof(float));
    load_queries();
    // Blocks lie on a grid of the split, so that a band that hides their head changes no sum.
    const int64_t origin = split_range(split).begin;
    int64_t begin = origin + (keys.begin - origin) / kDecodeBlock * kDecodeBlock;
    if (!keys.empty()) locate(block_at(begin, keys), 0);
    for (int64_t parity = 0; begin < keys.end; begin += kDecodeBlock, parity ^= 1) {
      const core::Range block = block_at(begin, keys), next = block_at(begin + kDecodeBlock, keys);
      locate(next, parity ^ 1);
      score_block(block, next.size(), parity);
      softmax_block(block);
      value_block(block, next.size(), parity);
    }
    normalise();
  }

 private:
  core::Range split_range(int64_t split) const {
    const int64_t keys = item_.sequence.seqlen_k;
    if (problem_.num_splits > 0) return core::split_keys(keys, problem_.num_splits, split);
    const int64_t begin = split * kDecodeSplit, end = begin + kDecodeSplit;
    return {begin, end < keys ? end : keys};
  }
  // Keys of `within` that some row sees.
  core::Range visible(core::Range within) const {
    core::Range seen{0, 0};
    for (int64_t r = 0; r < row_count_; ++r) {
      const core::Range own = rows_[r].keys;
      if (own.empty()) continue;
      seen = seen.empty() ? own
                          : core::Range{own.begin < seen.begin ? own.begin : seen.begin,
                                        own.end > seen.end ? own.end : seen.end};
    }
    const core::Range both{seen.begin > within.begin ? seen.begin : within.begin,
                           seen.end < within.end ? seen.end : within.end};
    return both.empty() ? core::Range{within.begin, within.begin} : both;
  }
  static core::Range block_at(int64_t begin, core::Range keys) {
    const int64_t end = begin + kDecodeBlock < keys.end ? begin + kDecodeBlock : keys.end;
    return begin < end ? core::Range{begin, end} : core::Range{0, 0};
  }

  void begin_rows() {
    const int64_t used = item_.sequence.seqlen_q * problem_.group;
    for (int64_t r = item_.row_begin; r < item_.row_end && r < used; ++r) {
      const int64_t position = r / problem_.group;
      const int32_t head = item_.head_kv * problem_.group + static_cast<int32_t>(r % problem_.group);
      const float slope =
          problem_.has(TESSERA_FLAG_ALIBI) ? tensors_.alibi_slopes[item_.batch * problem_.alibi_stride + head] : 0.0f;
      rows_[row_count_++] = {band_.visible_keys(position), 0.0, -kInfinity<float>, slope, position, head};
    }
  }

  // Rows of float32, zero up to the padded width and up to a multiple of kDecodeRows rows.
  void load_queries() {
    const int64_t padded = tiles_.head_dim_qk_padded;
    const int64_t all = (row_count_ + kDecodeRows - 1) / kDecodeRows * kDecodeRows;
    std::memset(q_, 0, static_cast<size_t>(all * padded) * sizeof(float));
    with_element<V>(problem_.q.dtype, [&](auto element) {
      using Query = decltype(element);
      const auto* base = static_cast<const std::byte*>(tensors_.q);
      for (int64_t r = 0; r < row_count_; ++r) {
        const RowState& row = rows_[r];
        const std::byte* from = base + (core::query_row_offset(item_.sequence, problem_.q, row.position) +
                                        row.head * problem_.q.head_stride) *
                                           Query::kBytes;
        for (int64_t d = 0; d < problem_.head_dim_qk; d += kLanes)
          load_partial<V, Query>(from + d * Query::kBytes, problem_.head_dim_qk - d).store(q_ + r * padded + d);
      }
    });
  }

  const std::byte** k_address(int64_t parity) const { return address_ + parity * kDecodeBlock; }
  const std::byte** v_address(int64_t parity) const { return address_ + (2 + parity) * kDecodeBlock; }

  void locate(core::Range block, int64_t parity) {
    const auto* k =
        static_cast<const std::byte*>(tensors_.k) + item_.head_kv * problem_.k.head_stride * Element::kBytes;
    const auto* v =
        static_cast<const std::byte*>(tensors_.v) + item_.head_kv * problem_.v.head_stride * Element::kBytes;
    for (int64_t j = block.begin; j < block.end; ++j) {
      k_address(parity)[j - block.begin] =
          k + core::key_row_offset(problem_, item_.sequence, problem_.k, j) * Element::kBytes;
      v_address(parity)[j - block.begin] =
          v + core::key_row_offset(problem_, item_.sequence, problem_.v, j) * Element::kBytes;
    }
  }
  static void prefetch_row(const std::byte* row, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
  }

  void score_block(core::Range block, int64_t next_keys, int64_t parity) {
    const std::byte** keys = k_address(parity);
    const int64_t count = block.size(), row_bytes = problem_.head_dim_qk * Element::kBytes;
    for (int64_t j = 0; j < count; j += 4) {
      for (int64_t ahead = j; ahead < j + 4 && ahead < next_keys; ++ahead)
        prefetch_row(k_address(parity ^ 1)[ahead], row_bytes);
      // Past the last key the last one stands in; its scores are overwritten by the mask.
      const std::byte* four[4];
      for (int64_t c = 0; c < 4; ++c) four[c] = keys[j + c < count ? j + c : count - 1];
      for (int64_t r = 0; r < row_count_; r += kDecodeRows) score_four(four, r, j);
    }
    if (tensors_.k_scale != nullptr) scale_rows(block, tensors_.k_scale, problem_.k_scale);
  }

  // scores[r .. r + 4][j .. j + 4].
  void score_four(const std::byte* const (&four)[4], int64_t r, int64_t j) {
    V sums[kLanes];
    for (int c = 0; c < 4; c += kWidth) multiply_keys(four + c, q_ + r * tiles_.head_dim_qk_padded, sums + c);
    alignas(64) float reduced[kLanes];
    (V::sum_lanes(sums) * V::broadcast(factor_)).store(reduced);
    for (int64_t i = 0; i < kDecodeRows; ++i)
      std::memcpy(scores_ + (r + i) * kDecodeStride + j, reduced + 4 * i, 4 * sizeof(float));
  }

  // sums[4 * row + key] = q(row) * k(key), lane by lane, for kDecodeRows rows and kWidth keys.
  void multiply_keys(const std::byte* const* keys, const float* q, V* sums) const {
    const int64_t padded = tiles_.head_dim_qk_padded, dim = problem_.head_dim_qk, whole = dim / kLanes * kLanes;
    V total[kDecodeRows][kWidth];
#pragma GCC unroll 4
    for (int i = 0; i < kDecodeRows; ++i) {
#pragma GCC unroll 4
      for (int c = 0; c < kWidth; ++c) total[i][c] = V::zero();
    }
#pragma GCC unroll 1
    for (int64_t d = 0; d < whole; d += kLanes) {
      V k[kWidth];
#pragma GCC unroll 4
      for (int c = 0; c < kWidth; ++c) k[c] = Element::load(keys[c] + d * Element::kBytes);
      add_products(q + d, padded, k, total);
    }
    if (whole < dim) {
      V k[kWidth];
      for (int c = 0; c < kWidth; ++c) k[c] = load_partial<V, Element>(keys[c] + whole * Element::kBytes, dim - whole);
      add_products(q + whole, padded, k, total);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kDecodeRows; ++i) {
#pragma GCC unroll 4
      for (int c = 0; c < kWidth; ++c) sums[4 * i + c] = total[i][c];
    }
  }

  [[gnu::always_inline]] static void add_products(const float* q, int64_t stride, const V (&k)[kWidth],
                                                  V (&total)[kDecodeRows][kWidth]) {
#pragma GCC unroll 4
    for (int i = 0; i < kDecodeRows; ++i) {
      const V query = V::load(q + i * stride);
#pragma GCC unroll 4
      for (int c = 0; c < kWidth; ++c) total[i][c] = V::fma(query, k[c], total[i][c]);
    }
  }

  // Scores or probabilities times the scale of each key's row: a quantised cache is never scaled element by element.
  void scale_rows(core::Range block, const float* scales, const core::ScaleOperand& operand) {
    for (int64_t j = block.begin; j < block.end; ++j) {
      const int64_t at = core::key_scale_offset(problem_, item_.sequence, item_.batch, operand, j);
      scale_[j - block.begin] = scales[at + item_.head_kv * operand.stride[2]];
    }
    for (int64_t r = 0; r < row_count_; ++r)
      for (int64_t j = 0; j < block.size(); ++j) scores_[r * kDecodeStride + j] *= scale_[j];
  }

  void softmax_block(core::Range block) {
    const int64_t columns = (block.size() + kLanes - 1) / kLanes * kLanes;
    for (int64_t r = 0; r < row_count_; ++r) {
      RowState& row = rows_[r];
      float* scores = scores_ + r * kDecodeStride;
      const core::Range keep{row.keys.begin - block.begin,
                             row.keys.end < block.end ? row.keys.end - block.begin : block.size()};
      if (has_terms_) add_terms(row, block, keep, columns, scores);
      mask_row(scores, int64_t{0}, columns, keep.begin, keep.end);
      const float found = largest<V>(scores, 0, columns);
      const float row_max = found > row.row_max ? found : row.row_max;
      const float high = row_max == -kInfinity<float> ? 0.0f : row_max;
      alignas(64) float growth[kLanes] = {row.row_max - high};
      exp(V::load(growth)).store(growth);
      row.row_max = row_max;
      row.row_sum = row.row_sum * double(growth[0]) + double(exponentiate<V>(high, scores, 0, columns));
      alpha_[r] = growth[0];
    }
    if (tensors_.v_scale != nullptr) scale_rows(block, tensors_.v_scale, problem_.v_scale);
  }

  void add_terms(const RowState& row, core::Range block, core::Range keep, int64_t columns, float* scores) {
    if (problem_.softcap > 0) cap_scores<V>(static_cast<float>(problem_.softcap), scores, 0, columns);
    if (problem_.has(TESSERA_FLAG_BIAS)) {
      const core::Range read{keep.begin > 0 ? keep.begin : 0, keep.end};
      load_bias<V>(problem_, tensors_, {item_.batch, row.head, row.position}, block.begin, read, bias_);
      add_bias<V>(bias_, scores, 0, columns);
    }
    if (problem_.has(TESSERA_FLAG_ALIBI)) {
      add_alibi<V>(row.slope, float(band_.diagonal(row.position) - block.begin), scores, 0, columns);
    }
  }

  void value_block(core::Range block, int64_t next_keys, int64_t parity) {
    for (int64_t r = 0; r < row_count_; r += kDecodeRows) {
      const int64_t ahead = r == 0 ? next_keys : 0;
      for (int64_t c = 0; c < problem_.head_dim_v; c += kWidth * kLanes) {
        const int64_t left = problem_.head_dim_v - c;
        if (left >= kWidth * kLanes) {
          multiply_values<kWidth, true>(r, c, block.size(), ahead, parity);
        } else {
          for (int64_t d = c; d < problem_.head_dim_v; d += kLanes)
            multiply_values<1, false>(r, d, block.size(), ahead, parity);
        }
      }
    }
  }

  // o[r .. r + 4][column ..] = o * alpha + sum over keys of p v. The same columns of the next block's first `ahead`
  // rows are asked for on the way: in one burst they would fill the core's few outstanding misses and stall it.
  template <int kVecs, bool kWhole>
  void multiply_values(int64_t r, int64_t column, int64_t keys, int64_t ahead, int64_t parity) {
    const std::byte* const* address = v_address(parity);
    const std::byte* const* next = v_address(parity ^ 1);
    V total[kDecodeRows][kVecs];
#pragma GCC unroll 4
    for (int i = 0; i < kDecodeRows; ++i) {
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; ++c) total[i][c] = V::zero();
    }
    const float* probs = scores_ + r * kDecodeStride;
#pragma GCC unroll 1
    for (int64_t j = 0; j < keys; ++j) {
      if (j < ahead) prefetch_row(next[j] + column * Element::kBytes, kVecs * kLanes * Element::kBytes);
      V v[kVecs];
#pragma GCC unroll 4
      for (int c = 0; c < kVecs; ++c) {
        const std::byte* from = address[j] + (column + c * kLanes) * Element::kBytes;
        v[c] = kWhole ? Element::load(from) : load_partial<V, Element>(from, problem_.head_dim_v - column);
      }
#pragma GCC unroll 4
      for (int i = 0; i < kDecodeRows; ++i) {
        const V p = V::broadcast(probs[i * kDecodeStride + j]);
#pragma GCC unroll 4
        for (int c = 0; c < kVecs; ++c) total[i][c] = V::fma(p, v[c], total[i][c]);
      }
    }
    for (int64_t i = 0; i < kDecodeRows && r + i < row_count_; ++i) {
      const V factor = V::broadcast(alpha_[r + i]);
      float* at = o_ + (r + i) * tiles_.head_dim_v_padded + column;
      for (int c = 0; c < kVecs; ++c) V::fma(V::load(at + c * kLanes), factor, total[i][c]).store(at + c * kLanes);
    }
  }

  void normalise() {
    for (int64_t r = 0; r < row_count_; ++r) {
      const RowState& row = rows_[r];
      float* o = o_ + r * tiles_.head_dim_v_padded;
      header_[r].lse = core::lse_from_base_e(double(row.row_max), row.row_sum);
      if (row.row_sum == 0) std::memset(o, 0, static_cast<size_t>(tiles_.head_dim_v_padded) * sizeof(float));
      const V divisor = V::broadcast(row.row_sum == 0 ? 1.0f : static_cast<float>(row.row_sum));
      for (int64_t c = 0; c < tiles_.head_dim_v_padded; c += kLanes) (V::load(o + c) / divisor).store(o + c);
    }
  }

  const core::Problem& problem_;
  const tessera_tensors& tensors_;
  const DecodeTiles& tiles_;
  const DecodeItem& item_;
  const core::Band band_;
  float *q_, *scores_, *bias_, *scale_;
  const std::byte** address_;
  PartialHeader* header_;
  float* o_;
  RowState rows_[kDecodeStrip];
  float alpha_[kDecodeStrip];
  int64_t row_count_ = 0;
  float factor_;
  bool has_terms_;
};

// Calls f with the element type of a cache.
template <class V, class F>
inline void with_cache_element(int32_t dtype, F&& f) {
  if (dtype == TESSERA_INT8) {
    f(Int8Element{});
  } else {
    with_element<V>(dtype, f);
  }
}

inline void decode_attend(const DecodeCall& call, const DecodeItem& item, int64_t split, std::byte* task,
                          std::byte* partial) {
  with_cache_element<F32x16>(call.problem->k.dtype, [&](auto element) {
    DecodeRun<F32x16, decltype(element)>(call, item, task, partial).attend(split);
  });
}

inline constexpr DecodeKernel kDecodeKernel = {decode_attend, decode_finish};

}  // namespace tessera::cpu::TESSERA_CPU_ISA

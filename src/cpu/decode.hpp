// Decode: few query rows against a long cache. The floor is the time to read K and V once, so each key row is loaded,
// converted and used by all rows of its group, straight from where it lies.
//
//   for each block of 64 keys of the split:
//     for each kv head of the unit:
//       scores[row][key] = q . k        a few rows x a few keys of vector sums, reduced sixteen at a time
//       terms, mask, online softmax     as in the forward kernel
//       o[row] = o[row] * alpha + sum over keys of p v
//   o / row_sum and lse are the split's state; states are merged in the order of the splits
//
// While rows are worked on, others are prefetched (RowsAhead). A group of 4 at d = 128 and bf16 does
// 1024 FMAs for 512 bytes, about as long as one core takes to read them (docs/notes/cpu.md). Source: Dao et al.,
// Flash-Decoding (2023).
// Invariants: split bounds depend on the sequence alone, a row's arithmetic on its own scores alone; bytes outside of a
// sequence's lengths are never read.
#pragma once

#include <cstring>

#include "decode_call.hpp"
#include "decode_merge.hpp"
#include "decode_products.hpp"
#include "load.hpp"
#include "score_bias.hpp"
#include "semantics.hpp"
#include "softmax.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

template <class V, class Element, class Products>
class DecodeRun {
  static constexpr int64_t kLanes = V::kLanes;
  static_assert(kDecodeRows * 4 == kLanes, "a reduction takes 4 rows x 4 keys");

  // One kv head of the unit.
  struct Head {
    DecodeRowState* rows;
    float* q;
    float* o;
    PartialHeader* header;
    int64_t k, v;  // bytes from a key's row of the first head to this one's
  };
  // What is asked for during a head's keys and during its values.
  struct Ahead {
    RowsAhead keys, values;
  };

 public:
  DecodeRun(const DecodeCall& call, const DecodeUnit& unit, std::byte* task, std::byte* partial, int64_t head_bytes)
      : problem_(*call.problem),
        tensors_(*call.tensors),
        tiles_(call.tiles),
        unit_(unit),
        band_(problem_.band(unit.sequence.seqlen_q, unit.sequence.seqlen_k)),
        task_(task),
        partial_(partial),
        head_bytes_(head_bytes),
        scores_(reinterpret_cast<float*>(task + tiles_.scores_at)),
        bias_(reinterpret_cast<float*>(task + tiles_.bias_at)),
        scale_(reinterpret_cast<float*>(task + tiles_.scale_at)),
        address_(reinterpret_cast<const std::byte**>(task + tiles_.address_at)),
        products_(call, task) {
    const double factor = problem_.softcap > 0 ? problem_.scale / problem_.softcap : problem_.scale;
    factor_ = static_cast<float>(factor);
    k_scales_ = scales_of(tensors_.k_scale, problem_.k_scale);
    v_scales_ = scales_of(tensors_.v_scale, problem_.v_scale);
    has_terms_ = problem_.softcap > 0 || problem_.has(TESSERA_FLAG_BIAS | TESSERA_FLAG_ALIBI);
    const int64_t block_bytes =
        (unit.head_end - unit.head_begin) * problem_.head_dim_qk * Element::kBytes * kDecodeBlock;
    streams_ = block_bytes >= kStreamPart * 4 ? 8 : block_bytes >= kStreamPart * 2 ? 4 : 0;
    for (int64_t s = 0; s < kMostStreams; ++s)
      stream_head_bytes_[s] = (s % 2 == 0 ? problem_.k : problem_.v).head_stride * Element::kBytes;
    const int64_t used = unit.sequence.seqlen_q * problem_.group;
    row_count_ = (unit.row_end < used ? unit.row_end : used) - unit.row_begin;
    if (row_count_ < 0) row_count_ = 0;
  }

  // `continues`: the next split follows on this thread, so its first block is asked for during the last one here.
  void attend(int64_t split, bool continues) {
    for (int32_t h = unit_.head_begin; h < unit_.head_end; ++h) begin_head(h);
    const core::Range keys = visible(split_range(split));
    // Blocks lie on a grid of the split, so that a band that hides their head changes no sum.
    const int64_t origin = split_range(split).begin;
    int64_t begin = origin + (keys.begin - origin) / kDecodeBlock * kDecodeBlock;
    if (!keys.empty()) locate(block_at(begin, keys), 0);
    for (int64_t parity = 0; begin < keys.end; begin += kDecodeBlock, parity ^= 1) {
      const core::Range block = block_at(begin, keys);
      core::Range next = block_at(begin + kDecodeBlock, keys);
      if (next.empty() && continues) next = block_at(keys.end, split_range(split + 1));
      locate(next, parity ^ 1);
      if (k_scales_ == Scales::by_key) locate_scales(block, problem_.k_scale, k_scale_at_);
      if (v_scales_ == Scales::by_key) locate_scales(block, problem_.v_scale, v_scale_at_);
      for (int32_t h = unit_.head_begin; h < unit_.head_end; ++h) {
        const Head head = head_at(h);
        const Ahead ahead = locate_ahead(head, h, block.size(), next.size(), parity);
        score_block(head, h, block, parity, ahead.keys);
        softmax_block(head, h, block);
        products_.values({{v_rows(parity), head.v, block.size(), problem_.head_dim_v},
                          row_count_,
                          scores_,
                          alpha_,
                          head.o,
                          tiles_.head_dim_v_padded},
                         ahead.values);
      }
    }
    for (int32_t h = unit_.head_begin; h < unit_.head_end; ++h)
      normalise(head_at(h), scale_of(v_scales_, tensors_.v_scale, problem_.v_scale, h));
  }

 private:
  core::Range split_range(int64_t split) const {
    const int64_t keys = unit_.sequence.seqlen_k;
    if (problem_.num_splits > 0) return core::split_keys(keys, problem_.num_splits, split);
    const int64_t begin = split * kDecodeSplit, end = begin + kDecodeSplit;
    return {begin, end < keys ? end : keys};
  }
  // Keys of `within` that some row sees; the same for all heads.
  core::Range visible(core::Range within) const {
    core::Range seen{0, 0};
    const DecodeRowState* rows = head_at(unit_.head_begin).rows;
    for (int64_t r = 0; r < row_count_; ++r) {
      const core::Range own = rows[r].keys;
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

  Head head_at(int32_t h) const {
    const int64_t index = h - unit_.head_begin, rows = (tiles_.rows + kDecodeRows - 1) / kDecodeRows * kDecodeRows;
    std::byte* partial = partial_ + index * head_bytes_;
    return {reinterpret_cast<DecodeRowState*>(task_ + tiles_.rows_at) + index * tiles_.rows,
            reinterpret_cast<float*>(task_ + tiles_.q_at) + index * rows * tiles_.head_dim_qk_padded,
            reinterpret_cast<float*>(partial + tiles_.partial_o_at),
            reinterpret_cast<PartialHeader*>(partial),
            index * problem_.k.head_stride * Element::kBytes,
            index * problem_.v.head_stride * Element::kBytes};
  }

  // Rows of q as float32, zero up to the padded width and up to a multiple of kDecodeRows rows, in the order of pairs.
  void begin_head(int32_t h) {
    const Head head = head_at(h);
    const int64_t padded = tiles_.head_dim_qk_padded, dim = problem_.head_dim_qk, whole = dim / kPair * kPair;
    const int64_t all = (row_count_ + kDecodeRows - 1) / kDecodeRows * kDecodeRows;
    std::memset(head.o, 0, static_cast<size_t>(row_count_ * tiles_.head_dim_v_padded) * sizeof(float));
    std::memset(head.q, 0, static_cast<size_t>(all * padded) * sizeof(float));
    const auto* base = static_cast<const std::byte*>(tensors_.q);
    with_element<V>(problem_.q.dtype, [&](auto element) {
      using Query = decltype(element);
      for (int64_t r = 0; r < row_count_; ++r) {
        DecodeRowState& row = head.rows[r];
        row.position = (unit_.row_begin + r) / problem_.group;
        row.head = h * problem_.group + static_cast<int32_t>((unit_.row_begin + r) % problem_.group);
        row.keys = band_.visible_keys(row.position);
        row.row_sum = 0;
        row.row_max = -kInfinity<float>;
        row.slope = problem_.has(TESSERA_FLAG_ALIBI)
                        ? tensors_.alibi_slopes[unit_.batch * problem_.alibi_stride + row.head]
                        : 0.0f;
        const std::byte* from = base + (core::query_row_offset(unit_.sequence, problem_.q, row.position) +
                                        row.head * problem_.q.head_stride) *
                                           Query::kBytes;
        for (int64_t d = 0; d < dim; d += kPair) {
          alignas(64) float pair[kPair];
          for (int64_t i = 0; i < kPair; i += kLanes)
            (d + i < dim ? load_partial<V, Query>(from + (d + i) * Query::kBytes, dim - d - i) : V::zero())
                .store(pair + i);
          if (d < whole) put_in_order<Element>(pair);
          for (int64_t i = 0; i < kPair && d + i < padded; i += kLanes)
            V::load(pair + i).store(head.q + query_place(r, d + i, padded));
        }
      }
    });
    products_.begin_head(h - unit_.head_begin, head.q, row_count_);
  }

  const std::byte** k_rows(int64_t parity) const { return address_ + parity * kDecodeBlock; }
  const std::byte** v_rows(int64_t parity) const { return address_ + (2 + parity) * kDecodeBlock; }
  const std::byte** ahead(int64_t list) const { return address_ + (4 + list) * kDecodeBlock; }

  // Where the rows of the unit's first head lie. Past the last key it stands in itself, up to a multiple of
  // kDecodeKeyUnit; the mask overwrites its scores.
  void locate(core::Range block, int64_t parity) {
    const int64_t k_head = unit_.head_begin * problem_.k.head_stride,
                  v_head = unit_.head_begin * problem_.v.head_stride;
    const auto* k = static_cast<const std::byte*>(tensors_.k) + k_head * Element::kBytes;
    const auto* v = static_cast<const std::byte*>(tensors_.v) + v_head * Element::kBytes;
    for (int64_t j = block.begin; j < block.end; ++j) {
      k_rows(parity)[j - block.begin] =
          k + core::key_row_offset(problem_, unit_.sequence, problem_.k, j) * Element::kBytes;
      v_rows(parity)[j - block.begin] =
          v + core::key_row_offset(problem_, unit_.sequence, problem_.v, j) * Element::kBytes;
    }
    repeat_last(k_rows(parity), block.size());
  }

  // What is asked for during a head's keys and values. Near: values follow the keys, then come the keys of the next
  // head, after the last one of the next block. Far: the head's share of the next block.
  Ahead locate_ahead(const Head& head, int32_t h, int64_t count, int64_t next_count, int64_t parity) {
    const int64_t k_bytes = problem_.k.head_stride * Element::kBytes,
                  v_bytes = problem_.v.head_stride * Element::kBytes;
    const int64_t heads = unit_.head_end - unit_.head_begin, index = h - unit_.head_begin;
    const RowsInUse keys = {k_rows(parity), count, head.k}, values = {v_rows(parity), count, head.v};
    const RowsInUse next_keys = {k_rows(parity ^ 1), next_count, 0}, next_values = {v_rows(parity ^ 1), next_count, 0};
    const bool has_far = count == kDecodeBlock && next_count > 0;
    const std::byte **k_near = ahead(0), **v_near = ahead(1), **far = ahead(2), **v_far = ahead(3);
    if (has_far && tiles_.near_rows == 0) {
      rows_far(next_keys, heads, k_bytes, index * kDecodeBlock, kDecodeBlock, far);
      rows_far(next_values, heads, v_bytes, index * kDecodeBlock, kDecodeBlock, v_far);
      return {{nullptr, far}, {nullptr, v_far}};
    }
    const RowsInUse other = {k_rows(parity), count, head.k + k_bytes};
    rows_near(keys, values, tiles_.near_rows, k_near);
    rows_near(values, h + 1 == unit_.head_end ? next_keys : other, tiles_.near_rows, v_near);
    repeat_last(k_near, count);
    if (!has_far || streams_ == 0) return {{k_near, nullptr}, {v_near, nullptr}};
    if (streams_ == 8)
      rows_in_streams<8>(next_keys, next_values, stream_head_bytes_, heads, index, far);
    else
      rows_in_streams<4>(next_keys, next_values, stream_head_bytes_, heads, index, far);
    return {{k_near, far}, {v_near, v_far}};
  }
  // Products take keys in units, also where a block ends between them.
  static void repeat_last(const std::byte** rows, int64_t count) {
    for (int64_t j = count; j % kDecodeKeyUnit != 0; ++j) rows[j] = rows[j - 1];
  }

  void score_block(const Head& head, int32_t h, core::Range block, int64_t parity, RowsAhead ahead) {
    products_.scores({{k_rows(parity), head.k, block.size(), problem_.head_dim_qk},
                      h - unit_.head_begin,
                      row_count_,
                      head.q,
                      tiles_.head_dim_qk_padded,
                      factor_ * scale_of(k_scales_, tensors_.k_scale, problem_.k_scale, h),
                      scores_},
                     ahead);
    if (k_scales_ == Scales::by_key) scale_rows(h, block, tensors_.k_scale, problem_.k_scale, k_scale_at_);
  }

  // How a cache's scales lie: none, one for all keys of a head, which the scores' factor or o takes once, or more.
  enum class Scales { none, one, by_key };
  Scales scales_of(const float* scales, const core::ScaleOperand& operand) const {
    if (scales == nullptr) return Scales::none;
    const bool one_block = operand.rows == 0 || operand.stride[1] == 0;
    return one_block && (unit_.sequence.pages == nullptr || operand.stride[0] == 0) ? Scales::one : Scales::by_key;
  }
  float scale_of(Scales kind, const float* scales, const core::ScaleOperand& operand, int32_t h) const {
    if (kind != Scales::one) return 1.0f;
    return scales[core::key_scale_offset(problem_, unit_.sequence, unit_.batch, operand, 0) + h * operand.stride[2]];
  }
  // Scores or probabilities times the scale of each key's row: a quantised cache is never scaled element by element.
  void scale_rows(int32_t h, core::Range block, const float* scales, const core::ScaleOperand& operand,
                  const int64_t* at) {
    const int64_t columns = (block.size() + kLanes - 1) / kLanes * kLanes;
    for (int64_t j = 0; j < block.size(); ++j) scale_[j] = scales[at[j] + h * operand.stride[2]];
    for (int64_t j = block.size(); j < columns; ++j) scale_[j] = 1.0f;
    for (int64_t r = 0; r < row_count_; ++r) {
      float* row = scores_ + r * kDecodeStride;
      for (int64_t j = 0; j < columns; j += kLanes) (V::load(row + j) * V::load(scale_ + j)).store(row + j);
    }
  }
  // Where the scales of the block's keys lie, the same for all heads but for the head's stride.
  void locate_scales(core::Range block, const core::ScaleOperand& operand, int64_t* at) const {
    for (int64_t j = block.begin; j < block.end; ++j)
      at[j - block.begin] = core::key_scale_offset(problem_, unit_.sequence, unit_.batch, operand, j);
  }

  void softmax_block(const Head& head, int32_t h, core::Range block) {
    const int64_t columns = (block.size() + kLanes - 1) / kLanes * kLanes;
    alignas(64) float growth[kDecodeStrip] = {};
    bool grew = false;
    for (int64_t r = 0; r < row_count_; ++r) {
      DecodeRowState& row = head.rows[r];
      float* scores = scores_ + r * kDecodeStride;
      const core::Range keep{row.keys.begin - block.begin,
                             row.keys.end < block.end ? row.keys.end - block.begin : block.size()};
      if (has_terms_) add_terms(row, block, keep, columns, scores);
      mask_row(scores, int64_t{0}, columns, keep.begin, keep.end);
      const float found = largest<V>(scores, 0, columns);
      // Unless the maximum grows, the factor is exactly 1; NaN takes this way too and stays in the scores.
      if (!(found > row.row_max)) continue;
      growth[r] = row.row_max - found;
      row.row_max = found;
      grew = true;
    }
    for (int64_t r = 0; r < row_count_; r += kLanes)
      (grew ? exp(V::load(growth + r)) : V::broadcast(1.0f)).store(alpha_ + r);
    for (int64_t r = 0; r < row_count_; ++r) {
      DecodeRowState& row = head.rows[r];
      const float high = row.row_max == -kInfinity<float> ? 0.0f : row.row_max;
      row.row_sum =
          row.row_sum * double(alpha_[r]) + double(exponentiate<V>(high, scores_ + r * kDecodeStride, 0, columns));
    }
    if (v_scales_ == Scales::by_key) scale_rows(h, block, tensors_.v_scale, problem_.v_scale, v_scale_at_);
  }

  void add_terms(const DecodeRowState& row, core::Range block, core::Range keep, int64_t columns, float* scores) {
    if (problem_.softcap > 0) cap_scores<V>(static_cast<float>(problem_.softcap), scores, 0, columns);
    if (problem_.has(TESSERA_FLAG_BIAS)) {
      const core::Range read{keep.begin > 0 ? keep.begin : 0, keep.end};
      load_bias<V>(problem_, tensors_, {unit_.batch, row.head, row.position}, block.begin, read, bias_);
      add_bias<V>(bias_, scores, 0, columns);
    }
    if (problem_.has(TESSERA_FLAG_ALIBI)) {
      add_alibi<V>(row.slope, float(band_.diagonal(row.position) - block.begin), scores, 0, columns);
    }
  }

  // o * scale / row_sum, in the order of the elements from here on.
  void normalise(const Head& head, float scale) {
    const int64_t padded = tiles_.head_dim_v_padded, dim = problem_.head_dim_v, whole = dim / kPair * kPair;
    for (int64_t r = 0; r < row_count_; ++r) {
      const DecodeRowState& row = head.rows[r];
      float* o = head.o + r * padded;
      head.header[r].lse = core::lse_from_base_e(double(row.row_max), row.row_sum);
      if (row.row_sum == 0) std::memset(o, 0, static_cast<size_t>(padded) * sizeof(float));
      const V divisor = V::broadcast(row.row_sum == 0 ? 1.0f : static_cast<float>(row.row_sum));
      const V factor = V::broadcast(row.row_sum == 0 ? 1.0f : scale);
      for (int64_t c = 0; c < padded; c += kLanes) (V::load(o + c) / divisor * factor).store(o + c);
      for (int64_t c = 0; c < whole; c += kPair) take_from_order<Element>(o + c);
    }
  }

  const core::Problem& problem_;
  const tessera_tensors& tensors_;
  const DecodeTiles& tiles_;
  const DecodeUnit& unit_;
  const core::Band band_;
  std::byte *task_, *partial_;
  const int64_t head_bytes_;  // between the partial states of two heads
  float *scores_, *bias_, *scale_;
  const std::byte** address_;
  alignas(64) float alpha_[kDecodeStrip];
  int64_t streams_, stream_head_bytes_[kMostStreams];
  int64_t k_scale_at_[kDecodeBlock], v_scale_at_[kDecodeBlock];
  int64_t row_count_ = 0;
  float factor_;
  Scales k_scales_, v_scales_;
  bool has_terms_;
  Products products_;
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

inline void decode_attend(const DecodeCall& call, const DecodeUnit& unit, int64_t split, bool continues,
                          std::byte* task, std::byte* partial, int64_t head_bytes) {
  with_cache_element<F32x16>(call.problem->k.dtype, [&](auto element) {
    using Products = VectorProducts<F32x16, decltype(element)>;
    DecodeRun<F32x16, decltype(element), Products>(call, unit, task, partial, head_bytes).attend(split, continues);
  });
}

inline constexpr DecodeKernel kDecodeKernel = {false, decode_attend, decode_finish};

}  // namespace tessera::cpu::TESSERA_CPU_ISA

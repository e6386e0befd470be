// Probabilities and score gradients of a block of query rows against a chunk of keys, recomputed from q, k and lse:
//
//   x = the score as in forward;  P = e^min(x - lse, 0);  dX = P * (d_o . v - delta + d_lse);  dC = dX * cap'
//
// Shared by the gradients of q, k, v (backward.hpp) and of a bias (bias_gradient.hpp). Rows are positions x heads,
// position outermost. delta = rowsum(d_o * o) is summed in the order in which a score's depth is, so that a row with a
// single key has a gradient of exactly 0. Invariants: what the band hides is 0 in both tiles, whatever k and v hold;
// nothing outside of a sequence's lengths is read.
#pragma once

#include <cmath>
#include <cstring>

#include "backward_call.hpp"
#include "backward_products.hpp"
#include "score_bias.hpp"
#include "semantics.hpp"
#include "softmax.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

using core::Range;

inline int64_t round_down(int64_t n, int64_t unit) { return n - n % unit; }
inline int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
inline int64_t at_most(int64_t n, int64_t bound) { return n < bound ? n : bound; }
inline int64_t at_least(int64_t n, int64_t bound) { return n > bound ? n : bound; }

template <class V>
class ScoreGradients {
 public:
  using T = typename V::Scalar;
  static constexpr int64_t kRows = V::kRows, kLanes = V::kLanes, kPanel = V::kVecs * V::kLanes;

  ScoreGradients(const BackwardCall& call, std::byte* workspace)
      : problem(*call.problem),
        tensors(*call.tensors),
        tiles(call.tiles),
        q_panels(piece<T>(workspace, tiles.q_panels_at)),
        d_o_panels(piece<T>(workspace, tiles.d_o_panels_at)),
        k_columns(piece<T>(workspace, tiles.k_columns_at)),
        v_columns(piece<T>(workspace, tiles.v_columns_at)),
        probs(piece<T>(workspace, tiles.probs_at)),
        grads(piece<T>(workspace, tiles.grads_at)),
        row_address(piece<const std::byte*>(workspace, tiles.row_address_at)),
        bias_(piece<T>(workspace, tiles.bias_at)),
        lse_(piece<T>(workspace, tiles.lse_at)),
        delta_(piece<T>(workspace, tiles.delta_at)) {
    const double factor = problem.softcap > 0 ? problem.scale / problem.softcap : problem.scale;
    constexpr double kMost = std::numeric_limits<T>::max();
    score_factor = T(factor > kMost ? kMost : factor < -kMost ? -kMost : factor);
    has_terms = problem.softcap > 0 || problem.has(TESSERA_FLAG_BIAS | TESSERA_FLAG_ALIBI);
  }

  template <class U>
  static U* piece(std::byte* workspace, int64_t at) {
    return reinterpret_cast<U*>(workspace + at);
  }

  // From here on rows are those of heads [head_begin, head_end) of one sequence.
  void begin_heads(const core::Sequence& where, int64_t at_batch, int32_t head_begin, int32_t head_end) {
    sequence = where;
    batch = at_batch;
    first_head_ = head_begin;
    heads = head_end - head_begin;
    band = problem.band(sequence.seqlen_q, sequence.seqlen_k);
    row_total = sequence.seqlen_q * heads;
  }
  int64_t position(int64_t row) const { return heads == 1 ? row : row / heads; }
  int32_t head(int64_t row) const { return first_head_ + static_cast<int32_t>(heads == 1 ? 0 : row % heads); }

  const std::byte* row_of(const core::Operand& operand, const void* data, int64_t row, int64_t element_bytes) const {
    return static_cast<const std::byte*>(data) +
           (core::query_row_offset(sequence, operand, position(row)) + head(row) * operand.head_stride) * element_bytes;
  }

  // lse and delta - d_lse of rows [begin, end), which later calls take from there; d_sinks (null: none) of each head
  // gets what the rows add to it.
  void prepare_rows(int64_t begin, int64_t end, double* d_sinks) {
    prepared_ = begin;
    for (int64_t first = begin; first < end; first += kLanes) {
      const int64_t count = at_most(end - first, kLanes);
      sum_delta(first, count, delta_ + (first - begin));
      for (int64_t row = first; row < first + count; ++row) prepare_row(row, d_sinks);
    }
  }

  // Of a row that prepare_rows went over; lse of a row without keys is +inf, delta has d_lse taken off.
  T lse(int64_t row) const { return lse_[row - prepared_]; }
  T delta(int64_t row) const { return delta_[row - prepared_]; }
  T slope(int64_t row) const { return T(tensors.alibi_slopes[batch * problem.alibi_stride + head(row)]); }

  // The score of lanes with what the problem adds to it: `bias` is read, `tilt` (minus ALiBi's slope) and the signed
  // distance from the diagonal count where there is such a term. `bend`, 1 before, is the cap's derivative.
  V add_terms(V score, const T* bias, V tilt, V distance, V& bend) const {
    if (problem.softcap > 0) {
      const V part = tanh(score);
      score = V::broadcast(T(problem.softcap)) * part;
      bend = bend - part * part;
    }
    if (problem.has(TESSERA_FLAG_BIAS)) {
      const V term = V::load(bias), lowest = V::broadcast(std::numeric_limits<T>::lowest());
      score = V::where_less(term, lowest, V::broadcast(-kInfinity<T>), score + term);
    }
    if (problem.has(TESSERA_FLAG_ALIBI)) score = V::fma(tilt, V::abs(distance), score);
    return score;
  }

  // The block's queries and d_o as panels.
  void load_rows(int64_t first, int64_t count) {
    block_row_ = first;
    block_count_ = count;
    with_element<V>(problem.q.dtype, [&](auto element) {
      using Element = decltype(element);
      for (int64_t r = 0; r < count; ++r) row_address[r] = row_of(problem.q, tensors.q, first + r, Element::kBytes);
      pack_values<V, Element>(row_address, count, problem.head_dim_qk, nullptr, nullptr, q_panels);
    });
    with_element<V>(problem.d_o.dtype, [&](auto element) {
      using Element = decltype(element);
      for (int64_t r = 0; r < count; ++r) row_address[r] = row_of(problem.d_o, tensors.d_o, first + r, Element::kBytes);
      pack_values<V, Element>(row_address, count, problem.head_dim_v, nullptr, nullptr, d_o_panels);
    });
  }

  // Asks for rows [first, first + count) of q and d_o, which a later block reads: rows of [batch, seqlen, heads, dim]
  // lie pages apart, and packing waits for them otherwise.
  void ask_for_rows(int64_t first, int64_t count) const {
    const int64_t end = at_most(first + count, row_total);
    for (int64_t row = first; row < end; ++row) {
      ask_for_row(problem.q, tensors.q, row, problem.head_dim_qk);
      ask_for_row(problem.d_o, tensors.d_o, row, problem.head_dim_v);
    }
  }

  // Addresses of rows `keys` of k or v.
  void locate_keys(const core::Operand& operand, const void* data, Range keys, int32_t kv_head, int64_t element_bytes) {
    const auto* base = static_cast<const std::byte*>(data);
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      const int64_t at = core::key_row_offset(problem, sequence, operand, j) + kv_head * operand.head_stride;
      row_address[j - keys.begin] = base + at * element_bytes;
    }
  }

  // K and V of the chunk with keys in the lanes; K also as panels of its columns where wanted.
  void load_keys(Range keys, int32_t kv_head, T* k_panels) {
    with_element<V>(problem.k.dtype, [&](auto element) {
      using Element = decltype(element);
      locate_keys(problem.k, tensors.k, keys, kv_head, Element::kBytes);
      pack_keys<V, Element>(row_address, keys.size(), problem.head_dim_qk, nullptr, k_columns);
      if (k_panels != nullptr)
        pack_values<V, Element>(row_address, keys.size(), problem.head_dim_qk, nullptr, nullptr, k_panels);
      locate_keys(problem.v, tensors.v, keys, kv_head, Element::kBytes);
      pack_keys<V, Element>(row_address, keys.size(), problem.head_dim_v, nullptr, v_columns);
    });
  }

  // Keys of `within` that some row of [row, row + count) sees.
  Range visible(int64_t row, int64_t count, Range within) const {
    const core::TileRange seen = band.visible_tiles(position(row), position(row + count - 1) + 1, 1);
    return {at_least(seen.begin, within.begin), at_most(seen.end, within.end)};
  }

  // Rows [first, first + count) of the block, at most kRows: P into `probs` and the gradient of the scores into `grads`
  // (before the cap's derivative unless `capped`), for `columns` of the chunk widened to whole panels and vectors, and
  // 0 elsewhere in `all`.
  void differentiate(int64_t first, int64_t count, Range keys, Range columns, Range all, bool capped) {
    const Range whole = {round_down(columns.begin, kPanel), round_up(columns.end, kLanes)};
    T *p = probs + first * kScoreStride, *g = grads + first * kScoreStride;
    multiply_columns(q_panels, first, count, k_columns, problem.head_dim_qk, score_factor, whole, keys, p);
    multiply_columns(d_o_panels, first, count, v_columns, problem.head_dim_v, T(1), whole, keys, g);
    for (int64_t r = 0; r < count; ++r, p += kScoreStride, g += kScoreStride) {
      const int64_t row = block_row_ + first + r;
      const Range seen = band.visible_keys(position(row));
      const Range keep = {seen.begin - keys.begin, seen.end - keys.begin};
      if (has_terms) {
        differentiate_terms(row, keys.begin, keep, whole, capped, p, g);
      } else {
        differentiate_plain(row, whole, p, g);
      }
      const Range wide = {at_most(all.begin, whole.begin), at_least(all.end, whole.end)};
      clear(p, g, {wide.begin, at_most(keep.begin, wide.end)});
      clear(p, g, {at_least(keep.end, wide.begin), wide.end});
    }
  }
  // The same for rows that see no key of the chunk.
  void clear_rows(int64_t first, int64_t count, Range all) {
    for (int64_t r = first; r < first + count; ++r) clear(probs + r * kScoreStride, grads + r * kScoreStride, all);
  }

  const core::Problem& problem;
  const tessera_tensors& tensors;
  const BackwardTiles& tiles;
  core::Sequence sequence{};
  core::Band band{};
  int64_t batch = 0, heads = 1, row_total = 0;
  T *q_panels, *d_o_panels, *k_columns, *v_columns, *probs, *grads;
  const std::byte** row_address;
  T score_factor;  // of a product; before the cap's tanh where there is one
  bool has_terms;  // softcap, bias or ALiBi

 private:
  static void clear(T* p, T* g, Range columns) {
    for (int64_t j = columns.begin; j < columns.end; ++j) p[j] = g[j] = T(0);
  }

  // Into L2: L1 is full of what a strip works on.
  void ask_for_row(const core::Operand& operand, const void* data, int64_t row, int64_t dim) const {
    const int64_t element = element_bytes_of(operand.dtype);
    const std::byte* at = row_of(operand, data, row, element);
    for (int64_t byte = 0; byte < dim * element; byte += 64) __builtin_prefetch(at + byte, 0, 2);
  }
  static int64_t element_bytes_of(int32_t dtype) {
    int64_t bytes = 0;
    with_element<V>(dtype, [&](auto element) { bytes = decltype(element)::kBytes; });
    return bytes;
  }

  void multiply_columns(const T* panels, int64_t first, int64_t count, const T* columns, int64_t depth, T factor,
                        Range whole, Range keys, T* to) const {
    const int64_t padded = round_up(keys.size(), kLanes);
    for (int64_t column = whole.begin; column < whole.end; column += kPanel) {
      const int vecs = panel_vecs<V>(column, padded);
      kGradientBlocks<V>.dot[count - 1][vecs - 1](panels, first, block_count_, columns + column * depth, depth, factor,
                                                  to + column);
    }
  }

  // sums[r] = d_o . o of row first + r, by the additions that dot_block does.
  void sum_delta(int64_t first, int64_t count, T* sums) {
    const int64_t next = at_most(first + 2 * kLanes, row_total);
    for (int64_t row = first + kLanes; row < next; ++row) {
      ask_for_row(problem.d_o, tensors.d_o, row, problem.head_dim_v);
      ask_for_row(problem.o, tensors.o, row, problem.head_dim_v);
    }
    V total = V::zero(), part = V::zero();
    alignas(64) T d_o[kLanes * kLanes], o[kLanes * kLanes];
    for (int64_t d = 0; d < problem.head_dim_v; d += kLanes) {
      turn_rows(problem.d_o, tensors.d_o, first, count, d, d_o);
      turn_rows(problem.o, tensors.o, first, count, d, o);
      for (int64_t c = 0; c < at_most(problem.head_dim_v - d, kLanes); ++c) {
        if (d + c > 0 && (d + c) % kDepthPiece == 0) {
          total = d + c == kDepthPiece ? part : part + total;
          part = V::zero();
        }
        part = V::fma(V::load(d_o + c * kLanes), V::load(o + c * kLanes), part);
      }
    }
    if (problem.head_dim_v > kDepthPiece) part = part + total;
    store_partial<V, NativeElement<V>>(part, reinterpret_cast<std::byte*>(sums), count);
  }
  void turn_rows(const core::Operand& operand, const void* data, int64_t first, int64_t count, int64_t d, T* to) const {
    with_element<V>(operand.dtype, [&](auto element) {
      using Element = decltype(element);
      V rows[kLanes];
      for (int64_t r = 0; r < kLanes; ++r) {
        rows[r] = r < count ? load_partial<V, Element>(
                                  row_of(operand, data, first + r, Element::kBytes) + d * Element::kBytes,
                                  problem.head_dim_v - d)
                            : V::zero();
      }
      V::store_transposed(rows, to, kLanes, kLanes);
    });
  }

  void prepare_row(int64_t row, double* d_sinks) {
    T &delta = delta_[row - prepared_], &lse = lse_[row - prepared_];
    const int64_t at = head(row) * sequence.lse_stride + sequence.lse_row + position(row);
    std::memcpy(&lse, static_cast<const std::byte*>(tensors.lse) + at * int64_t{sizeof lse}, sizeof lse);
    if (problem.has(TESSERA_FLAG_D_LSE)) {
      T d_lse;
      std::memcpy(&d_lse, static_cast<const std::byte*>(tensors.d_lse) + at * int64_t{sizeof d_lse}, sizeof d_lse);
      delta = delta - d_lse;
    }
    if (d_sinks != nullptr) {
      const double sink = tensors.sinks[head(row)], exponent = sink - double(lse);
      if (sink != -kInfinity<double>) d_sinks[head(row)] -= std::exp(exponent > 0 ? 0.0 : exponent) * double(delta);
    }
    // A row without keys: whatever its scores are, their exponential is 0.
    if (lse == -kInfinity<T>) lse = kInfinity<T>;
  }

  static V probability(V score, V lse) {
    const V exponent = score - lse;
    return exp(V::where_less(V::zero(), exponent, V::zero(), exponent));
  }

  void differentiate_plain(int64_t row, Range whole, T* p, T* g) const {
    const V lse = V::broadcast(lse_[row - prepared_]), delta = V::broadcast(delta_[row - prepared_]);
    for (int64_t j = whole.begin; j < whole.end; j += kLanes) {
      const V prob = probability(V::load(p + j), lse);
      prob.store(p + j);
      (prob * (V::load(g + j) - delta)).store(g + j);
    }
  }

  void differentiate_terms(int64_t row, int64_t first_key, Range keep, Range whole, bool capped, T* p, T* g) {
    const V lse = V::broadcast(lse_[row - prepared_]), delta = V::broadcast(delta_[row - prepared_]);
    const V tilt = V::broadcast(problem.has(TESSERA_FLAG_ALIBI) ? -slope(row) : T(0)), unbent = V::broadcast(T(1));
    const T distance = T(band.diagonal(position(row)) - first_key);
    if (problem.has(TESSERA_FLAG_BIAS)) {
      load_bias<V>(problem, tensors, {batch, head(row), position(row)}, first_key,
                   {at_least(keep.begin, whole.begin), at_most(keep.end, whole.end)}, bias_);
    }
    for (int64_t j = whole.begin; j < whole.end; j += kLanes) {
      V bend = unbent;
      const V score = add_terms(V::load(p + j), bias_ + j, tilt, V::broadcast(distance - T(j)) - V::iota(), bend);
      const V prob = probability(score, lse);
      prob.store(p + j);
      (prob * (V::load(g + j) - delta) * (capped ? bend : unbent)).store(g + j);
    }
  }

  T *bias_, *lse_, *delta_;
  int32_t first_head_ = 0;
  int64_t prepared_ = 0, block_row_ = 0, block_count_ = 0;
};

}  // namespace tessera::cpu::TESSERA_CPU_ISA

// Included by one thin source for each instruction set, which names its vectors' namespace (TESSERA_CPU_ISA): one of
// its own, so that no code compiled here stands in for the library's.
//
//   for each tile of keys: pack K and V; for each tile of the query rows that see it: pack Q
//     for each strip of kRows rows: scores = scale * Q K^T -> mask -> P, m, l; O = (O * l_before * e^(...) + P V) / l
//
// A strip's scores stay in L1. O, l and m of a strip are read and written once a tile of keys: 8 d bytes a row (f32)
// for 4 * keys * d FLOPs. Source: fa1.hpp.

#include <cmath>
#include <cstring>

#include "cpu/load.hpp"
#include "cpu/microkernel.hpp"
#include "cpu/pack.hpp"
#include "cpu/softmax.hpp"
#include "cpu_fa1.hpp"
#include "semantics.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

using baselines::CpuFa1Call;
using baselines::CpuFa1Kernel;
using baselines::CpuFa1Tiles;
using core::Range;

inline int64_t align_down(int64_t n, int64_t unit) { return n - n % unit; }
inline int64_t align_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

template <class V>
class Fa1Head {
  using T = typename V::Scalar;
  static constexpr int64_t kRows = V::kRows, kLanes = V::kLanes, kPanel = V::kVecs * V::kLanes;

 public:
  Fa1Head(const CpuFa1Call& call, int64_t index, std::byte* scratch)
      : problem_(*call.problem),
        tensors_(*call.tensors),
        tiles_(call.tiles),
        band_(problem_.band(problem_.seqlen_q, problem_.seqlen_k)),
        batch_(index / problem_.heads_q),
        head_(index % problem_.heads_q),
        padded_(tiles_.head_dim_v_padded),
        lse_at_(index * problem_.seqlen_q),
        o_(reinterpret_cast<T*>(call.workspace + tiles_.o_at) + lse_at_ * padded_),
        max_(reinterpret_cast<T*>(call.workspace + tiles_.max_at) + lse_at_),
        sum_(reinterpret_cast<double*>(call.workspace + tiles_.sum_at) + lse_at_),
        q_(reinterpret_cast<T*>(scratch + tiles_.q_at)),
        k_(reinterpret_cast<T*>(scratch + tiles_.k_at)),
        v_(reinterpret_cast<T*>(scratch + tiles_.v_at)),
        scores_(reinterpret_cast<T*>(scratch + tiles_.scores_at)),
        address_(reinterpret_cast<const std::byte**>(scratch + tiles_.address_at)) {
    constexpr double kMost = std::numeric_limits<T>::max();
    scale_ = T(problem_.scale > kMost ? kMost : problem_.scale < -kMost ? -kMost : problem_.scale);
  }

  // Also without keys every row is met once.
  void run() {
    for (int64_t begin = 0; begin == 0 || begin < problem_.seqlen_k; begin += tiles_.keys) {
      const Range keys = {begin, begin + tiles_.keys < problem_.seqlen_k ? begin + tiles_.keys : problem_.seqlen_k};
      const Range rows = begin == 0 ? Range{0, problem_.seqlen_q} : band_.seeing_rows(keys.begin, keys.end);
      if (rows.empty()) continue;
      pack_tile(keys);
      // Strips are the same for every tile of keys.
      for (int64_t row = align_down(rows.begin, kRows); row < rows.end; row += tiles_.rows) {
        const int64_t end = row + tiles_.rows < problem_.seqlen_q ? row + tiles_.rows : problem_.seqlen_q;
        pack_rows({row, end});
        for (int64_t strip = row; strip < end && strip < rows.end; strip += kRows) {
          update_strip(strip, end - strip < kRows ? end - strip : kRows, keys,
                       q_ + (strip - row) * problem_.head_dim_qk);
        }
      }
    }
  }

 private:
  // Bytes from a tensor's first element to row 0 of this head; `heads` query heads share one.
  template <class Element>
  int64_t head_at(const core::Operand& x, int64_t heads) const {
    return (batch_ * x.batch_stride + head_ / heads * x.head_stride) * Element::kBytes;
  }
  template <class Element>
  void locate(const core::Operand& x, const void* data, int64_t heads, Range rows, const std::byte** address) const {
    const std::byte* first = static_cast<const std::byte*>(data) + head_at<Element>(x, heads);
    for (int64_t row = rows.begin; row < rows.end; ++row) *address++ = first + row * x.row_stride * Element::kBytes;
  }

  void pack_tile(Range keys) {
    with_element<V>(problem_.k.dtype, [&](auto element) {
      using Element = decltype(element);
      locate<Element>(problem_.k, tensors_.k, problem_.group, keys, address_);
      pack_keys<V, Element>(address_, keys.size(), problem_.head_dim_qk, nullptr, k_);
      locate<Element>(problem_.v, tensors_.v, problem_.group, keys, address_);
      pack_values<V, Element>(address_, keys.size(), problem_.head_dim_v, nullptr, nullptr, v_);
    });
  }
  void pack_rows(Range rows) {
    with_element<V>(problem_.q.dtype, [&](auto element) {
      using Element = decltype(element);
      locate<Element>(problem_.q, tensors_.q, 1, rows, address_);
      pack_queries<V, Element>(address_, 0, rows.size(), problem_.head_dim_qk, nullptr, q_);
    });
  }

  // Rows [first, first + count) by one tile of keys.
  void update_strip(int64_t first, int64_t count, Range keys, const T* q) {
    const core::TileRange seen = band_.visible_tiles(first, first + count, 1);
    const Range columns = {(seen.begin > keys.begin ? seen.begin : keys.begin) - keys.begin,
                           (seen.end < keys.end ? seen.end : keys.end) - keys.begin};
    if (keys.begin == 0) clear_strip(first, count);
    if (!columns.empty()) {
      score_strip(q, count, columns, keys.size());
      T before[kRows], inverse[kRows];
      softmax_strip(first, count, columns, keys.begin, before, inverse);
      add_values(first, count, columns, keys.size(), before, inverse);
    }
    if (seen.end <= keys.end) store_strip(first, count);
  }

  void clear_strip(int64_t first, int64_t count) {
    std::memset(o_ + first * padded_, 0, static_cast<size_t>(count * padded_) * sizeof(T));
    for (int64_t row = first; row < first + count; ++row) {
      max_[row] = -kInfinity<T>;
      sum_[row] = 0;
    }
  }

  void score_strip(const T* q, int64_t count, Range columns, int64_t keys) {
    const int64_t dim = problem_.head_dim_qk, padded = align_up(keys, kLanes);
    for (int64_t column = align_down(columns.begin, kPanel); column < columns.end; column += kPanel) {
      const int vecs = panel_vecs<V>(column, padded);
      kBlocks<V>.score[count - 1][vecs - 1](q, k_ + column * dim, dim, scale_, scores_ + column);
    }
  }

  // Scores to P = e^(score - m), and m and l to the new ones. O so far counts `before`, O and P V together `inverse`.
  void softmax_strip(int64_t first, int64_t count, Range columns, int64_t first_key, T (&before)[kRows],
                     T (&inverse)[kRows]) {
    constexpr int64_t kPadded = (kRows + kLanes - 1) / kLanes * kLanes;
    alignas(64) T growth[kPadded] = {}, high[kRows];
    const int64_t begin = align_down(columns.begin, kPanel), end = align_up(columns.end, kLanes);
    for (int64_t r = 0; r < count; ++r) {
      T *scores = scores_ + r * kScoreStride, *row_max = max_ + first + r;
      const Range keep = band_.visible_keys(first + r);
      mask_row(scores, begin, end, keep.begin - first_key, keep.end - first_key);
      const T found = largest<V>(scores, begin, end), now = found > *row_max ? found : *row_max;
      high[r] = now == -kInfinity<T> ? T(0) : now;
      growth[r] = *row_max - high[r];
      *row_max = now;
    }
    for (int64_t r = 0; r < kPadded; r += kLanes) exp(V::load(growth + r)).store(growth + r);
    for (int64_t r = 0; r < count; ++r) {
      double* sum = sum_ + first + r;
      const double kept = *sum * double(growth[r]);
      *sum = kept + double(exponentiate<V>(high[r], scores_ + r * kScoreStride, begin, end));
      before[r] = T(kept);
      inverse[r] = *sum == 0 ? T(0) : T(1 / *sum);
    }
  }

  void add_values(int64_t first, int64_t count, Range columns, int64_t keys, const T* before, const T* inverse) {
    for (int64_t column = 0; column < padded_; column += kPanel) {
      const int vecs = panel_vecs<V>(column, padded_);
      const T* panel = v_ + column * keys + columns.begin * vecs * kLanes;
      kBlocks<V>.value[count - 1][vecs - 1](scores_ + columns.begin, panel, columns.size(), before,
                                            o_ + first * padded_ + column, padded_);
    }
    for (int64_t r = 0; r < count; ++r) {
      T* o = o_ + (first + r) * padded_;
      if (inverse[r] == 0) {  // no key yet; values that the row does not see may not be finite
        std::memset(o, 0, static_cast<size_t>(padded_) * sizeof(T));
        continue;
      }
      const V factor = V::broadcast(inverse[r]);
      for (int64_t c = 0; c < padded_; c += kLanes) (V::load(o + c) * factor).store(o + c);
    }
  }

  void store_strip(int64_t first, int64_t count) {
    with_element<V>(problem_.o.dtype, [&](auto element) {
      using Element = decltype(element);
      std::byte* to = static_cast<std::byte*>(tensors_.o) + head_at<Element>(problem_.o, 1);
      for (int64_t row = first; row < first + count; ++row) {
        for (int64_t c = 0; c < problem_.head_dim_v; c += kLanes) {
          store_partial<V, Element>(V::load(o_ + row * padded_ + c),
                                    to + (row * problem_.o.row_stride + c) * Element::kBytes, problem_.head_dim_v - c);
        }
      }
    });
    if (!problem_.has(TESSERA_FLAG_LSE)) return;
    for (int64_t row = first; row < first + count; ++row) {
      static_cast<T*>(tensors_.lse)[lse_at_ + row] = T(core::lse_from_base_e(double(max_[row]), sum_[row]));
    }
  }

  const core::Problem& problem_;
  const tessera_tensors& tensors_;
  const CpuFa1Tiles& tiles_;
  const core::Band band_;
  const int64_t batch_, head_, padded_, lse_at_;
  T *o_, *max_;
  double* sum_;
  T *q_, *k_, *v_, *scores_;
  const std::byte** address_;
  T scale_;
};

template <class V>
void fa1_head(const CpuFa1Call& call, int64_t index, std::byte* scratch) {
  Fa1Head<V>(call, index, scratch).run();
}

inline constexpr CpuFa1Kernel kFa1Kernel = {F32x16::kRows, F32x16::kLanes, F64x8::kRows,     F64x8::kLanes,
                                            kMaxChunk,     kScoreStride,   fa1_head<F32x16>, fa1_head<F64x8>};

}  // namespace tessera::cpu::TESSERA_CPU_ISA

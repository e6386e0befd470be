// The tiled backward kernel: the stretches of keys of one (sequence, key head) against all the rows that see them.
//
//   lse, delta of every row
//   for each stretch of keys: dq = 0
//     for each chunk of up to 256 keys: pack K and V; dk = dv = 0
//       for each block of query rows (positions x heads of the group): pack Q and d_o
//         for each strip of kRows rows: S = Q K^T, dP = d_o V^T -> P, dS;  dq += dS K
//         for each strip of kRows keys: dv += P^T d_o, dk += dS^T Q
//       write dk, dv
//   dq of the stretches summed in order, written
//
// Five products, 10 * pairs * head dim FLOPs; bound by FMA. Nothing of size seqlen_q x seqlen_k exists: P and dS of a
// block are rows x 256 in L2 (a strip of them in L1), dq is one row of floats a query. Source: Dao, FlashAttention-2,
// algorithm 2, keys outermost. Invariants: a task alone writes what it writes; chunks, blocks and stretches depend on
// the head dims, the device and a sequence's own length, so no bit depends on threads or batch mates.
#pragma once

#include "backward_scores.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

template <class V>
class QueryGradients {
  using T = typename V::Scalar;
  static constexpr int64_t kLanes = V::kLanes;

 public:
  QueryGradients(const BackwardCall& call, const core::Sequence& sequence, int32_t kv_head)
      : problem_(*call.problem), tensors_(*call.tensors), sequence_(sequence), kv_head_(kv_head) {
    padded_ = call.tiles.dim_qk_padded;
  }

  // The partial dq of `stretch`, rows of one (sequence, key head).
  static T* partial(const BackwardCall& call, const core::Sequence& sequence, int64_t batch, int32_t kv_head,
                    int64_t stretch) {
    const core::Problem& p = *call.problem;
    const bool packed = p.layout_q == TESSERA_PACKED;
    const int64_t total = packed ? p.total_q : p.batch * p.seqlen_q,
                  first = packed ? sequence.q_row : batch * p.seqlen_q;
    const int64_t row = ((stretch * p.heads_kv + kv_head) * total + first) * p.group;
    return reinterpret_cast<T*>(call.partials) + row * call.tiles.dim_qk_padded;
  }
  static int64_t partial_stride(const BackwardCall& call) {
    const core::Problem& p = *call.problem;
    const int64_t total = p.layout_q == TESSERA_PACKED ? p.total_q : p.batch * p.seqlen_q;
    return p.heads_kv * total * p.group * call.tiles.dim_qk_padded;
  }

  // dq of positions [begin, end): the sum of `stretches` partial ones, `stride` elements apart, times the scale; 0 past
  // the used length.
  void finish(const T* dq, int64_t stride, int64_t stretches, int64_t begin, int64_t end) const {
    const int64_t last = at_most(end, sequence_.rows_q);
    for (int64_t i = begin; i < last; ++i) {
      for (int64_t h = 0; h < problem_.group; ++h) {
        const T* row = i < sequence_.seqlen_q ? dq + (i * problem_.group + h) * padded_ : nullptr;
        store(row, stride, stretches, i, kv_head_ * problem_.group + h);
      }
    }
  }

 private:
  void store(const T* row, int64_t stride, int64_t stretches, int64_t position, int64_t head) const {
    const V scale = V::broadcast(T(problem_.scale));
    with_element<V>(problem_.dq.dtype, [&](auto element) {
      using Element = decltype(element);
      const int64_t at = core::query_row_offset(sequence_, problem_.dq, position) + head * problem_.dq.head_stride;
      std::byte* to = static_cast<std::byte*>(tensors_.dq) + at * Element::kBytes;
      for (int64_t c = 0; c < problem_.head_dim_qk; c += kLanes) {
        V sum = V::zero();
        if (row != nullptr) {
          sum = V::load(row + c);
          for (int64_t s = 1; s < stretches; ++s) sum = sum + V::load(row + s * stride + c);
          sum = sum * scale;
        }
        store_partial<V, Element>(sum, to + c * Element::kBytes, problem_.head_dim_qk - c);
      }
    });
  }

  const core::Problem& problem_;
  const tessera_tensors& tensors_;
  const core::Sequence& sequence_;
  const int32_t kv_head_;
  int64_t padded_;
};

// The products of blocks of query rows against a chunk on vectors. Rows of dq, dk and dv lie one behind the other.
template <class V>
class VectorProducts {
  using T = typename V::Scalar;
  using Scores = ScoreGradients<V>;
  static constexpr int64_t kRows = V::kRows, kLanes = V::kLanes, kPanel = V::kVecs * V::kLanes;
  static constexpr int64_t kMaxStrips = 64;

 public:
  using Queries = QueryGradients<V>;

  VectorProducts(const BackwardCall& call, Scores& scores, std::byte* workspace)
      : tiles_(call.tiles),
        scores_(scores),
        k_panels_(Scores::template piece<T>(workspace, tiles_.k_panels_at)),
        dk_(Scores::template piece<T>(workspace, tiles_.dk_at)),
        dv_(Scores::template piece<T>(workspace, tiles_.dv_at)) {}

  // Rows that `rows` of dq, dk or dv take, and where element (row, column) of dk or dv lies.
  static int64_t whole_rows(int64_t rows) { return rows; }
  static int64_t place(int64_t row, int64_t column, int64_t padded) { return row * padded + column; }

  void load_keys(Range keys, int32_t kv_head) { scores_.load_keys(keys, kv_head, k_panels_); }

  // Rows [first, first + count) against the `columns` of the chunk that some of them see.
  void add_block(int64_t first, int64_t count, Range keys, Range columns, T* dq) {
    scores_.load_rows(first, count);
    const Range all = {round_down(columns.begin, kPanel), round_up(columns.end, kLanes)};
    for (int64_t row = 0; row < count; row += kRows) {
      const int64_t strip = at_most(count - row, kRows);
      scores_.ask_for_rows(first + tiles_.rows + row, strip);
      const Range seen = scores_.visible(first + row, strip, keys);
      Range& mine = strip_columns_[row / kRows];
      mine = {0, 0};
      if (seen.empty()) {
        scores_.clear_rows(row, strip, all);
        continue;
      }
      mine = {seen.begin - keys.begin, seen.end - keys.begin};
      scores_.differentiate(row, strip, keys, mine, all, true);
      add_query_gradients(row, strip, mine, keys.size(), dq + (first + row) * tiles_.dim_qk_padded);
    }
    for (int64_t key = columns.begin; key < columns.end; key += kRows) {
      add_key_gradients(key, at_most(columns.end - key, kRows), count);
    }
  }

 private:
  // dq of a strip += dS K.
  void add_query_gradients(int64_t row, int64_t count, Range columns, int64_t keys, T* dq) {
    const int64_t padded = tiles_.dim_qk_padded;
    for (int64_t column = 0; column < padded; column += kPanel) {
      const int vecs = panel_vecs<V>(column, padded);
      kBlocks<V>.value[count - 1][vecs - 1](scores_.grads + row * kScoreStride + columns.begin,
                                            k_panels_ + column * keys + columns.begin * vecs * kLanes, columns.size(),
                                            ones_, dq + column, padded);
    }
  }

  // dv and dk of keys [key, key + count) += P^T d_o and dS^T Q over the block's rows that see them.
  void add_key_gradients(int64_t key, int64_t count, int64_t rows) {
    const int64_t strips = (rows + kRows - 1) / kRows;
    int64_t begin = 0, end = strips;
    while (begin < end && !overlaps(strip_columns_[begin], key, count)) ++begin;
    while (begin < end && !overlaps(strip_columns_[end - 1], key, count)) --end;
    if (begin == end) return;
    const Range depth = {begin * kRows, at_most(end * kRows, rows)};
    const int64_t at = depth.begin * kScoreStride + key;
    add_products(scores_.probs + at, scores_.d_o_panels, depth, rows, count, tiles_.dim_v_padded,
                 dv_ + key * tiles_.dim_v_padded);
    add_products(scores_.grads + at, scores_.q_panels, depth, rows, count, tiles_.dim_qk_padded,
                 dk_ + key * tiles_.dim_qk_padded);
  }
  static bool overlaps(Range columns, int64_t key, int64_t count) {
    return columns.begin < key + count && columns.end > key;
  }
  static void add_products(const T* tile, const T* panels, Range depth, int64_t rows, int64_t count, int64_t padded,
                           T* to) {
    for (int64_t column = 0; column < padded; column += kPanel) {
      const int vecs = panel_vecs<V>(column, padded);
      kGradientBlocks<V>.key[count - 1][vecs - 1](tile, panels + column * rows + depth.begin * vecs * kLanes,
                                                  depth.size(), to + column, padded);
    }
  }

  struct Ones {
    T value[kRows];
    constexpr Ones() : value() {
      for (T& one : value) one = T(1);
    }
  };
  static constexpr Ones kOnes{};

  const BackwardTiles& tiles_;
  Scores& scores_;
  T *k_panels_, *dk_, *dv_;
  const T* ones_ = kOnes.value;
  Range strip_columns_[kMaxStrips];
};

template <class V, class Products>
class BackwardRun {
  using T = typename V::Scalar;
  using Scores = ScoreGradients<V>;
  using Queries = typename Products::Queries;
  static constexpr int64_t kLanes = V::kLanes;

 public:
  BackwardRun(const BackwardCall& call, const BackwardTask& task, std::byte* workspace)
      : call_(call),
        task_(task),
        problem_(*call.problem),
        tiles_(call.tiles),
        scores_(call, workspace),
        products_(call, scores_, workspace),
        dk_(Scores::template piece<T>(workspace, tiles_.dk_at)),
        dv_(Scores::template piece<T>(workspace, tiles_.dv_at)),
        dq_(Scores::template piece<T>(workspace, tiles_.dq_at)),
        stretch_dq_(Scores::template piece<T>(workspace, tiles_.stretch_dq_at)) {}

  void run() {
    const core::Sequence& sequence = task_.sequence;
    const int32_t head = task_.kv_head * problem_.group;
    scores_.begin_heads(sequence, task_.batch, head, head + problem_.group);
    double* d_sinks = nullptr;
    if (task_.stretch_begin == 0 && problem_.has(TESSERA_FLAG_D_SINKS)) {
      d_sinks = call_.d_sinks + task_.batch * problem_.heads_q;
      for (int32_t h = head; h < head + problem_.group; ++h) d_sinks[h] = 0;
    }
    scores_.prepare_rows(0, scores_.row_total, d_sinks);
    const int64_t length = stretch_keys(problem_, tiles_.chunk, sequence.seqlen_k);
    for (int64_t stretch = task_.stretch_begin; stretch < task_.stretch_end; ++stretch) {
      const Range keys = {stretch * length, at_most((stretch + 1) * length, sequence.seqlen_k)};
      if (stretch > 0 && keys.empty()) break;
      run_stretch(keys, stretch);
    }
    if (task_.stretch_begin == 0) clear_unused_keys();
    if (tiles_.whole) Queries(call_, sequence, task_.kv_head).finish(dq_, 0, 1, 0, sequence.rows_q);
  }

 private:
  void run_stretch(Range keys, int64_t stretch) {
    const bool adds = tiles_.whole && stretch > task_.stretch_begin;
    T* dq = !tiles_.whole ? Queries::partial(call_, task_.sequence, task_.batch, task_.kv_head, stretch)
            : adds        ? stretch_dq_
                          : dq_;
    const int64_t elements = Products::whole_rows(scores_.row_total) * tiles_.dim_qk_padded;
    std::memset(dq, 0, static_cast<size_t>(elements) * sizeof(T));
    for (int64_t begin = keys.begin; begin < keys.end; begin += tiles_.chunk) {
      run_chunk({begin, at_most(begin + tiles_.chunk, keys.end)}, dq);
    }
    for (int64_t c = 0; adds && c < elements; c += kLanes) (V::load(dq_ + c) + V::load(dq + c)).store(dq_ + c);
  }

  void run_chunk(Range keys, T* dq) {
    const int64_t whole = Products::whole_rows(keys.size());
    std::memset(dk_, 0, static_cast<size_t>(whole * tiles_.dim_qk_padded) * sizeof(T));
    std::memset(dv_, 0, static_cast<size_t>(whole * tiles_.dim_v_padded) * sizeof(T));
    const int64_t rows = scores_.row_total;
    if (rows > 0 && !scores_.visible(0, rows, keys).empty()) {
      products_.load_keys(keys, task_.kv_head);
      for (int64_t first = 0; first < rows; first += tiles_.rows) {
        const int64_t count = at_most(rows - first, tiles_.rows);
        const Range seen = scores_.visible(first, count, keys);
        if (!seen.empty())
          products_.add_block(first, count, keys, {seen.begin - keys.begin, seen.end - keys.begin}, dq);
      }
    }
    store_keys(problem_.dk, scores_.tensors.dk, dk_, tiles_.dim_qk_padded, problem_.head_dim_qk, T(problem_.scale),
               keys);
    store_keys(problem_.dv, scores_.tensors.dv, dv_, tiles_.dim_v_padded, problem_.head_dim_v, T(1), keys);
  }

  // Rows `keys` of dk or dv: `values` times scale, 0 where null.
  void store_keys(const core::Operand& operand, void* data, const T* values, int64_t padded, int64_t dim, T scale,
                  Range keys) const {
    const V factor = V::broadcast(scale);
    with_element<V>(operand.dtype, [&](auto element) {
      using Element = decltype(element);
      for (int64_t j = keys.begin; j < keys.end; ++j) {
        const int64_t at = core::key_row_offset(problem_, task_.sequence, operand, j);
        std::byte* to = static_cast<std::byte*>(data) + (at + task_.kv_head * operand.head_stride) * Element::kBytes;
        for (int64_t c = 0; c < dim; c += kLanes) {
          const V value =
              values != nullptr ? V::load(values + Products::place(j - keys.begin, c, padded)) * factor : V::zero();
          store_partial<V, Element>(value, to + c * Element::kBytes, dim - c);
        }
      }
    });
  }

  void clear_unused_keys() const {
    const Range unused = {task_.sequence.seqlen_k, task_.sequence.rows_k};
    store_keys(problem_.dk, scores_.tensors.dk, nullptr, 0, problem_.head_dim_qk, T(0), unused);
    store_keys(problem_.dv, scores_.tensors.dv, nullptr, 0, problem_.head_dim_v, T(0), unused);
  }

  const BackwardCall& call_;
  const BackwardTask& task_;
  const core::Problem& problem_;
  const BackwardTiles& tiles_;
  Scores scores_;
  Products products_;
  T *dk_, *dv_, *dq_, *stretch_dq_;
};

template <class V, class Products>
void backward_task(const BackwardCall& call, const BackwardTask& task, std::byte* workspace) {
  BackwardRun<V, Products>(call, task, workspace).run();
}
template <class Queries>
void finish_queries(const BackwardCall& call, const FinishTask& task) {
  const int64_t stretches = count_stretches(*call.problem, call.tiles.chunk, task.sequence.seqlen_k);
  Queries(call, task.sequence, task.kv_head)
      .finish(Queries::partial(call, task.sequence, task.batch, task.kv_head, 0), Queries::partial_stride(call),
              stretches, task.begin, task.end);
}

}  // namespace tessera::cpu::TESSERA_CPU_ISA

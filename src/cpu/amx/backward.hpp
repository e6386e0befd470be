// The backward kernel's products on matrix tiles, for inputs of one (bf16), two (f16) or three (f32) bf16 parts. Rows
// are positions x heads of a group; 32 of them are a unit and lie in the lanes, keys go down the rows of the tiles:
//
//   for each block of query rows against a chunk of keys: pack Q and d_o of its units in two forms each
//     for each unit, for each 32 keys that it sees:
//       S^T = K Q^T, dP^T = V d_o^T on the tiles, then P^T, dS^T on the vectors
//     for each 32 keys: dV += P^T d_o, dK += dS^T Q, over the units
//     for each unit: dQ^T += K^T dS^T, over the keys
//
// No P and no dS is transposed: dS is stored twice, as two products read it. Sums of dK, dV and dQ^T lie in memory as
// the tiles that they are, and are put into rows where they are written.
// Work: per 32 x 32 scores 10 * 1024 * head dim FLOPs times the 1, 3 to 4 or 6 pairs of parts on the tiles, 1024
// exponentials and the splitting of P and dS on the vectors. Invariants: as backward.hpp.
#pragma once

#include "cpu/amx/gradients.hpp"
#include "cpu/backward.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

inline constexpr int64_t kUnit = 32;  // rows, and keys of a step

// dq as the tiles left it: [unit][32 columns][half of the columns][half of the rows], a tile 16 columns x 16 rows.
template <class V>
class TileQueries {
 public:
  TileQueries(const BackwardCall& call, const core::Sequence& sequence, int32_t kv_head)
      : problem_(*call.problem),
        tensors_(*call.tensors),
        sequence_(sequence),
        kv_head_(kv_head),
        padded_(call.tiles.dim_qk_padded) {}

  static float* partial(const BackwardCall& call, const core::Sequence& sequence, int64_t batch, int32_t kv_head,
                        int64_t stretch) {
    const core::Problem& p = *call.problem;
    const int64_t first = p.layout_q == TESSERA_PACKED ? sequence.q_row : batch * p.seqlen_q;
    const int64_t row =
        (stretch * p.heads_kv + kv_head) * tile_partial_rows(p) + round_up(first * p.group, kUnit) + batch * kUnit;
    return reinterpret_cast<float*>(call.partials) + row * call.tiles.dim_qk_padded;
  }
  static int64_t partial_stride(const BackwardCall& call) {
    return call.problem->heads_kv * tile_partial_rows(*call.problem) * call.tiles.dim_qk_padded;
  }

  // As QueryGradients'.
  void finish(const float* dq, int64_t stride, int64_t stretches, int64_t begin, int64_t end) const {
    const int64_t group = problem_.group, last = at_most(end, sequence_.rows_q) * group;
    for (int64_t row = begin * group; row < last; row += 16) {
      const bool used = row < sequence_.seqlen_q * group;
      for (int64_t c = 0; c < problem_.head_dim_qk; c += 16) {
        alignas(64) float rows[16 * 16] = {};
        if (used) sum(dq + place(row, c), stride, stretches, rows);
        store(row, at_most(last - row, 16), c, rows);
      }
    }
  }

 private:
  int64_t place(int64_t row, int64_t column) const {
    return ((row / kUnit * (padded_ / 32) + column / 32) * 4 + column % 32 / 16 * 2 + row % kUnit / 16) * kTileFloats;
  }
  void sum(const float* from, int64_t stride, int64_t stretches, float* rows) const {
    const V scale = V::broadcast(float(problem_.scale));
    V columns[16];
    for (int c = 0; c < 16; ++c) {
      V total = V::load(from + c * 16);
      for (int64_t s = 1; s < stretches; ++s) total = total + V::load(from + s * stride + c * 16);
      columns[c] = total * scale;
    }
    V::store_transposed(columns, rows, 16, 16);
  }
  void store(int64_t first, int64_t count, int64_t c, const float* rows) const {
    with_element<V>(problem_.dq.dtype, [&](auto element) {
      using Element = decltype(element);
      for (int64_t r = 0; r < count; ++r) {
        const int64_t position = (first + r) / problem_.group, head = (first + r) % problem_.group;
        const int64_t at = core::query_row_offset(sequence_, problem_.dq, position) +
                           (kv_head_ * problem_.group + head) * problem_.dq.head_stride;
        const V value = position < sequence_.seqlen_q ? V::load(rows + r * 16) : V::zero();
        store_partial<V, Element>(value, static_cast<std::byte*>(tensors_.dq) + (at + c) * Element::kBytes,
                                  problem_.head_dim_qk - c);
      }
    });
  }

  const core::Problem& problem_;
  const tessera_tensors& tensors_;
  const core::Sequence& sequence_;
  const int32_t kv_head_;
  const int64_t padded_;
};

template <int kParts, class Tiles, class V>
class TileProducts {
  using Scores = ScoreGradients<V>;

 public:
  using Queries = TileQueries<V>;

  TileProducts(const BackwardCall& call, Scores& scores, std::byte* workspace)
      : problem_(*call.problem),
        sizes_(call.tiles),
        scores_(scores),
        qk_blocks_(sizes_.dim_qk_padded / 32),
        v_blocks_(sizes_.dim_v_padded / 32),
        key_units_(sizes_.chunk / kUnit),
        k_rows_(Scores::template piece<uint16_t>(workspace, sizes_.k_columns_at)),
        v_rows_(Scores::template piece<uint16_t>(workspace, sizes_.v_columns_at)),
        k_dims_(Scores::template piece<uint16_t>(workspace, sizes_.k_panels_at)),
        q_columns_(Scores::template piece<uint16_t>(workspace, sizes_.q_panels_at)),
        d_o_columns_(Scores::template piece<uint16_t>(workspace, sizes_.d_o_panels_at)),
        q_pairs_(Scores::template piece<uint16_t>(workspace, sizes_.q_pairs_at)),
        d_o_pairs_(Scores::template piece<uint16_t>(workspace, sizes_.d_o_pairs_at)),
        p_rows_(Scores::template piece<uint16_t>(workspace, sizes_.probs_at)),
        g_rows_(Scores::template piece<uint16_t>(workspace, sizes_.grads_at)),
        g_pairs_(Scores::template piece<uint16_t>(workspace, sizes_.grad_pairs_at)),
        sums_(Scores::template piece<float>(workspace, sizes_.sums_at)),
        bias_(Scores::template piece<float>(workspace, sizes_.bias_at)),
        dk_(Scores::template piece<float>(workspace, sizes_.dk_at)),
        dv_(Scores::template piece<float>(workspace, sizes_.dv_at)),
        gradients_(scores) {
    tiles_.begin();
  }
  ~TileProducts() { Tiles::end(); }
  TileProducts(const TileProducts&) = delete;
  TileProducts& operator=(const TileProducts&) = delete;

  static int64_t whole_rows(int64_t rows) { return round_up(rows, kUnit); }
  // dk and dv: [32 keys][32 columns][half of the keys][half of the columns], a tile 16 keys x 16 columns.
  static int64_t place(int64_t row, int64_t column, int64_t padded) {
    return ((row / kUnit * (padded / 32) + column / 32) * 4 + row % kUnit / 16 * 2 + column % 32 / 16) * kTileFloats +
           row % 16 * 16;
  }

  void load_keys(Range keys, int32_t kv_head) {
    pack_keys(problem_.k, scores_.tensors.k, keys, kv_head, problem_.head_dim_qk, qk_blocks_, k_rows_, k_dims_);
    pack_keys(problem_.v, scores_.tensors.v, keys, kv_head, problem_.head_dim_v, v_blocks_, v_rows_, nullptr);
  }

  // Rows [first, first + count) against the `columns` of the chunk that some of them see.
  void add_block(int64_t first, int64_t count, Range keys, Range columns, float* dq) {
    const int64_t units = (count + kUnit - 1) / kUnit;
    for (int64_t u = 0; u < units; ++u) load_unit(u, first + u * kUnit, keys);
    for (int64_t key = columns.begin / kUnit; key * kUnit < columns.end; ++key) add_keys(key, units);
    for (int64_t u = 0; u < units; ++u) add_query_gradients(u, dq + (first + u * kUnit) * sizes_.dim_qk_padded);
  }

 private:
  static constexpr int64_t kMostUnits = 8;
  static constexpr int64_t kStepWords = kParts * 2 * kTileElements;  // P or dS of 32 x 32
  // Steps of 32 keys that a unit sees, of the chunk, and those that all of its rows see.
  struct UnitSteps {
    Range seen, whole;
  };

  // Rows [part][16 keys][32 of the head dim] and dims [part][16 of the head dim][32 keys] (null: none) of a chunk.
  void pack_keys(const core::Operand& operand, const void* data, Range keys, int32_t kv_head, int64_t dim,
                 int64_t blocks, uint16_t* rows, uint16_t* dims) const {
    with_element<V>(operand.dtype, [&](auto element) {
      using Element = decltype(element);
      scores_.locate_keys(operand, data, keys, kv_head, Element::kBytes);
      const int64_t stripe = blocks * kTileElements, part = 2 * key_units_ * stripe;
      for (int64_t first = 0; first < keys.size(); first += kUnit) {
        const std::byte* from[kUnit];
        for (int64_t r = 0; r < kUnit; ++r) {
          from[r] = first + r < keys.size() ? scores_.row_address[first + r] : nullptr;
          if (first + kUnit + r < keys.size())
            prefetch_row(scores_.row_address[first + kUnit + r], dim * Element::kBytes);
        }
        pack_rows<kParts, false, V, Element>(
            from, dim, blocks * 32, {rows + first / 16 * stripe, kTileElements, part}, stripe,
            {dims == nullptr ? nullptr : dims + first / kUnit * kTileElements, key_units_ * kTileElements, part});
      }
    });
  }

  // Packs Q and d_o of a unit and finds what its lanes see of the chunk.
  void load_unit(int64_t u, int64_t first, Range keys) {
    scores_.ask_for_rows(first + sizes_.rows, kUnit);
    with_element<V>(problem_.q.dtype, [&](auto element) {
      pack_unit<decltype(element)>(problem_.q, scores_.tensors.q, first, problem_.head_dim_qk, sizes_.dim_qk_padded,
                                   q_columns_ + u * kParts * 2 * qk_blocks_ * kTileElements,
                                   q_pairs_ + u * kParts * 2 * qk_blocks_ * kTileElements);
    });
    with_element<V>(problem_.d_o.dtype, [&](auto element) {
      pack_unit<decltype(element)>(problem_.d_o, scores_.tensors.d_o, first, problem_.head_dim_v, sizes_.dim_v_padded,
                                   d_o_columns_ + u * kParts * 2 * v_blocks_ * kTileElements,
                                   d_o_pairs_ + u * kParts * 2 * v_blocks_ * kTileElements);
    });
    const int64_t count = at_most(scores_.row_total - first, kUnit);
    const core::TileRange seen =
        scores_.band.visible_tiles(scores_.position(first), scores_.position(first + count - 1) + 1, kUnit);
    const int64_t begin = keys.begin / kUnit, end = (keys.end + kUnit - 1) / kUnit;
    const auto within = [&](int64_t from, int64_t to) {
      return Range{at_least(from, begin) - begin, at_most(to, end) - begin};
    };
    steps_[u] = {within(seen.begin, seen.end), within(seen.unmasked_begin, seen.unmasked_end)};
    fill_lanes(first, count, keys, lanes_[u]);
  }
  // Columns [part][32 of the head dim][half of the rows] and pairs [part][16 of the head dim].
  template <class Element>
  void pack_unit(const core::Operand& operand, const void* data, int64_t first, int64_t dim, int64_t padded,
                 uint16_t* columns, uint16_t* pairs) const {
    const std::byte* rows[kUnit];
    for (int64_t r = 0; r < kUnit; ++r)
      rows[r] = first + r < scores_.row_total ? scores_.row_of(operand, data, first + r, Element::kBytes) : nullptr;
    const int64_t part = padded / 16 * kTileElements;
    pack_rows<kParts, true, V, Element>(rows, dim, padded, {columns, 2 * kTileElements, part}, kTileElements,
                                        {pairs, kTileElements, part});
  }
  void fill_lanes(int64_t first, int64_t count, Range keys, UnitLanes& lanes) const {
    lanes.first = first;
    lanes.first_key = keys.begin;
    for (int64_t i = 0; i < kUnit; ++i) {
      if (i >= count) {  // of no row: P and dS are 0
        lanes.lse[i] = std::numeric_limits<float>::infinity();
        lanes.delta[i] = lanes.slope[i] = lanes.diagonal[i] = lanes.begin[i] = lanes.end[i] = 0;
        continue;
      }
      const int64_t row = first + i, position = scores_.position(row);
      const auto quiet = [](float x) { return x == x ? x : std::numeric_limits<float>::quiet_NaN(); };
      lanes.lse[i] = quiet(scores_.lse(row));
      lanes.delta[i] = quiet(scores_.delta(row));
      const Range seen = scores_.band.visible_keys(position);
      lanes.begin[i] = float(at_least(at_most(seen.begin - keys.begin, sizes_.chunk), 0));
      lanes.end[i] = float(at_least(at_most(seen.end - keys.begin, sizes_.chunk), 0));
      lanes.diagonal[i] = float(scores_.band.diagonal(position) - keys.begin);
      lanes.slope[i] = problem_.has(TESSERA_FLAG_ALIBI) ? -scores_.slope(row) : 0.0f;
    }
  }

  // 32 keys: P and dS of the units that see them, then dv and dk of them += P^T d_o and dS^T Q.
  void add_keys(int64_t key, int64_t units) {
    Range seeing = {0, units};
    while (!seeing.empty() && !sees(seeing.begin, key)) ++seeing.begin;
    while (!seeing.empty() && !sees(seeing.end - 1, key)) --seeing.end;
    if (seeing.empty()) return;
    for (int64_t u = seeing.begin; u < seeing.end; ++u) {
      multiply_rows(k_rows_, q_columns_, qk_blocks_, u, key, sums_);
      multiply_rows(v_rows_, d_o_columns_, v_blocks_, u, key, sums_ + kSumFloats);
      if (problem_.has(TESSERA_FLAG_BIAS)) turn_bias(u, key);
      const bool whole = key >= steps_[u].whole.begin && key < steps_[u].whole.end;
      gradients_.differentiate(
          lanes_[u], !whole, key * kUnit, sums_, bias_,
          {p_rows_ + u * kStepWords, g_rows_ + u * kStepWords, g_pairs_ + (u * key_units_ + key) * kStepWords});
    }
    add_rows(p_rows_, d_o_pairs_, v_blocks_, key, seeing, dv_);
    add_rows(g_rows_, q_pairs_, qk_blocks_, key, seeing, dk_);
  }
  bool sees(int64_t unit, int64_t key) const { return key >= steps_[unit].seen.begin && key < steps_[unit].seen.end; }
  // The bias of a unit's rows and the keys among 32 that they see, with rows in the lanes as in a step's S.
  void turn_bias(int64_t unit, int64_t key) const {
    const UnitLanes& lanes = lanes_[unit];
    float* rows = bias_ + kSumFloats;
    for (int64_t i = 0; i < kUnit; ++i) {
      const Range columns = {at_least(int64_t(lanes.begin[i]) - key * kUnit, 0),
                             at_most(int64_t(lanes.end[i]) - key * kUnit, kUnit)};
      if (columns.empty()) continue;
      const int64_t row = lanes.first + i;
      load_bias<V>(problem_, scores_.tensors, {scores_.batch, scores_.head(row), scores_.position(row)},
                   lanes.first_key + key * kUnit, columns, rows + i * kUnit);
    }
    for (int64_t a = 0; a < 2; ++a) {
      for (int64_t h = 0; h < 2; ++h) {
        V block[16];
        for (int64_t r = 0; r < 16; ++r) block[r] = V::load(rows + (16 * h + r) * kUnit + 16 * a);
        V::store_transposed(block, bias_ + (2 * a + h) * kTileFloats, 16, 16);
      }
    }
  }
  // S^T or dP^T of a unit and 32 keys.
  void multiply_rows(const uint16_t* rows, const uint16_t* columns, int64_t blocks, int64_t unit, int64_t key,
                     float* sums) {
    const int64_t stripe = blocks * kTileElements;
    zero_sums(tiles_);
    multiply_scores<kParts>(tiles_, {rows + key * 2 * stripe, stripe, kTileElements, 2 * key_units_ * stripe},
                            {columns + unit * kParts * 2 * stripe, kTileElements, 2 * kTileElements, 2 * stripe},
                            blocks);
    store_sums(tiles_, sums);
  }
  void add_rows(const uint16_t* rows, const uint16_t* pairs, int64_t blocks, int64_t key, Range units, float* to) {
    for (int64_t block = 0; block < blocks; ++block) {
      float* sums = to + (key * blocks + block) * kSumFloats;
      load_sums(tiles_, sums);
      multiply_others<kParts>(tiles_, {rows + units.begin * kStepWords, kTileElements, kStepWords, 2 * kTileElements},
                              {pairs + (units.begin * kParts * blocks + block) * 2 * kTileElements, kTileElements,
                               kParts * blocks * 2 * kTileElements, blocks * 2 * kTileElements},
                              units.size());
      store_sums(tiles_, sums);
    }
  }

  // dq of a unit += K^T dS^T over the keys that it sees.
  void add_query_gradients(int64_t unit, float* dq) {
    const Range seen = steps_[unit].seen;
    if (seen.empty()) return;
    for (int64_t block = 0; block < qk_blocks_; ++block) {
      float* sums = dq + block * kSumFloats;
      load_sums(tiles_, sums);
      multiply_others<kParts>(
          tiles_,
          {k_dims_ + (block * 2 * key_units_ + seen.begin) * kTileElements, key_units_ * kTileElements, kTileElements,
           key_units_ * 2 * qk_blocks_ * kTileElements},
          {g_pairs_ + (unit * key_units_ + seen.begin) * kStepWords, kTileElements, kStepWords, 2 * kTileElements},
          seen.size());
      store_sums(tiles_, sums);
    }
  }

  const core::Problem& problem_;
  const BackwardTiles& sizes_;
  Scores& scores_;
  const int64_t qk_blocks_, v_blocks_, key_units_;
  uint16_t *k_rows_, *v_rows_, *k_dims_, *q_columns_, *d_o_columns_, *q_pairs_, *d_o_pairs_, *p_rows_, *g_rows_,
      *g_pairs_;
  float *sums_, *bias_, *dk_, *dv_;
  const TileGradients<kParts, V> gradients_;
  Tiles tiles_;
  UnitSteps steps_[kMostUnits];
  UnitLanes lanes_[kMostUnits];
};

}  // namespace tessera::cpu::TESSERA_CPU_ISA

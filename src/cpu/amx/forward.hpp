// Forward attention on matrix tiles (AMX) for bf16, f16 and f32. Everything is transposed: S^T = K Q^T and O^T = V^T
// P^T keep queries in the lanes, so no horizontal operation and no transpose stands in the main loop.
//
// One work item is some units of one (batch, kv head); a unit is 32 rows of one query head. All units of an item share
// each packed chunk of K and V, which are packed once per item and stay in L2 beside the units' Q and O, because L3
// cannot feed the tiles. For item / for chunk of 256 keys / for unit / for step of 64 keys:
//     P^T(step) = exp2(S^T - row_max) on the vector units, and between its pieces, product by product, on the tiles
//     O^T += V^T P^T of steps before and then S^T(step + 1) = K Q^T, also where these steps are another unit's
// Within one instruction stream both units then work at once. Where O is larger than what L1 has left, P of a whole
// chunk is multiplied at once, a share of O's rows in each step of the next chunk or unit, so that O passes the
// registers once a chunk; elsewhere P of the step before.
// O is rescaled only when a row's maximum grew by more than 2^8: P stays below 2^8, and the sum keeps its accuracy. So
// a plain step takes the maximum that is there, and is repeated where a sum then shows that it was too small.
// Work: 4 * 32 * 64 * head_dim FLOPs a step on the tiles, 2048 exponentials on the vector units.
// Memory of a task, in this order: S (2 steps), P (2 steps or chunks; of one part and single steps it stands in S), row
// scratch, K chunk, V chunk, units' Q, O, row_max and row_sum.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/amx/probabilities.hpp"
#include "cpu/amx/products.hpp"
#include "cpu/amx/task.hpp"
#include "cpu/load.hpp"
#include "kernel_entry.hpp"
#include "sequence.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

// The part of a problem that stays fixed over an item.
struct ItemContext {
  const core::Problem* problem;
  const tessera_tensors* tensors;
  const amx::Shape* shape;
  core::Sequence sequence;
  core::Band band;
  int64_t batch;
  int32_t head_kv;
};

// 32 query rows of one head, with their memory.
struct Unit {
  int64_t row;   // first row
  int64_t rows;  // 1..32 rows that exist
  int32_t head;
  RowBounds bounds;
  core::TileRange steps;  // of the whole sequence
  ScoreOptions options;
  uint16_t* q;
  float* o;
  UnitStatistics statistics;
  bool has_maximum;  // every row
};

// Keys [kStepKeys * step, ...) of one unit; no unit: nothing.
struct UnitStep {
  Unit* unit = nullptr;
  int64_t step = 0;
};

// Steps [begin, end) of a unit, whose P stands from `p` on and meets V together; they grow up to `last`, from `first`
// but for those that went into O before. The first `stripes` pairs of O's stripes have them already.
struct ValueSteps {
  Unit* unit = nullptr;
  int64_t begin = 0, end = 0, first = 0, last = 0;
  uint16_t* p = nullptr;
  int64_t stripes = 0;
};

template <int kParts, class Tiles, class V>
class ForwardTask {
 public:
  ForwardTask(const ItemContext& context, std::byte* memory)
      : context_(context), shape_(*context.shape), memory_(memory, shape_) {}

  // Units [unit_begin, unit_end) of the item's (batch, kv head).
  void run(int64_t unit_begin, int64_t unit_end) {
    Unit units[amx::kMaxUnits];
    const int64_t count = unit_end - unit_begin;
    core::Range chunks{0, 0};
    for (int64_t u = 0; u < count; ++u) {
      start_unit(units[u], unit_begin + u, u);
      const core::TileRange& steps = units[u].steps;
      if (steps.begin >= steps.end) continue;
      const core::Range own{steps.begin / kChunkSteps, (steps.end - 1) / kChunkSteps + 1};
      chunks = chunks.empty() ? own
                              : core::Range{own.begin < chunks.begin ? own.begin : chunks.begin,
                                            own.end > chunks.end ? own.end : chunks.end};
    }
    for (int64_t chunk = chunks.begin; chunk < chunks.end; ++chunk) {
      pack_chunk(chunk);
      asked_ = chunk + 1 < chunks.end ? (chunk + 1) * kChunkKeys : context_.sequence.seqlen_k;
      run_chunk(units, count, chunk);
    }
    for (int64_t u = 0; u < count; ++u) finish_unit(units[u]);
  }

 private:
  static constexpr int64_t kChunkKeys = amx::kChunkKeys;
  static constexpr int64_t kChunkSteps = kChunkKeys / kStepKeys;
  static constexpr int64_t kBytes = PartsElement<kParts>::kBytes;

  // Of an element of q, k or v.
  static const std::byte* address(const void* data, int64_t element) {
    return static_cast<const std::byte*>(data) + element * kBytes;
  }

  void start_unit(Unit& unit, int64_t index, int64_t slot) {
    const core::Problem& problem = *context_.problem;
    const core::Sequence& sequence = context_.sequence;
    unit.row = index / problem.group * kUnitRows;
    unit.head = context_.head_kv * problem.group + static_cast<int32_t>(index % problem.group);
    unit.rows = sequence.rows_q - unit.row < kUnitRows ? sequence.rows_q - unit.row : kUnitRows;
    unit.steps = context_.band.visible_tiles(unit.row, unit.row + unit.rows, kStepKeys);
    unit.q = memory_.q + slot * shape_.q_elements;
    unit.o = memory_.o + slot * shape_.o_elements;
    unit.statistics = {memory_.statistics + slot * 2 * kUnitRows, memory_.statistics + (slot * 2 + 1) * kUnitRows};
    unit.options = score_options(unit.head);
    unit.has_maximum = false;
    std::memset(unit.o, 0, static_cast<size_t>(shape_.o_elements) * 4);
    ask_queries(problem.q, context_.tensors->q, unit, problem.head_dim_qk * kBytes);
    for (int i = 0; i < kUnitRows; ++i) {
      const int64_t row = unit.row + i;
      const core::Range keys = row < sequence.seqlen_q ? context_.band.visible_keys(row) : core::Range{0, 0};
      unit.bounds.begin[i] = keys.begin;
      unit.bounds.end[i] = keys.end;
      unit.statistics.row_max[i] = -kInfinity;
      unit.statistics.row_sum[i] = 0;
    }
    // Rows past the used length are masked as a whole: such a unit has no plain steps.
    if (unit.row + kUnitRows > sequence.seqlen_q)
      unit.steps.unmasked_begin = unit.steps.unmasked_end = unit.steps.begin;
    for (int half = 0; half < 2; ++half) {
      const std::byte* rows[16];
      for (int r = 0; r < 16; ++r) {
        const int64_t row = unit.row + 16 * half + r;
        rows[r] = row < sequence.seqlen_q
                      ? address(context_.tensors->q,
                                core::query_row_offset(sequence, problem.q, row) + unit.head * problem.q.head_stride)
                      : nullptr;
      }
      pack_queries<kParts, V>(rows, problem.head_dim_qk, shape_.qk_padded, half, memory_.scratch, unit.q);
    }
  }

  // Asks for the rows of the unit behind `unit` in an operand of q's layout.
  void ask_queries(const core::Operand& operand, const void* data, const Unit& unit, int64_t row_bytes) const {
    const bool last = unit.head + 1 == (context_.head_kv + 1) * context_.problem->group;
    const int64_t row = last ? unit.row + kUnitRows : unit.row;
    const int64_t head = last ? context_.head_kv * context_.problem->group : unit.head + 1;
    const int64_t bytes = core::dtype_bytes(operand.dtype);
    for (int64_t r = row; r < row + kUnitRows && r < context_.sequence.seqlen_q; ++r) {
      const auto* from = static_cast<const std::byte*>(data) +
                         (core::query_row_offset(context_.sequence, operand, r) + head * operand.head_stride) * bytes;
      for (int64_t byte = 0; byte < row_bytes; byte += 64) __builtin_prefetch(from + byte, 0, 2);
    }
  }

  ScoreOptions score_options(int32_t head) const {
    const core::Problem& problem = *context_.problem;
    ScoreOptions options{};
    options.softcap = static_cast<float>(problem.softcap);
    if (problem.has(TESSERA_FLAG_ALIBI))
      options.slope = context_.tensors->alibi_slopes[context_.batch * problem.alibi_stride + head];
    options.keys = context_.sequence.seqlen_k;
    options.biased = problem.has(TESSERA_FLAG_BIAS);
    options.batch = context_.batch;
    options.head = head;
    options.problem = &problem;
    options.tensors = context_.tensors;
    options.transforms = problem.softcap > 0 || options.biased || options.slope != 0 || problem.scale < 0;
    options.factor = static_cast<float>(options.transforms ? problem.scale : problem.scale * core::kLog2E);
    return options;
  }

  void pack_chunk(int64_t chunk) {
    const core::Problem& problem = *context_.problem;
    const core::Sequence& sequence = context_.sequence;
    const std::byte* k = address(context_.tensors->k, context_.head_kv * problem.k.head_stride);
    const std::byte* v = address(context_.tensors->v, context_.head_kv * problem.v.head_stride);
    const auto row_of = [&](const core::Operand& operand, const std::byte* base, int64_t j) {
      const int64_t key = chunk * kChunkKeys + j;
      return key < sequence.seqlen_k ? address(base, core::key_row_offset(problem, sequence, operand, key)) : nullptr;
    };
    for (int64_t j = 0; j < kChunkKeys; ++j) {
      const std::byte* row = row_of(problem.k, k, j);
      pack_key<kParts, V>(row, row != nullptr ? problem.head_dim_qk : 0, shape_.qk_padded, j, kChunkKeys, memory_.k);
    }
    for (int64_t block = 0; block < kChunkKeys / 32; ++block) {
      const std::byte* rows[32];
      for (int64_t j = 0; j < 32; ++j) rows[j] = row_of(problem.v, v, block * 32 + j);
      pack_values<kParts, V>(rows, problem.head_dim_v, shape_.v_padded, block, kChunkKeys, memory_.v);
    }
  }

  // Steps of a unit in a chunk.
  static core::Range steps_in(const Unit& unit, int64_t chunk) {
    const int64_t begin = chunk * kChunkSteps, end = begin + kChunkSteps;
    return {unit.steps.begin > begin ? unit.steps.begin : begin, unit.steps.end < end ? unit.steps.end : end};
  }
  // The step behind `now`, or the first one of the units from `first` on.
  static UnitStep next_step(UnitStep now, Unit* first, const Unit* end, int64_t chunk) {
    if (now.unit != nullptr && now.step + 1 < steps_in(*now.unit, chunk).end) return {now.unit, now.step + 1};
    for (Unit* unit = now.unit != nullptr ? now.unit + 1 : first; unit != end; ++unit) {
      const core::Range steps = steps_in(*unit, chunk);
      if (steps.begin < steps.end) return {unit, steps.begin};
    }
    return {};
  }

  void run_chunk(Unit* units, int64_t count, int64_t chunk) {
    UnitStep now = next_step({}, units, units + count, chunk);
    if (now.unit == nullptr) return;
    first_step_ = chunk * kChunkSteps;
    ready_ = own_ = {};
    compute_scores(now, memory_.scores[0]);
    int parity = 0, p_parity = 0;
    for (; now.unit != nullptr; parity ^= 1) {
      Unit& unit = *now.unit;
      const UnitStep next = next_step(now, units, units + count, chunk);
      if (own_.unit == nullptr) {
        const int64_t most = now.step + shape_.value_steps, end = steps_in(unit, chunk).end;
        own_ = {&unit, now.step, now.step, now.step, most < end ? most : end, memory_.p[p_parity], 0};
        p_parity ^= 1;
      }
      float* scores = memory_.scores[parity];
      V row_max[2];
      const bool guessed = unit.has_maximum && !unit.options.transforms && !is_masked(now);
      const float factor = guessed ? unit.options.factor : find_maximum(now, scores);
      load_maximum(unit, row_max);
      ProbabilityPieces<kParts, V> pieces(scores, factor, row_max, probabilities(now.step), pair_elements());
      const int64_t stripes = value_stripes() * (now.step + 1 - own_.first) / (own_.last - own_.first);
      const int64_t products =
          (next.unit != nullptr ? score_product_count() : 0) + value_product_count(ready_, stripes);
      if (products == 0) store_pending();
      int64_t due = 0;  // pieces, in 2^-16
      const int64_t share = products > 0 ? (pieces.kPieces << 16) / products : 0;
      const auto piece = [&]() __attribute__((always_inline)) { pieces.advance((due += share) >> 16); };
      value_products(ready_, stripes, piece);
      if (next.unit != nullptr) score_products(next, memory_.scores[parity ^ 1], piece);
      pieces.advance(pieces.kPieces);
      if (guessed && pieces.exceeds())
        repeat_step(now, scores);
      else
        pieces.add_sums(unit.statistics.row_sum);
      own_.end = now.step + 1;
      if (own_.end == own_.last) {
        ready_ = own_;
        own_ = {};
      }
      now = next;
      ask_rows(1 + kChunkKeys / (count * kChunkSteps));
    }
    finish_values(ready_);
    store_pending();
  }

  static bool is_masked(UnitStep now) {
    return now.step < now.unit->steps.unmasked_begin || now.step >= now.unit->steps.unmasked_end;
  }
  // Where P of a step of own_ stands.
  uint16_t* probabilities(int64_t step) const { return own_.p + (step - own_.begin) * kStepKeys * kUnitRows; }

  // The products of a step that has no exponentials to go between.
  [[gnu::noinline]] void compute_scores(UnitStep now, float* scores) { score_products(now, scores, Nothing{}); }
  [[gnu::noinline]] void finish_values(ValueSteps& steps) { value_products(steps, value_stripes(), Nothing{}); }

  // Takes the maximum of a step's scores, and raises the unit's where it has to; returns the factor that the
  // probabilities still have to apply.
  [[gnu::noinline]] float find_maximum(UnitStep now, float* scores, bool raises = false) {
    Unit& unit = *now.unit;
    store_pending();
    V maximum[2];
    const float factor =
        step_maximum<V>(scores, unit.options, is_masked(now) ? &unit.bounds : nullptr, now.step * kStepKeys, unit.row,
                        unit.rows, context_.band.diagonal(unit.row), maximum);
    if (!raises && keeps_maximum(unit, maximum)) return factor;
    // O is complete before it is rescaled.
    uint16_t* p = probabilities(now.step);
    if (ready_.unit == &unit) finish_values(ready_);
    finish_values(own_);
    store_pending();
    own_ = {&unit, now.step, now.step, own_.first, own_.last, p, 0};
    raise_maximum(unit, maximum);
    return factor;
  }
  // A step whose probabilities were too large for the maximum that was there. P may stand where its scores stood.
  [[gnu::noinline]] void repeat_step(UnitStep now, float* scores) {
    store_pending();
    compute_scores(now, scores);
    const float factor = find_maximum(now, scores, true);
    V row_max[2];
    load_maximum(*now.unit, row_max);
    ProbabilityPieces<kParts, V> pieces(scores, factor, row_max, probabilities(now.step), pair_elements());
    pieces.advance(pieces.kPieces);
    pieces.add_sums(now.unit->statistics.row_sum);
  }

  // Asks for K and V of some keys of the next chunk: rows of [batch, seqlen, heads, dim] lie pages apart, which
  // hardware prefetchers do not follow.
  void ask_rows(int64_t keys) {
    const core::Problem& problem = *context_.problem;
    const core::Sequence& sequence = context_.sequence;
    for (; keys > 0 && asked_ < sequence.seqlen_k; --keys, ++asked_) {
      ask_row(problem.k, context_.tensors->k, core::key_row_offset(problem, sequence, problem.k, asked_),
              problem.head_dim_qk);
      ask_row(problem.v, context_.tensors->v, core::key_row_offset(problem, sequence, problem.v, asked_),
              problem.head_dim_v);
    }
  }
  void ask_row(const core::Operand& operand, const void* data, int64_t row, int64_t dim) const {
    const std::byte* from = address(data, row + context_.head_kv * operand.head_stride);
    for (int64_t byte = 0; byte < dim * kBytes; byte += 64) __builtin_prefetch(from + byte, 0, 2);
  }

  // Pairs of products that a step takes, and that the values of steps take up to pair `end` of stripes.
  int64_t score_product_count() const { return kStepKeys / 16 * (shape_.qk_padded / 32) * kPairs<kParts>; }
  int64_t value_product_count(const ValueSteps& steps, int64_t end) const {
    if (steps.stripes >= end) return 0;
    const int64_t last = end == value_stripes() ? shape_.v_padded / 16 : 2 * end;
    return (last - 2 * steps.stripes) * (steps.end - steps.begin) * (kStepKeys / 32) *
           (kPairs<kParts> - kFirstOtherPair<kParts>);
  }
  // Pairs of O's stripes of 16 dims; the last may be one alone.
  int64_t value_stripes() const { return (shape_.v_padded + 31) / 32; }
  // From a pair of P's keys to the next one, of one part.
  int64_t pair_elements() const { return shape_.p_bytes == 0 ? kPairElements : 2 * kUnitRows; }

  // Registers 0 to 3 for the block of sums that goes to `to`.
  BlockSums<Tiles> next_sums(float* to, const float* from) {
    float* before = pending_;
    pending_ = to;
    return {tiles_, before, from};
  }
  // Stores the sums that are still in registers.
  void store_pending() {
    if (pending_ == nullptr) return;
    store_stripe<0>(tiles_, pending_);
    store_stripe<1>(tiles_, pending_ + 16 * kUnitRows);
    pending_ = nullptr;
  }

  // S^T of one step; `between` is called behind each pair of products.
  template <class Between>
  [[gnu::always_inline]] void score_products(UnitStep now, float* scores, const Between& between) {
    constexpr int64_t kBlocks = kStepKeys / 16;
    const int64_t depth = shape_.qk_padded / 32, first = (now.step - first_step_) * kBlocks;
    const TileOperand q{now.unit->q, kTileElements, 2 * kTileElements, depth * 2 * kTileElements};
    for (int64_t block = 0; block < kBlocks; block += 2) {
      const TileOperand k{memory_.k + (first + block) * depth * kTileElements, depth * kTileElements, kTileElements,
                          kChunkKeys / 16 * depth * kTileElements};
      multiply_scores<kParts>(tiles_, k, q, depth, between, next_sums(scores + block * 16 * kUnitRows, nullptr));
    }
  }

  // The maximum to subtract: 0 for rows that have seen no key, whose scores are all -inf.
  static void load_maximum(const Unit& unit, V (&row_max)[2]) {
    const V least = V::broadcast(-3.4e38f);
    for (int half = 0; half < 2; ++half) {
      const V old = V::load(unit.statistics.row_max + 16 * half);
      row_max[half] = V::where_less(old, least, V::zero(), old);
    }
  }
  // Whether no row needs a new reference maximum.
  static bool keeps_maximum(const Unit& unit, const V (&maximum)[2]) {
    const V one = V::broadcast(1.0f), slack = V::broadcast(8.0f);
    V grew = V::zero();
    for (int half = 0; half < 2; ++half) {
      const V old = V::load(unit.statistics.row_max + 16 * half);
      grew = V::max(grew, V::where_less(old + slack, maximum[half], one, V::zero()));
    }
    return V::reduce_max(grew) == 0.0f;
  }
  // Raises the reference maximum of all rows and rescales their O and sums.
  void raise_maximum(Unit& unit, const V (&maximum)[2]) {
    const V least = V::broadcast(-3.4e38f);
    V alpha[2], none = V::zero();
    for (int half = 0; half < 2; ++half) {
      const V old = V::load(unit.statistics.row_max + 16 * half), raised = V::max(maximum[half], old);
      const V row_max = V::where_less(raised, least, V::zero(), raised);
      none = V::where_less(raised, least, V::broadcast(1.0f), none);
      alpha[half] = exp2(old - row_max);
      raised.store(unit.statistics.row_max + 16 * half);
      (V::load(unit.statistics.row_sum + 16 * half) * alpha[half]).store(unit.statistics.row_sum + 16 * half);
    }
    unit.has_maximum = V::reduce_max(none) == 0.0f;
    for (int64_t c = 0; c < shape_.v_padded; ++c)
      for (int half = 0; half < 2; ++half) {
        float* at = unit.o + c * kUnitRows + 16 * half;
        (V::load(at) * alpha[half]).store(at);
      }
  }

  // O^T += V^T P^T of some steps, up to pair `end` of stripes; `between` as above.
  template <class Between>
  [[gnu::always_inline]] void value_products(ValueSteps& steps, int64_t end, const Between& between) {
    constexpr int64_t kChunkDepth = kChunkKeys / 32, kStepDepth = kStepKeys / 32;
    const int64_t blocks = shape_.v_padded / 16, step = steps.begin - first_step_;
    const int64_t depth = (steps.end - steps.begin) * kStepDepth;
    const TileOperand p = kParts == 1
                              ? TileOperand{steps.p, 32, 16 * pair_elements(), 0, pair_elements() * 2}
                              : TileOperand{steps.p, kTileElements, 2 * kTileElements, kStepDepth * 2 * kTileElements};
    for (; depth > 0 && steps.stripes < end; ++steps.stripes) {
      const int64_t block = 2 * steps.stripes;
      const TileOperand v{memory_.v + (block * kChunkDepth + step * kStepDepth) * kTileElements,
                          kChunkDepth * kTileElements, kTileElements, blocks * kChunkDepth * kTileElements};
      float* o = steps.unit->o + block * 16 * kUnitRows;
      if (kParts == 1 && block + 1 == blocks) {
        store_pending();
        load_stripe(tiles_, o);
        multiply_stripe(tiles_, v, p, depth, between);
        store_stripe<0>(tiles_, o);
      } else {
        multiply_others<kParts>(tiles_, v, p, depth, between, next_sums(o, o));
      }
    }
  }

  // o = O / row_sum and lse = row_max + log(row_sum), the sink joining the sum once; rows past the used length: +0,
  // -inf.
  void finish_unit(const Unit& unit) {
    const core::Problem& problem = *context_.problem;
    const core::Sequence& sequence = context_.sequence;
    const bool sinks = problem.has(TESSERA_FLAG_SINKS);
    const float sink = sinks ? context_.tensors->sinks[unit.head] : -kInfinity;
    alignas(64) float weight[kUnitRows];
    for (int64_t i = 0; i < kUnitRows; ++i) {
      const bool used = unit.row + i < sequence.seqlen_q;
      const float own = core::lse_from_base2(unit.statistics.row_max[i], unit.statistics.row_sum[i]);
      const float lse = used ? core::merge_lse(own, sink) : -kInfinity;
      weight[i] =
          unit.statistics.row_sum[i] == 0 ? 0.0f : core::merge_weights(own, sink).first / unit.statistics.row_sum[i];
      if (problem.has(TESSERA_FLAG_LSE) && i < unit.rows)
        static_cast<float*>(context_.tensors->lse)[unit.head * sequence.lse_stride + sequence.lse_row + unit.row + i] =
            lse;
    }
    write_rows(unit, weight);
  }

  void write_rows(const Unit& unit, const float* weight) {
    const core::Problem& problem = *context_.problem;
    const int64_t bytes = core::dtype_bytes(problem.o.dtype);
    ask_queries(problem.o, context_.tensors->o, unit, problem.head_dim_v * bytes);
    alignas(64) float block[16][16];
    for (int half = 0; half < 2; ++half) {
      const V factor = V::load(weight + 16 * half);
      for (int64_t c = 0; c < problem.head_dim_v; c += 16) {
        V rows[16];
        for (int64_t r = 0; r < 16; ++r) rows[r] = V::load(unit.o + (c + r) * kUnitRows + 16 * half) * factor;
        V::store_transposed(rows, &block[0][0], 16, 16);
        const int64_t columns = problem.head_dim_v - c < 16 ? problem.head_dim_v - c : 16;
        for (int64_t r = 0; r < 16 && 16 * half + r < unit.rows; ++r) {
          const int64_t row = unit.row + 16 * half + r;
          std::byte* to =
              static_cast<std::byte*>(context_.tensors->o) +
              (core::query_row_offset(context_.sequence, problem.o, row) + unit.head * problem.o.head_stride + c) *
                  bytes;
          // A row without keys has weight 0, but its O may hold 0 * NaN of a masked value's tile.
          V value = weight[16 * half + r] == 0 ? V::zero() : V::load(block[r]);
          with_element<V>(problem.o.dtype,
                          [&](auto element) { store_partial<V, decltype(element)>(value, to, columns); });
        }
      }
    }
  }

  ItemContext context_;
  const amx::Shape& shape_;
  amx::TaskMemory memory_;
  Tiles tiles_;
  int64_t first_step_ = 0;    // of the chunk
  ValueSteps ready_, own_;    // of steps before, and of the present unit up to now
  float* pending_ = nullptr;  // a block of S or O that is still in registers 0 to 3
  int64_t asked_ = 0;         // keys up to here are packed or on their way
};

}  // namespace tessera::cpu::TESSERA_CPU_ISA

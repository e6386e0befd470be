// The rows of an append on the CPU: turned, rounded once to the cache's type, and written behind what the cache holds.
// A task owns heads and takes the sequences in order, so the result depends neither on the thread count nor, where two
// sequences share a slot, on chance. Bound by the bytes of the new rows, so one code for every instruction set.
#include "append.hpp"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "cpu/thread_pool.hpp"
#include "element.hpp"
#include "sequence.hpp"

namespace tessera::core {
namespace {

struct ElementInt8 {
  using Storage = int8_t;
};
struct ElementE4M3 {
  using Storage = uint8_t;
};

template <class Out, class Number>
typename Out::Storage encode(Number value, float scale) {
  if constexpr (std::is_same_v<Out, ElementInt8>) {
    return scale == 0 ? int8_t{0} : float_to_int8(value / scale);
  } else if constexpr (std::is_same_v<Out, ElementE4M3>) {
    return scale == 0 ? uint8_t{0} : float_bits_to_e4m3(float_bits(value / scale));
  } else {
    return Out::store(value);
  }
}

// The row of the rotary tables that a row of q or k turns by; half: its pairs, 0 for none.
struct RotaryRow {
  const void *cos = nullptr, *sin = nullptr;
  int32_t dtype = 0;
  int64_t half = 0;
  bool interleaved = false;
};

template <class Element, class Number>
void load_numbers(const void* from, int64_t begin, int64_t count, Number* to) {
  const auto* stored = static_cast<const typename Element::Storage*>(from) + begin;
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<Number>(Element::load(stored[i]));
}

template <class Number>
void load_numbers(int32_t dtype, const void* from, int64_t begin, int64_t count, Number* to) {
  if (dtype == TESSERA_F64) return load_numbers<ElementF64>(from, begin, count, to);
  if (dtype == TESSERA_F16) return load_numbers<ElementF16>(from, begin, count, to);
  if (dtype == TESSERA_BF16) return load_numbers<ElementBF16>(from, begin, count, to);
  load_numbers<ElementF32>(from, begin, count, to);
}

// One head's row. `from` and `to` are equal or apart: a pair is read before it is written.
template <class In, class Out>
void copy_row(const void* from_row, void* to_row, int64_t dim, const RotaryRow& rotary, float scale) {
  using Number = typename In::Number;
  const auto* from = static_cast<const typename In::Storage*>(from_row);
  auto* to = static_cast<typename Out::Storage*>(to_row);
  constexpr int64_t kPairs = 64;
  Number cos[kPairs], sin[kPairs];
  for (int64_t begin = 0; begin < rotary.half; begin += kPairs) {
    const int64_t count = std::min(kPairs, rotary.half - begin);
    load_numbers(rotary.dtype, rotary.cos, begin, count, cos);
    load_numbers(rotary.dtype, rotary.sin, begin, count, sin);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t first = rotary.interleaved ? 2 * (begin + i) : begin + i;
      const int64_t second = first + (rotary.interleaved ? 1 : rotary.half);
      const Number x = In::load(from[first]), y = In::load(from[second]);
      to[first] = encode<Out>(x * cos[i] - y * sin[i], scale);
      to[second] = encode<Out>(x * sin[i] + y * cos[i], scale);
    }
  }
  const int64_t rest = 2 * rotary.half;
  if constexpr (std::is_same_v<In, Out>) {
    std::memmove(to + rest, from + rest, static_cast<size_t>(dim - rest) * sizeof *to);
  } else {
    for (int64_t c = rest; c < dim; ++c) to[c] = encode<Out>(In::load(from[c]), scale);
  }
}

using CopyRow = void (*)(const void* from, void* to, int64_t dim, const RotaryRow& rotary, float scale);

template <class In>
CopyRow row_from(int32_t out) {
  if (out == TESSERA_INT8) return copy_row<In, ElementInt8>;
  if (out == TESSERA_E4M3) return copy_row<In, ElementE4M3>;
  if (out == TESSERA_F16) return copy_row<In, ElementF16>;
  if (out == TESSERA_BF16) return copy_row<In, ElementBF16>;
  return copy_row<In, ElementF32>;
}

CopyRow choose_row(int32_t in, int32_t out) {
  if (in == TESSERA_F64) return copy_row<ElementF64, ElementF64>;
  if (in == TESSERA_F16) return row_from<ElementF16>(out);
  if (in == TESSERA_BF16) return row_from<ElementBF16>(out);
  return row_from<ElementF32>(out);
}

// An operand with its memory: element offset -> address.
struct Rows {
  std::byte* data;
  const Operand& operand;
  std::byte* at(int64_t offset) const { return data + offset * dtype_bytes(operand.dtype); }
};
Rows rows_of(const void* data, const Operand& operand) {
  return {static_cast<std::byte*>(const_cast<void*>(data)), operand};
}

struct Body {
  const Problem& p;
  const tessera_tensors& t;
  const Append& append;
  int64_t tasks;

  RotaryRow rotary_row(int64_t position) const {
    const tessera_append_args& args = *append.args;
    const int64_t half = args.rotary_dim / 2, bytes = position * half * dtype_bytes(p.q.dtype);
    if (half == 0) return {};
    return {static_cast<const std::byte*>(args.rotary_cos) + bytes,
            static_cast<const std::byte*>(args.rotary_sin) + bytes, p.q.dtype, half, args.rotary_interleaved != 0};
  }

  // One new row of k or of v, in the task's heads.
  void write_key(const Sequence& sequence, int64_t batch, int64_t key, const Rows& from, int64_t from_row,
                 const Rows& to, const ScaleOperand& scales, const float* scale, int64_t dim, const RotaryRow& rotary,
                 const Range& heads) const {
    const CopyRow copy = choose_row(from.operand.dtype, to.operand.dtype);
    const int64_t to_row = key_row_offset(p, sequence, to.operand, key);
    const int64_t block = scale != nullptr ? key_scale_offset(p, sequence, batch, scales, key) : 0;
    for (int64_t h = heads.begin; h < heads.end; ++h) {
      copy(from.at(from_row + h * from.operand.head_stride), to.at(to_row + h * to.operand.head_stride), dim, rotary,
           scale != nullptr ? scale[block + h * scales.stride[2]] : 1.0f);
    }
  }

  void write_keys(const Sequence& sequence, int64_t batch, const Range& heads) const {
    const tessera_append_args& args = *append.args;
    const bool packed = args.cu_seqlens_new != nullptr;
    const int64_t count = appended_rows(t, batch), before = sequence.seqlen_k - count;
    const Rows k_new = rows_of(args.k_new_data, append.k_new), v_new = rows_of(args.v_new_data, append.v_new);
    const Rows k = rows_of(args.k_cache, p.k), v = rows_of(args.v_cache, p.v);
    for (int64_t row = 0; row < count; ++row) {
      const int64_t from = packed ? args.cu_seqlens_new[batch] + row : row, outer = packed ? 0 : batch;
      const auto offset = [&](const Operand& x) { return outer * x.batch_stride + from * x.row_stride; };
      write_key(sequence, batch, before + row, k_new, offset(append.k_new), k, p.k_scale, t.k_scale, p.head_dim_qk,
                rotary_row(t.seqused_k[batch] + row), heads);
      write_key(sequence, batch, before + row, v_new, offset(append.v_new), v, p.v_scale, t.v_scale, p.head_dim_v, {},
                heads);
    }
  }

  void turn_queries(const Sequence& sequence, int64_t batch, const Range& heads) const {
    const CopyRow copy = choose_row(p.q.dtype, p.q.dtype);
    const Rows q = rows_of(t.q, p.q), turned = rows_of(append.args->q_rotated, append.q_out);
    for (int64_t i = 0; i < sequence.seqlen_q; ++i) {
      const RotaryRow rotary = rotary_row(t.seqused_k[batch] + (p.banded() ? i : 0));
      const int64_t from = query_row_offset(sequence, p.q, i), to = query_row_offset(sequence, append.q_out, i);
      for (int64_t h = heads.begin; h < heads.end; ++h) {
        copy(q.at(from + h * p.q.head_stride), turned.at(to + h * append.q_out.head_stride), p.head_dim_qk, rotary, 1);
      }
    }
  }

  void operator()(int64_t task) const {
    const auto share = [&](int64_t heads) { return Range{heads * task / tasks, heads * (task + 1) / tasks}; };
    for (int64_t batch = 0; batch < p.batch; ++batch) {
      const Sequence sequence = locate_sequence(p, t, batch);
      write_keys(sequence, batch, share(p.heads_kv));
      if (append.rotates_q) turn_queries(sequence, batch, share(p.heads_q));
    }
  }
};

}  // namespace

int64_t appended_rows(const tessera_tensors& tensors, int64_t batch) {
  const tessera_append_args* args = tensors.append;
  if (args == nullptr) return 0;
  if (args->cu_seqlens_new == nullptr) return args->seqlen_new;
  return int64_t{args->cu_seqlens_new[batch + 1]} - args->cu_seqlens_new[batch];
}

void run_append(const Problem& p, const tessera_tensors& tensors, const Append& append,
                const tessera_executor& executor) {
  const tessera_append_args& args = *append.args;
  const auto count = [](int64_t outer, int64_t rows, int64_t heads, int64_t dim) {
    return static_cast<double>(outer) * static_cast<double>(rows) * static_cast<double>(heads * dim);
  };
  const bool packed_q = p.layout_q == TESSERA_PACKED, packed_k = args.cu_seqlens_new != nullptr;
  double elements =
      count(packed_k ? 1 : p.batch, packed_k ? args.total_new : args.seqlen_new, p.heads_kv, p.head_dims());
  if (append.rotates_q)
    elements += count(packed_q ? 1 : p.batch, packed_q ? p.total_q : p.seqlen_q, p.heads_q, p.head_dim_qk);
  constexpr double kElementsPerTask = 32768;  // about 30 microseconds, worth waking a thread for
  const int64_t threads = p.threads > 0 ? std::min(p.threads, executor.threads) : executor.threads;
  const int64_t most = std::min<int64_t>(threads, append.rotates_q ? p.heads_q : p.heads_kv);
  const auto worth = static_cast<int64_t>(std::min(elements / kElementsPerTask, 1e6));
  const int64_t tasks = std::clamp<int64_t>(worth, 1, most);
  cpu::parallel_tasks(executor, tasks, Body{p, tensors, append, tasks});
}

}  // namespace tessera::core

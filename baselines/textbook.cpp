// Work items are (sequence, key head), or slices of their query rows where there are fewer than threads; each thread
// runs a single-threaded BLAS on items of its own. S and P share one array of [rows, keys] in the workspace, rows
// normalised after the second product. Products, exponentials and conversions are as fast as this method allows: a slow
// baseline would flatter the kernels.
#include "textbook.hpp"

#include <algorithm>
#include <atomic>
#include <climits>
#include <cmath>
#include <cstring>

#include "blas.hpp"
#include "cpu/thread_pool.hpp"
#include "elements.hpp"
#include "isa_cap.hpp"
#include "reference_detail.hpp"
#include "status.hpp"
#include "textbook_rows.hpp"

namespace tessera::baselines {
namespace {

// Query heads of a group are stacked until a product has this many rows, so that decoding is a product of matrices too.
constexpr int64_t kStackedRows = 64;

// Elements converted at a time in an array on the stack.
constexpr int64_t kPiece = 256;

constexpr int64_t kLargestSize = int64_t{1} << 30;
constexpr double kLargestScores = 0x1p40;

template <class T>
constexpr int32_t kDtype = TESSERA_F32;
template <>
constexpr int32_t kDtype<double> = TESSERA_F64;

template <class T>
const RowFunctions<T>& choose_functions(core::Isa isa) {
  switch (isa) {
    case core::Isa::avx2:
      return row_functions<core::Isa::avx2, T>();
    case core::Isa::avx512:
    case core::Isa::amx:
      return row_functions<core::Isa::avx512, T>();
    default:
      return row_functions<core::Isa::portable, T>();
  }
}

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How (sequence, key head) pairs are cut, from maxima alone.
struct Cut {
  int64_t stacked_heads;                 // heads of a group in one product
  int64_t head_blocks, row_parts, rows;  // rows of each head in one product
  int64_t items;                         // work items for the threads
  int threads;

  Cut(const core::Problem& problem, int available) {
    const int64_t seqlen_q = std::max<int64_t>(1, problem.seqlen_q), pairs = problem.batch * problem.heads_kv;
    stacked_heads = std::clamp<int64_t>(kStackedRows / seqlen_q, 1, problem.group);
    head_blocks = divide_up(problem.group, stacked_heads);
    row_parts = 1;
    if (pairs * head_blocks < available && pairs > 0) {
      row_parts = std::min(divide_up(available, pairs * head_blocks), seqlen_q);
    }
    rows = divide_up(seqlen_q, row_parts);
    items = pairs * (pairs < available ? head_blocks * row_parts : 1);
    threads = static_cast<int>(std::clamp<int64_t>(items, 1, available));
  }
  bool whole_pairs(const core::Problem& problem) const { return items == problem.batch * problem.heads_kv; }
};

// One thread's arrays within the workspace, in elements of T.
struct Scratch {
  int64_t scores_stride, scores, q, k, v, o, factors, total;

  Scratch(const core::Problem& problem, const Cut& cut) {
    const int64_t rows = cut.rows * cut.stacked_heads;
    scores_stride = divide_up(std::max<int64_t>(1, problem.seqlen_k), kRowPadding) * kRowPadding;
    int64_t end = 0;
    const auto take = [&end](int64_t count) {
      const int64_t begin = end;
      end += divide_up(count, kRowPadding) * kRowPadding;
      return begin;
    };
    scores = take(rows * scores_stride);
    q = take(rows * problem.head_dim_qk);
    k = take(problem.seqlen_k * problem.head_dim_qk);
    v = take(problem.seqlen_k * problem.head_dim_v);
    o = take(rows * problem.head_dim_v);
    factors = take(rows);
    total = end;
  }
};

// Key or value rows ready for the BLAS: the caller's own where they are plain numbers of type T, else a converted copy.
template <class T>
struct Matrix {
  const T* data;
  int stride;
};

template <class T>
class Textbook {
 public:
  Textbook(const core::Plan& plan, const core::RunContext& context, const Cut& cut, core::Isa isa)
      : problem_(plan.problem),
        tensors_(*context.tensors),
        workspace_(reinterpret_cast<T*>(context.workspace)),
        cut_(cut),
        scratch_(plan.problem, cut),
        blas_(load_blas(isa)),
        functions_(choose_functions<T>(isa)) {}

  void run_item(int64_t thread, int64_t item) const {
    T* arrays = workspace_ + thread * scratch_.total;
    const bool whole = cut_.whole_pairs(problem_);
    const int64_t slices = cut_.head_blocks * cut_.row_parts, pair = whole ? item : item / slices;
    const Place place = place_sequence(problem_, tensors_, pair / problem_.heads_kv);
    const int64_t head_kv = pair % problem_.heads_kv;
    const Matrix<T> k = key_matrix(place, head_kv, false, arrays + scratch_.k);
    const Matrix<T> v = key_matrix(place, head_kv, true, arrays + scratch_.v);
    const int64_t begin = whole ? 0 : item % slices, end = whole ? slices : begin + 1;
    for (int64_t slice = begin; slice < end; ++slice) run_slice(place, head_kv, slice, k, v, arrays);
  }

 private:
  // Rows [begin, end) of query heads [head_begin, head_end); row r of a product is (head, row) in that order.
  struct Slice {
    int64_t head_begin, head_end, begin, end;
    int64_t rows() const { return end - begin; }
  };

  Matrix<T> key_matrix(const Place& place, int64_t head, bool values, T* copy) const;
  void convert_row(const core::Operand& operand, const void* base, int64_t offset, int64_t dim, T* out) const;
  void run_slice(const Place& place, int64_t head_kv, int64_t slice_index, const Matrix<T>& k, const Matrix<T>& v,
                 T* arrays) const;
  void load_queries(const Place& place, const Slice& slice, T* q) const;
  void softmax_rows(const Place& place, const Slice& slice, T* arrays) const;
  void add_bias(const Place& place, int64_t head, int64_t row, const core::Range& keys, T* scores) const;
  void store_output(const Place& place, const Slice& slice, const T* arrays) const;
  // Rows without keys: o = 0 and the given lse.
  void store_empty(const Place& place, int64_t head, int64_t begin, int64_t end, T lse) const;
  void store_lse(const Place& place, int64_t head, int64_t row, T value) const;
  void multiply(const char* transpose_keys, int64_t columns, int64_t rows, int64_t inner, T factor,
                const Matrix<T>& keys, const T* left, int64_t left_stride, T* out, int64_t out_stride) const;

  T sink(int64_t head) const {
    return problem_.has(TESSERA_FLAG_SINKS) ? static_cast<T>(tensors_.sinks[head]) : -T(INFINITY);
  }
  int64_t query_offset(const Place& place, const core::Operand& operand, int64_t head, int64_t row) const {
    return place.batch_q * operand.batch_stride + (place.first_q + row) * operand.row_stride +
           head * operand.head_stride;
  }

  const core::Problem& problem_;
  const tessera_tensors& tensors_;
  T* workspace_;
  const Cut& cut_;
  const Scratch scratch_;
  const Blas& blas_;
  const RowFunctions<T>& functions_;
};

template <class T>
void Textbook<T>::convert_row(const core::Operand& operand, const void* base, int64_t offset, int64_t dim,
                              T* out) const {
  const auto* bits = static_cast<const uint16_t*>(base) + offset;
  if (operand.dtype == TESSERA_F16) return functions_.from_half(bits, dim, out);
  if (operand.dtype == TESSERA_BF16) return functions_.from_bfloat(bits, dim, out);
  if (operand.dtype == TESSERA_INT8) {
    const int8_t* from = static_cast<const int8_t*>(base) + offset;
    for (int64_t c = 0; c < dim; ++c) out[c] = from[c];
    return;
  }
  load_row(operand.dtype, base, offset, dim, out);
}

template <class T>
Matrix<T> Textbook<T>::key_matrix(const Place& place, int64_t head, bool values, T* copy) const {
  const core::Operand& operand = values ? problem_.v : problem_.k;
  const void* base = values ? tensors_.v : tensors_.k;
  const int64_t dim = values ? problem_.head_dim_v : problem_.head_dim_qk, head_offset = head * operand.head_stride;
  const bool plain = operand.dtype == kDtype<T> && place.pages == nullptr && operand.row_stride <= INT_MAX &&
                     operand.row_stride >= dim;
  if (plain) {
    const T* first = static_cast<const T*>(base) + address_key(problem_, place, 0).offset(operand) + head_offset;
    return {first, static_cast<int>(operand.row_stride)};
  }
  const core::ScaleOperand& scale = values ? problem_.v_scale : problem_.k_scale;
  const float* scales = values ? tensors_.v_scale : tensors_.k_scale;
  for (int64_t j = 0; j < place.used_k; ++j) {
    const KeyAddress address = address_key(problem_, place, j);
    T* row = copy + j * dim;
    convert_row(operand, base, address.offset(operand) + head_offset, dim, row);
    if (scales != nullptr) {
      const T factor = scale_at(scale, scales, address.scale_outer, address.scale_row, head);
      for (int64_t c = 0; c < dim; ++c) row[c] *= factor;
    }
    if (values && problem_.has(TESSERA_FLAG_V_MEAN)) {
      const int64_t shared = place.pages != nullptr ? 0 : address.scale_outer * problem_.v_mean_stride;
      const float* mean = tensors_.v_mean + shared + head * dim;
      for (int64_t c = 0; c < dim; ++c) row[c] += mean[c];
    }
  }
  return {copy, static_cast<int>(dim)};
}

template <class T>
void Textbook<T>::run_slice(const Place& place, int64_t head_kv, int64_t slice_index, const Matrix<T>& k,
                            const Matrix<T>& v, T* arrays) const {
  const int64_t block = slice_index / cut_.row_parts, part = slice_index % cut_.row_parts;
  const int64_t first_head = head_kv * problem_.group;
  const int64_t row_begin = std::min(part * cut_.rows, place.rows_q);
  const int64_t row_end = std::min(row_begin + cut_.rows, place.rows_q);
  Slice slice{first_head + block * cut_.stacked_heads, 0, row_begin, std::min(row_end, place.used_q)};
  slice.head_end = std::min(slice.head_begin + cut_.stacked_heads, first_head + problem_.group);
  for (int64_t head = slice.head_begin; head < slice.head_end; ++head) {
    store_empty(place, head, std::max(row_begin, place.used_q), row_end, -T(INFINITY));
  }
  if (slice.begin >= slice.end) return;
  if (place.used_k == 0) {
    for (int64_t head = slice.head_begin; head < slice.head_end; ++head) {
      store_empty(place, head, slice.begin, slice.end, sink(head));
    }
    return;
  }
  load_queries(place, slice, arrays + scratch_.q);
  const int64_t rows = (slice.head_end - slice.head_begin) * slice.rows();
  multiply("T", place.used_k, rows, problem_.head_dim_qk, static_cast<T>(problem_.scale), k, arrays + scratch_.q,
           problem_.head_dim_qk, arrays + scratch_.scores, scratch_.scores_stride);
  softmax_rows(place, slice, arrays);
  multiply("N", problem_.head_dim_v, rows, place.used_k, T(1), v, arrays + scratch_.scores, scratch_.scores_stride,
           arrays + scratch_.o, problem_.head_dim_v);
  store_output(place, slice, arrays);
}

// Row-major out [rows, columns] = factor * left [rows, inner] * keys' ("T": [columns, inner] transposed, "N": [inner,
// columns]), as the transposed product that a column-major BLAS computes.
template <class T>
void Textbook<T>::multiply(const char* transpose_keys, int64_t columns, int64_t rows, int64_t inner, T factor,
                           const Matrix<T>& keys, const T* left, int64_t left_stride, T* out,
                           int64_t out_stride) const {
  const int m = static_cast<int>(columns), n = static_cast<int>(rows), k = static_cast<int>(inner);
  const int left_ld = static_cast<int>(left_stride), out_ld = static_cast<int>(out_stride);
  const T zero = 0;
  if constexpr (sizeof(T) == 8) {
    blas_.dgemm(transpose_keys, "N", &m, &n, &k, &factor, keys.data, &keys.stride, left, &left_ld, &zero, out, &out_ld);
  } else {
    blas_.sgemm(transpose_keys, "N", &m, &n, &k, &factor, keys.data, &keys.stride, left, &left_ld, &zero, out, &out_ld);
  }
}

template <class T>
void Textbook<T>::load_queries(const Place& place, const Slice& slice, T* q) const {
  const int64_t dim = problem_.head_dim_qk;
  for (int64_t head = slice.head_begin; head < slice.head_end; ++head) {
    for (int64_t i = slice.begin; i < slice.end; ++i, q += dim) {
      convert_row(problem_.q, tensors_.q, query_offset(place, problem_.q, head, i), dim, q);
      if (tensors_.q_scale == nullptr) continue;
      const T factor = scale_at(problem_.q_scale, tensors_.q_scale, place.batch, i, head);
      for (int64_t c = 0; c < dim; ++c) q[c] *= factor;
    }
  }
}

template <class T>
void Textbook<T>::softmax_rows(const Place& place, const Slice& slice, T* arrays) const {
  T* scores = arrays + scratch_.scores;
  T* factors = arrays + scratch_.factors;
  const T softcap = static_cast<T>(problem_.softcap);
  for (int64_t head = slice.head_begin; head < slice.head_end; ++head) {
    for (int64_t i = slice.begin; i < slice.end; ++i, scores += scratch_.scores_stride) {
      const core::Range keys = place.band.visible_keys(i);
      if (softcap > 0) functions_.softcap(scores, keys.begin, keys.end, softcap);
      if (problem_.has(TESSERA_FLAG_BIAS)) add_bias(place, head, i, keys, scores);
      if (problem_.has(TESSERA_FLAG_ALIBI)) {
        const float slope = tensors_.alibi_slopes[place.batch * problem_.alibi_stride + head];
        functions_.alibi(scores, keys.begin, keys.end, static_cast<T>(slope), place.band.diagonal(i));
      }
      T lse;
      *factors++ = functions_.softmax(scores, keys.begin, keys.end, place.used_k, sink(head), &lse);
      store_lse(place, head, i, lse);
    }
  }
}

template <class T>
void Textbook<T>::add_bias(const Place& place, int64_t head, int64_t row, const core::Range& keys, T* scores) const {
  const int64_t* stride = problem_.bias.stride;
  const int64_t first = place.batch * stride[0] + head * stride[1] + row * stride[2];
  if (problem_.bias.dtype == TESSERA_U8) {
    const auto* mask = static_cast<const uint8_t*>(tensors_.bias) + first;
    for (int64_t j = keys.begin; j < keys.end; ++j) scores[j] = mask[j * stride[3]] != 0 ? scores[j] : -T(INFINITY);
    return;
  }
  // -inf masks, whatever the score is.
  core::Operand bias;
  bias.dtype = problem_.bias.dtype;
  T piece[kPiece];
  for (int64_t begin = keys.begin; begin < keys.end; begin += kPiece) {
    const int64_t count = std::min(kPiece, keys.end - begin);
    if (stride[3] == 0) {
      std::fill_n(piece, count, static_cast<T>(load_element(problem_.bias.dtype, tensors_.bias, first)));
    } else {
      convert_row(bias, tensors_.bias, first + begin, count, piece);
    }
    for (int64_t j = 0; j < count; ++j) {
      scores[begin + j] = piece[j] == -T(INFINITY) ? piece[j] : scores[begin + j] + piece[j];
    }
  }
}

template <class T>
void Textbook<T>::store_output(const Place& place, const Slice& slice, const T* arrays) const {
  const int64_t dim = problem_.head_dim_v;
  const T* o = arrays + scratch_.o;
  const T* factors = arrays + scratch_.factors;
  double row[kPiece];
  for (int64_t head = slice.head_begin; head < slice.head_end; ++head) {
    for (int64_t i = slice.begin; i < slice.end; ++i, o += dim) {
      const T factor = *factors++;
      const int64_t offset = query_offset(place, problem_.o, head, i);
      for (int64_t begin = 0; begin < dim; begin += kPiece) {
        const int64_t count = std::min(kPiece, dim - begin);
        // A row without keys is 0 even where a product with v made NaN of its zeros.
        for (int64_t c = 0; c < count; ++c) row[c] = factor == 0 ? 0.0 : static_cast<double>(o[begin + c] * factor);
        store_row(problem_.o.dtype, tensors_.o, offset + begin, count, row);
      }
    }
  }
}

template <class T>
void Textbook<T>::store_empty(const Place& place, int64_t head, int64_t begin, int64_t end, T lse) const {
  const double zeros[kPiece] = {};
  for (int64_t i = begin; i < end; ++i) {
    const int64_t offset = query_offset(place, problem_.o, head, i);
    for (int64_t c = 0; c < problem_.head_dim_v; c += kPiece) {
      store_row(problem_.o.dtype, tensors_.o, offset + c, std::min(kPiece, problem_.head_dim_v - c), zeros);
    }
    store_lse(place, head, i, lse);
  }
}

template <class T>
void Textbook<T>::store_lse(const Place& place, int64_t head, int64_t row, T value) const {
  if (problem_.has(TESSERA_FLAG_LSE)) static_cast<T*>(tensors_.lse)[lse_index(problem_, place, head, row)] = value;
}

template <class T>
int run_typed(const core::Plan& plan, const core::RunContext& context) {
  const Cut cut(plan.problem, plan.launch.threads);
  const Textbook<T> textbook(plan, context, cut, static_cast<core::Isa>(plan.launch.variant));
  std::atomic<int64_t> next{0};
  auto work = [&](int64_t thread) {
    for (int64_t item = next++; item < cut.items; item = next++) textbook.run_item(thread, item);
  };
  cpu::parallel_tasks(*context.executor, cut.items == 0 ? 0 : cut.threads, work);
  return core::succeed(context.status);
}

int threads_for(const core::Problem& problem, const core::DeviceInfo& device) {
  return std::max(1, problem.threads > 0 ? problem.threads : device.units);
}

}  // namespace

core::Refusal refuse_textbook(const core::Problem& problem, const core::DeviceInfo& device) {
  if (!device.is_cpu) return {"runs on the CPU only"};
  if (problem.pass != TESSERA_FORWARD) return {"is a forward method", "pass", problem.pass};
  if (problem.v_order != 0) return {"reads v in the order of its rows only", "v_order", problem.v_order};
  // BLAS sizes are 32-bit.
  if (problem.seqlen_q > kLargestSize) return {"takes at most 2^30 queries", "seqlen_q", problem.seqlen_q};
  if (problem.seqlen_k > kLargestSize) return {"takes at most 2^30 keys", "seqlen_k", problem.seqlen_k};
  const Cut cut(problem, threads_for(problem, device));
  const double scores = static_cast<double>(cut.rows * cut.stacked_heads) * static_cast<double>(problem.seqlen_k);
  if (scores > kLargestScores) return {"a score matrix has more than 2^40 elements", "seqlen_k", problem.seqlen_k};
  if (const Blas& blas = load_blas(capped_isa(problem, device)); blas.refusal != nullptr) return {blas.refusal};
  return {};
}

core::Launch configure_textbook(const core::Problem& problem, const core::DeviceInfo& device) {
  const Cut cut(problem, threads_for(problem, device));
  const Scratch scratch(problem, cut);
  const core::Isa isa = capped_isa(problem, device);
  core::Launch launch;
  launch.threads = cut.threads;
  const int64_t width = problem.q.dtype == TESSERA_F64 ? 8 : 4;
  launch.workspace_bytes = divide_up(cut.threads * scratch.total * width, 256) * 256;
  launch.variant = static_cast<int32_t>(isa);
  launch.schedule = "scores of a head as one matrix, softmax by rows, heads over threads";
  launch.instructions = load_blas(isa).description;
  // Products at about half of the FMA peak, masked pairs included.
  const double pairs = static_cast<double>(problem.seqlen_q) * static_cast<double>(problem.seqlen_k) *
                       static_cast<double>(problem.batch * problem.heads_q);
  const double dims = 2.0 * static_cast<double>(problem.head_dims()),
               peak = device.peak_f32 > 0 ? device.peak_f32 : 5e10;
  launch.seconds = pairs * dims / (0.5 * peak);
  return launch;
}

int run_textbook(const core::Plan& plan, const core::RunContext& context) {
  return plan.problem.q.dtype == TESSERA_F64 ? run_typed<double>(plan, context) : run_typed<float>(plan, context);
}

}  // namespace tessera::baselines

// Where sequences lie and their rows as plain arrays. Derives rows, pages, lengths and scale blocks from the
// definition, not from the library's own helpers.
#include <cmath>

#include "elements.hpp"
#include "reference_detail.hpp"

namespace tessera::baselines {

Place place_sequence(const core::Problem& problem, const tessera_tensors& tensors, int64_t batch) {
  Place place{};
  place.batch = batch;
  if (problem.layout_q == TESSERA_PACKED) {
    place.first_q = tensors.cu_seqlens_q[batch];
    place.rows_q = tensors.cu_seqlens_q[batch + 1] - place.first_q;
  } else {
    place.batch_q = batch;
    place.rows_q = problem.seqlen_q;
  }
  place.used_q = problem.has(TESSERA_FLAG_SEQUSED_Q) ? tensors.seqused_q[batch] : place.rows_q;
  if (problem.layout_kv == TESSERA_PACKED) {
    place.first_k = tensors.cu_seqlens_k[batch];
    place.rows_k = tensors.cu_seqlens_k[batch + 1] - place.first_k;
  } else {
    place.batch_k = problem.has(TESSERA_FLAG_BATCH_IDX) ? tensors.batch_idx[batch] : batch;
    place.rows_k = problem.seqlen_k;
  }
  if (problem.layout_kv == TESSERA_PAGED) {
    const int64_t stride = problem.page_table_stride != 0 ? problem.page_table_stride : problem.max_pages;
    place.pages = tensors.page_table + batch * stride;
  }
  place.leftpad = problem.has(TESSERA_FLAG_LEFTPAD) ? tensors.leftpad[batch] : 0;
  place.used_k = (problem.has(TESSERA_FLAG_SEQUSED_K) ? tensors.seqused_k[batch] : place.rows_k) - place.leftpad;
  if (const tessera_append_args* append = tensors.append) {
    const int32_t* cu = append->cu_seqlens_new;
    place.used_k += cu != nullptr ? cu[batch + 1] - cu[batch] : append->seqlen_new;
  }
  place.band = core::make_band(place.used_q, place.used_k, problem.left, problem.right, problem.top_left);
  return place;
}

KeyAddress address_key(const core::Problem& problem, const Place& place, int64_t key) {
  const int64_t slot = place.leftpad + key;
  if (place.pages != nullptr) {
    const int64_t page = place.pages[slot / problem.page_size], row = slot % problem.page_size;
    return {page, row, page, row};
  }
  if (problem.layout_kv == TESSERA_PACKED) return {0, place.first_k + slot, place.batch, slot};
  return {place.batch_k, slot, place.batch_k, slot};
}

float scale_at(const core::ScaleOperand& scale, const float* data, int64_t outer, int64_t row, int64_t head) {
  if (data == nullptr) return 1;
  const int64_t block = scale.rows == 0 ? 0 : row / scale.rows;
  return data[outer * scale.stride[0] + block * scale.stride[1] + head * scale.stride[2]];
}

namespace {

// Under v_order 1 a sequence's rows lie in groups of 16 slots in this order, each channel by itself, the groups counted
// from the first row of the page or cache row; packed, a sequence begins at a group of its own.
constexpr int kRowOfSlot[16] = {0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15};

template <class T>
void load_ordered_row(const core::Problem& problem, const tessera_tensors& tensors, const KeyAddress& address,
                      const Place& place, int64_t head, T* out) {
  const core::Operand& v = problem.v;
  const bool packed = problem.layout_kv == TESSERA_PACKED;
  int64_t slot = address.scale_row / 16 * 16;
  while (kRowOfSlot[slot % 16] != address.scale_row % 16) ++slot;
  slot += packed ? (place.first_k + 15 * place.batch) / 16 * 16 : address.outer * v.batch_stride;
  for (int64_t c = 0; c < problem.head_dim_v; ++c)
    out[c] = static_cast<T>(load_element(v.dtype, tensors.v, slot + head * v.head_stride + c * v.row_stride));
}

template <class T>
std::vector<T> gather_keys(const core::Problem& problem, const tessera_tensors& tensors, const Place& place,
                           bool values, int64_t head) {
  const core::Operand& operand = values ? problem.v : problem.k;
  const core::ScaleOperand& scale = values ? problem.v_scale : problem.k_scale;
  const float* scales = values ? tensors.v_scale : tensors.k_scale;
  const void* base = values ? tensors.v : tensors.k;
  const int64_t dim = values ? problem.head_dim_v : problem.head_dim_qk;
  std::vector<T> rows(place.used_k * dim);
  for (int64_t j = 0; j < place.used_k; ++j) {
    const KeyAddress address = address_key(problem, place, j);
    T* out = rows.data() + j * dim;
    if (values && problem.v_order == 1) {
      load_ordered_row(problem, tensors, address, place, head, out);
    } else {
      load_row(operand.dtype, base, address.offset(operand) + head * operand.head_stride, dim, out);
    }
    if (scales != nullptr) {
      const T factor = scale_at(scale, scales, address.scale_outer, address.scale_row, head);
      for (int64_t c = 0; c < dim; ++c) out[c] *= factor;
    }
    if (values && problem.has(TESSERA_FLAG_V_MEAN)) {
      const int64_t shared = place.pages != nullptr ? 0 : address.scale_outer * problem.v_mean_stride;
      const float* mean = tensors.v_mean + shared + head * dim;
      for (int64_t c = 0; c < dim; ++c) out[c] += mean[c];
    }
  }
  return rows;
}

}  // namespace

template <class T>
std::vector<T> gather_query_rows(const Place& place, const core::Operand& operand, const void* base, int64_t head,
                                 int64_t dim) {
  std::vector<T> rows(place.used_q * dim);
  for (int64_t i = 0; i < place.used_q; ++i) {
    const int64_t offset =
        place.batch_q * operand.batch_stride + (place.first_q + i) * operand.row_stride + head * operand.head_stride;
    load_row(operand.dtype, base, offset, dim, rows.data() + i * dim);
  }
  return rows;
}

template <class T>
void HeadInputs<T>::load(const core::Problem& problem, const tessera_tensors& tensors, const Place& place,
                         int64_t head) {
  const int64_t head_kv = head / problem.group;
  if (place.batch == batch_ && head == head_q_) return;
  const int64_t dim = problem.head_dim_qk;
  q = gather_query_rows<T>(place, problem.q, tensors.q, head, dim);
  if (tensors.q_scale != nullptr) {
    for (int64_t i = 0; i < place.used_q; ++i) {
      const T factor = scale_at(problem.q_scale, tensors.q_scale, place.batch, i, head);
      for (int64_t c = 0; c < dim; ++c) q[i * dim + c] *= factor;
    }
  }
  if (place.batch != batch_ || head_kv != head_kv_) {
    k = gather_keys<T>(problem, tensors, place, false, head_kv);
    v = gather_keys<T>(problem, tensors, place, true, head_kv);
  }
  batch_ = place.batch;
  head_q_ = head;
  head_kv_ = head_kv;
}

template <class T>
void ScoreRow<T>::compute(const core::Problem& problem, const tessera_tensors& tensors, const Place& place,
                          const HeadInputs<T>& inputs, int64_t head, int64_t row) {
  x.resize(place.used_k);
  capped.resize(place.used_k);
  keys = place.band.visible_keys(row);
  kept = false;
  const int64_t dim = problem.head_dim_qk, diagonal = place.band.diagonal(row);
  const T scale = static_cast<T>(problem.scale), softcap = static_cast<T>(problem.softcap);
  const bool biased = problem.has(TESSERA_FLAG_BIAS), is_mask = problem.bias.dtype == TESSERA_U8;
  const int64_t* stride = problem.bias.stride;
  const int64_t bias_row = place.batch * stride[0] + head * stride[1] + row * stride[2];
  const bool alibi = problem.has(TESSERA_FLAG_ALIBI);
  const T slope = alibi ? static_cast<T>(tensors.alibi_slopes[place.batch * problem.alibi_stride + head]) : T(0);
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    T bias = 0;
    if (biased) {
      const double stored = load_element(problem.bias.dtype, tensors.bias, bias_row + j * stride[3]);
      bias = is_mask ? (stored != 0 ? T(0) : -T(INFINITY)) : static_cast<T>(stored);
    }
    T score = scale * dot(inputs.q.data() + row * dim, inputs.k.data() + j * dim, dim);
    if (softcap > 0) score = core::apply_softcap(score, softcap);
    capped[j] = score;
    score += bias;
    if (alibi) score += core::alibi_bias(slope, diagonal, j);
    x[j] = bias == -T(INFINITY) ? -T(INFINITY) : score;
    kept = kept || x[j] != -T(INFINITY);
  }
}

void bias_extents(const core::Problem& problem, int64_t extents[4]) {
  const int64_t full[4] = {problem.batch, problem.heads_q, problem.seqlen_q, problem.seqlen_k};
  for (int dim = 0; dim < 4; ++dim) extents[dim] = problem.d_bias.stride[dim] == 0 && full[dim] > 1 ? 1 : full[dim];
}

Extents result_extents(const core::Problem& problem) {
  const int64_t rows_q = problem.layout_q == TESSERA_PACKED ? problem.total_q : problem.batch * problem.seqlen_q;
  const int64_t rows_k = problem.layout_kv == TESSERA_PACKED ? problem.total_k : problem.batch_kv * problem.seqlen_k;
  int64_t bias[4];
  bias_extents(problem, bias);
  return {.o = rows_q * problem.heads_q * problem.head_dim_v,
          .lse = rows_q * problem.heads_q,
          .dq = rows_q * problem.heads_q * problem.head_dim_qk,
          .dk = rows_k * problem.heads_kv * problem.head_dim_qk,
          .dv = rows_k * problem.heads_kv * problem.head_dim_v,
          .d_bias = bias[0] * bias[1] * bias[2] * bias[3],
          .d_sinks = problem.heads_q};
}

int64_t lse_index(const core::Problem& problem, const Place& place, int64_t head, int64_t row) {
  if (problem.layout_q == TESSERA_PACKED) return head * problem.total_q + place.first_q + row;
  return (place.batch * problem.heads_q + head) * problem.seqlen_q + row;
}

int64_t query_index(const core::Problem& problem, const Place& place, int64_t head, int64_t row) {
  const int64_t whole_row = place.batch_q * problem.seqlen_q + place.first_q + row;
  return whole_row * problem.heads_q + head;
}

int64_t key_index(const core::Problem& problem, const Place& place, int64_t head, int64_t row) {
  const int64_t whole_row = place.batch_k * problem.seqlen_k + place.first_k + row;
  return whole_row * problem.heads_kv + head;
}

template std::vector<float> gather_query_rows(const Place&, const core::Operand&, const void*, int64_t, int64_t);
template std::vector<double> gather_query_rows(const Place&, const core::Operand&, const void*, int64_t, int64_t);
template struct HeadInputs<float>;
template struct HeadInputs<double>;
template struct ScoreRow<float>;
template struct ScoreRow<double>;

}  // namespace tessera::baselines

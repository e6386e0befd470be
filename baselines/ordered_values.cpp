#include "ordered_values.hpp"

#include <algorithm>

namespace tessera::baselines {
namespace {

constexpr int64_t kSlotOfRow[16] = {0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15};

bool is_packed(const tessera_problem& p) { return p.layout_kv == TESSERA_PACKED; }
// Strides between heads and between channels.
const int64_t* inner_strides(const tessera_problem& p) { return p.v.stride + (is_packed(p) ? 0 : 1); }

}  // namespace

int64_t ordered_slots(const tessera_problem& p) {
  if (is_packed(p)) return (p.total_k + 15 * p.batch) / 16 * 16;
  return ((p.layout_kv == TESSERA_PAGED ? p.page_size : p.seqlen_k) + 15) / 16 * 16;
}

void set_ordered_strides(tessera_problem* p) {
  if (std::any_of(p->v.stride, p->v.stride + 4, [](int64_t stride) { return stride != 0; })) return;
  const int64_t channel = ordered_slots(*p), head = channel * p->head_dim_v;
  const int64_t stride[4] = {head * p->heads_kv, head, channel, 1};
  std::copy(stride + (is_packed(*p) ? 1 : 0), stride + 4, p->v.stride);
}

int64_t ordered_span(const tessera_problem& p, int64_t outer) {
  const int64_t* stride = inner_strides(p);
  const int64_t first = is_packed(p) ? 0 : (outer - 1) * p.v.stride[0];
  return first + (p.heads_kv - 1) * stride[0] + (p.head_dim_v - 1) * stride[1] + ordered_slots(p);
}

int64_t ordered_offset(const tessera_problem& p, const OrderedRow& at, int64_t head, int64_t channel) {
  const int64_t* stride = inner_strides(p);
  const int64_t first = is_packed(p) ? (at.first + 15 * at.batch) / 16 * 16 : at.outer * p.v.stride[0];
  return first + head * stride[0] + channel * stride[1] + at.row / 16 * 16 + kSlotOfRow[at.row % 16];
}

}  // namespace tessera::baselines

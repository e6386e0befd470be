// Facts about dtypes, and the work that a problem asks for.
#include "problem.hpp"

#include <limits>

namespace tessera::core {

int32_t dtype_bytes(int32_t dtype) {
  switch (dtype) {
    case TESSERA_F64:
      return 8;
    case TESSERA_F32:
      return 4;
    case TESSERA_F16:
    case TESSERA_BF16:
      return 2;
    case TESSERA_E4M3:
    case TESSERA_INT8:
    case TESSERA_U8:
      return 1;
    default:
      return 0;
  }
}

const char* dtype_name(int32_t dtype) {
  switch (dtype) {
    case TESSERA_F64:
      return "f64";
    case TESSERA_F32:
      return "f32";
    case TESSERA_F16:
      return "f16";
    case TESSERA_BF16:
      return "bf16";
    case TESSERA_E4M3:
      return "e4m3";
    case TESSERA_INT8:
      return "int8";
    case TESSERA_U8:
      return "u8";
    default:
      return "?";
  }
}

tessera_problem default_problem() {
  tessera_problem problem{};
  problem.size = sizeof problem;
  problem.device = -1;
  problem.left = problem.right = -1;
  problem.scale = std::numeric_limits<double>::quiet_NaN();
  problem.q.dtype = TESSERA_F32;
  return problem;
}

namespace {

// Sum over i in [0, count) of clamp(i + shift, 0, high).
double clamped_sum(int64_t count, int64_t shift, int64_t high) {
  const int64_t ramp_begin = shift < 0 ? (-shift < count ? -shift : count) : 0;  // below it: 0
  int64_t ramp_end = high - shift;                                               // from it on: high
  if (ramp_end > count) ramp_end = count;
  if (ramp_end < ramp_begin) ramp_end = ramp_begin;
  const double first = static_cast<double>(ramp_begin + shift), last = static_cast<double>(ramp_end - 1 + shift);
  const double ramp = ramp_end > ramp_begin ? (first + last) * 0.5 * static_cast<double>(ramp_end - ramp_begin) : 0.0;
  return ramp + static_cast<double>(count - ramp_end) * static_cast<double>(high);
}

}  // namespace

double kept_pairs(const Band& band) {
  // Row i keeps [clamp(d - left), clamp(d + right + 1)), both clamped to [0, seqlen_k]; the two sums differ by the
  // pairs.
  const double ends = clamped_sum(band.seqlen_q, band.offset + band.right + 1, band.seqlen_k);
  const double begins = clamped_sum(band.seqlen_q, band.offset - band.left, band.seqlen_k);
  return ends - begins;
}

Work count_work(const Problem& problem) {
  const bool packed_q = problem.layout_q == TESSERA_PACKED, packed_k = problem.layout_kv == TESSERA_PACKED;
  const int64_t batches = problem.batch > 0 ? problem.batch : 1;
  const int64_t length_q = packed_q ? (problem.total_q + batches / 2) / batches : problem.seqlen_q;
  const int64_t length_k = packed_k ? (problem.total_k + batches / 2) / batches : problem.seqlen_k;
  const double batch = static_cast<double>(problem.batch);
  const double rows_q = packed_q ? static_cast<double>(problem.total_q) : batch * static_cast<double>(length_q);
  const double rows_k = packed_k ? static_cast<double>(problem.total_k) : batch * static_cast<double>(length_k);
  const double pairs = batch * problem.heads_q * kept_pairs(problem.band(length_q, length_k));
  const bool backward = problem.pass == TESSERA_BACKWARD;

  Work work{};
  work.flops = 2.0 * pairs * static_cast<double>(problem.head_dims()) * (backward ? 2.5 : 1.0);
  const auto bytes_of = [](const Operand& operand, double rows, int32_t heads, int32_t dim) {
    return rows * heads * dim * dtype_bytes(operand.dtype);
  };
  const int32_t hq = problem.heads_q, hkv = problem.heads_kv, d = problem.head_dim_qk, dv = problem.head_dim_v;
  work.bytes = bytes_of(problem.q, rows_q, hq, d) + bytes_of(problem.k, rows_k, hkv, d) +
               bytes_of(problem.v, rows_k, hkv, dv) + bytes_of(problem.o, rows_q, hq, dv);
  if (backward || problem.has(TESSERA_FLAG_LSE)) work.bytes += rows_q * hq * dtype_bytes(lse_dtype(problem.q.dtype));
  if (problem.has(TESSERA_FLAG_BIAS)) {
    const double extent[4] = {batch, static_cast<double>(hq), static_cast<double>(length_q),
                              static_cast<double>(length_k)};
    double elements = 1;
    for (int i = 0; i < 4; ++i) elements *= problem.bias.stride[i] != 0 ? extent[i] : 1.0;
    work.bytes += elements * dtype_bytes(problem.bias.dtype) * (problem.has(TESSERA_FLAG_D_BIAS) ? 2.0 : 1.0);
  }
  if (backward) {
    work.bytes += bytes_of(problem.d_o, rows_q, hq, dv) + bytes_of(problem.dq, rows_q, hq, d) +
                  bytes_of(problem.dk, rows_k, hkv, d) + bytes_of(problem.dv, rows_k, hkv, dv);
  }
  return work;
}

}  // namespace tessera::core

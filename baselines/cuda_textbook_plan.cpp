// Planning of cuda.textbook: what it takes, its workspace, its estimate.
#include "cuda_blas.hpp"
#include "cuda_textbook.hpp"

namespace tessera::baselines {
namespace {

using core::Problem;

constexpr double kMostPairs = 0x1p40;

int64_t align_256(int64_t bytes) { return (bytes + 255) / 256 * 256; }
int64_t rows_of(const Problem& p) { return p.batch * p.heads_q * p.seqlen_q; }

// Seconds to move `bytes` a pair of query and key.
double estimate(const Problem& p, const core::DeviceInfo& device, double bytes) {
  const double pairs = static_cast<double>(rows_of(p)) * static_cast<double>(p.seqlen_k);
  return device.bandwidth > 0 ? bytes * pairs / device.bandwidth : 0;
}

// dP written and read in 4 bytes; P read twice, dS written once and read twice in 2; a softcap reads S in 4 again.
double backward_bytes(const Problem& p) { return p.softcap > 0 ? 22 : 18; }
// S written once and read three times in 4 bytes, P written and read once in 2.
constexpr double kForwardBytes = 20;
// S written and read once in 4 bytes, P written in 2.
constexpr double kProbsBytes = 10;

}  // namespace

TextbookWorkspace lay_out_textbook(const Problem& p) {
  TextbookWorkspace at{};
  const auto take = [&at](int64_t bytes) {
    const int64_t begin = at.bytes;
    at.bytes += align_256(bytes);
    return begin;
  };
  const bool backward = p.pass == TESSERA_BACKWARD;
  const int64_t pairs = rows_of(p) * p.seqlen_k;
  at.scores = take(4 * pairs);
  at.probs = take(2 * pairs);
  at.d_probs = backward && p.softcap > 0 ? take(4 * pairs) : at.scores;
  at.delta = take(backward ? 4 * rows_of(p) : 0);
  const int64_t summed = backward && p.group > 1 ? 4 * p.batch * p.heads_q * p.seqlen_k : 0;
  at.dk = take(summed * p.head_dim_qk);
  at.dv = take(summed * p.head_dim_v);
  return at;
}

core::Refusal refuse_cuda_textbook(const Problem& p, const core::DeviceInfo& device) {
  if (device.is_cpu) return {"runs on CUDA devices only"};
  if (!have_cublas()) return {"needs libcublas.so.13, which could not be loaded"};
  if (p.q.dtype != TESSERA_F16 && p.q.dtype != TESSERA_BF16) return {"takes f16 and bf16", "q.dtype", p.q.dtype};
  if (p.k.dtype != p.q.dtype || p.v.dtype != p.q.dtype) return {"takes k and v of q's dtype", "k.dtype", p.k.dtype};
  if (p.o.dtype != p.q.dtype && p.o.dtype != TESSERA_F32) return {"writes o in q's dtype or f32", "o.dtype", p.o.dtype};
  if (p.pass == TESSERA_BACKWARD && p.d_o.dtype != p.q.dtype)
    return {"takes d_o in q's dtype", "d_o.dtype", p.d_o.dtype};
  if (p.layout_q != TESSERA_DENSE || p.layout_kv != TESSERA_DENSE)
    return {"takes dense layouts only", "layout_kv", p.layout_kv};
  constexpr uint64_t kTaken = TESSERA_FLAG_LSE | TESSERA_FLAG_ALIBI | TESSERA_FLAG_SINKS | TESSERA_FLAG_D_LSE |
                              TESSERA_FLAG_D_SINKS | TESSERA_FLAG_DETERMINISTIC | TESSERA_FLAG_BATCH_INVARIANT;
  if ((p.flags & ~kTaken) != 0) return {"takes neither used lengths, cache rows, left padding nor bias"};
  if (p.batch < 1 || p.seqlen_q < 1 || p.seqlen_k < 1) return {"takes at least one query and one key"};
  if (p.num_splits > 1) return {"does not split keys", "num_splits", p.num_splits};
  const double rows = static_cast<double>(p.batch) * static_cast<double>(p.heads_q) * static_cast<double>(p.seqlen_q);
  if (rows * static_cast<double>(p.seqlen_k) > kMostPairs)
    return {"writes out at most 2^40 scores", "seqlen_k", p.seqlen_k};
  constexpr int64_t kMostInt = 0x7fffffff;
  for (const int64_t number : {p.seqlen_q, p.seqlen_k, p.q.row_stride, p.k.row_stride, p.v.row_stride, p.o.row_stride,
                               p.d_o.row_stride, p.dq.row_stride, p.dk.row_stride, p.dv.row_stride}) {
    if (number > kMostInt) return {"takes lengths and row strides below 2^31", "number", number};
  }
  return {};
}

core::Launch configure_cuda_textbook(const Problem& p, const core::DeviceInfo& device) {
  core::Launch launch;
  launch.workspace_bytes = lay_out_textbook(p).bytes;
  launch.instructions = "cuBLAS";
  if (p.pass == TESSERA_FORWARD) {
    launch.schedule = "S and P in device memory";
    launch.seconds = estimate(p, device, kForwardBytes);
  } else {
    launch.schedule = p.softcap > 0 ? "S, P and dP in device memory, dS in place of P"
                                    : "S and P in device memory, dP and dS in their place";
    launch.seconds = estimate(p, device, kProbsBytes + backward_bytes(p));
  }
  return launch;
}

int prepare_cuda_textbook(const core::Plan& plan, tessera_status* status) {
  return prepare_cublas(plan.problem.device, status);
}

core::Refusal refuse_textbook_step(const Problem& p, const core::DeviceInfo& device) {
  if (p.pass != TESSERA_BACKWARD) return {"runs both passes of a backward problem", "pass", p.pass};
  return refuse_cuda_textbook(p, device);
}

core::Launch configure_textbook_step(const Problem& p, const core::DeviceInfo& device) {
  core::Launch launch = configure_cuda_textbook(p, device);
  launch.seconds = estimate(p, device, kForwardBytes + backward_bytes(p));
  return launch;
}

}  // namespace tessera::baselines

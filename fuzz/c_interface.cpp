// Random calls of the C interface: plan, run, append, and merge. Invariants: no byte outside the operands is touched
// (AddressSanitizer), nothing is written when a call fails, and finite inputs give no NaN.
#include <cmath>
#include <cstring>
#include <vector>

#include "random_call.hpp"
#include "tessera/tessera.h"

using namespace tessera::fuzz;

namespace {

std::vector<std::vector<std::byte>> copy_outputs(const Call& call) {
  std::vector<std::vector<std::byte>> copies;
  for (const size_t index : call.outputs) {
    const Block& block = call.blocks[index];
    copies.emplace_back(block.data(), block.data() + block.bytes());
  }
  return copies;
}

// Outputs of two-byte rows may start at addresses that no float may be loaded from, so each element is copied out.
template <typename Element>
void require_no_nan(const std::byte* data, size_t bytes) {
  for (size_t n = 0; n < bytes / sizeof(Element); ++n) {
    Element value;
    std::memcpy(&value, data + n * sizeof value, sizeof value);
    require(!std::isnan(value), "finite inputs give no NaN");
  }
}

void require_no_nan(const std::byte* data, size_t bytes, int32_t dtype) {
  if (dtype == TESSERA_F32) require_no_nan<float>(data, bytes);
  if (dtype == TESSERA_F64) require_no_nan<double>(data, bytes);
}

// Of an output in float32 or float64; caches and turned queries hold what their inputs do.
void require_no_nan(const Call& call, const Block& block) {
  const int32_t lse_dtype = call.problem.q.dtype == TESSERA_F64 ? TESSERA_F64 : TESSERA_F32;
  if (block.data() == call.tensors.o) require_no_nan(block.data(), block.bytes(), call.problem.o.dtype);
  if (block.data() == call.tensors.lse) require_no_nan(block.data(), block.bytes(), lse_dtype);
}

void run(const tessera_plan* plan, Bytes& bytes, Call* call) {
  make_tensors(bytes, call);
  if (call->too_large) return;
  const size_t needed = tessera_plan_workspace(plan);
  if (needed > size_t{64} << 20) return;
  const bool short_workspace = needed > 0 && bytes.once_in(16);
  const size_t given = short_workspace ? needed - 1 : needed;
  const Block workspace(given, 256);
  const auto before = copy_outputs(*call);
  tessera_status status;
  const bool alone = call->tensors.append != nullptr && bytes.once_in(2);
  const int code =
      alone ? tessera_append(&call->problem, &call->tensors, &call->append, nullptr, &status)
            : tessera_plan_run(plan, &call->tensors, given == 0 ? nullptr : workspace.data(), given, nullptr, &status);
  if (code == TESSERA_OK) {
    require(alone || !short_workspace, "a short workspace is refused");
    for (const size_t index : call->outputs) require_no_nan(*call, call->blocks[index]);
    return;
  }
  require(status.message[0] != '\0', "a failure has a message");
  const auto after = copy_outputs(*call);
  require(before == after, "nothing is written when a call fails");
}

void merge(Bytes& bytes) {
  tessera_merge_args args = {};
  args.size = sizeof args;
  args.states = bytes.number(-1, 4);
  args.batch = bytes.number(-1, 3);
  args.seqlen_q = bytes.number(-1, 20);
  args.heads = static_cast<int32_t>(bytes.number(-1, 4));
  args.head_dim_v = static_cast<int32_t>(bytes.number(-1, 33));
  args.dtype = static_cast<int32_t>(bytes.number(1, 4));
  args.out_dtype = bytes.once_in(2) ? args.dtype : static_cast<int32_t>(bytes.number(1, 4));
  args.device = -1;
  const auto at_least = [](int64_t n) { return static_cast<size_t>(n > 0 ? n : 0); };
  const size_t rows = at_least(args.batch) * at_least(args.seqlen_q) * at_least(args.heads);
  const size_t states = at_least(args.states), dim = at_least(args.head_dim_v);
  const auto size_of = [](int32_t dtype) { return dtype == TESSERA_F64 ? size_t{8} : dtype == TESSERA_F32 ? 4u : 2u; };
  const size_t lse_size = args.dtype == TESSERA_F64 ? 8 : 4;
  const Block o(states * rows * dim * size_of(args.dtype), 16), lse(states * rows * lse_size, 16);
  const Block o_out(rows * dim * size_of(args.out_dtype), 16), lse_out(rows * lse_size, 16);
  for (size_t n = 0; n < o.bytes(); ++n) o.data()[n] = std::byte(bytes.byte());
  for (size_t n = 0; n < lse.bytes(); ++n) lse.data()[n] = std::byte(bytes.byte());
  args.o = o.data();
  args.lse = lse.data();
  args.o_out = o_out.data();
  args.lse_out = lse_out.data();
  tessera_status status;
  const int code = tessera_merge(&args, nullptr, &status);
  require(code == TESSERA_OK || status.message[0] != '\0', "a failure has a message");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes bytes(data, size);
  if (bytes.once_in(16)) {
    merge(bytes);
    return 0;
  }
  Call call = {};
  make_problem(bytes, &call.problem);
  tessera_status status;
  tessera_plan* plan = nullptr;
  const int code = tessera_plan_create(&call.problem, &plan, &status);
  require((code == TESSERA_OK) == (plan != nullptr), "a plan exists exactly when its creation succeeded");
  require(code == TESSERA_OK || status.message[0] != '\0', "a failure has a message");
  if (plan == nullptr) return 0;
  run(plan, bytes, &call);
  tessera_plan_destroy(plan);
  return 0;
}

// The rules on tessera_quantize: numbers, dtypes, strides and pointers, each once, in the caller's words; and the call.
#include <cinttypes>

#include "cpu/thread_pool.hpp"
#include "kernel_entry.hpp"
#include "operand_rules.hpp"
#include "pointer_rules.hpp"
#include "quantize.hpp"
#include "status.hpp"

namespace tessera::core {
namespace {

int refuse(tessera_status* status, const char* argument, int64_t value, const char* expected) {
  return fail(status, TESSERA_INVALID_ARGUMENT, "%s is %" PRId64 "; expected %s", argument, value, expected);
}

int check_numbers(const tessera_quantize_args& args, tessera_status* status) {
  const struct {
    const char* name;
    int64_t value, least, most;
    const char* expected;
  } rules[] = {
      {"batch", args.batch, 0, INT32_MAX, "0 to 2147483647"},
      {"seqlen", args.seqlen, 0, INT32_MAX, "0 to 2147483647"},
      {"total", args.total, 0, INT32_MAX, "0 to 2147483647"},
      {"heads", args.heads, 1, INT32_MAX, "at least 1"},
      {"head_dim", args.head_dim, 1, INT32_MAX, "at least 1"},
      {"device", args.device, -1, INT32_MAX, "-1 (the CPU) or a CUDA device"},
      {"layout", args.layout, TESSERA_DENSE, TESSERA_PACKED, "TESSERA_DENSE (0) or TESSERA_PACKED (1)"},
      {"order", args.order, 0, 1, "0 (as x) or 1 (v transposed, in groups of 16 rows)"},
      {"hadamard", args.hadamard, 0, 1, "0 or 1"},
      {"subtract_mean", args.subtract_mean, 0, 1, "0 or 1"},
  };
  for (const auto& rule : rules) {
    if (rule.value < rule.least || rule.value > rule.most) return refuse(status, rule.name, rule.value, rule.expected);
  }
  if (args.scale_rows != 0 && args.scale_rows != 1 && args.scale_rows != 128)
    return refuse(status, "scale_rows", args.scale_rows, "0 (all rows), 1 or 128");
  if (args.hadamard == 1 && args.head_dim % 2 != 0)
    return refuse(status, "head_dim", args.head_dim, "an even number where hadamard is 1");
  if (args.layout == TESSERA_DENSE && args.total != 0)
    return refuse(status, "total", args.total, "0 where the layout is dense");
  return TESSERA_OK;
}

int resolve(const tessera_quantize_args& args, Quantize* out, tessera_status* status) {
  const bool packed = args.layout == TESSERA_PACKED;
  if (args.x.dtype != TESSERA_F32 && args.x.dtype != TESSERA_F16 && args.x.dtype != TESSERA_BF16)
    return refuse_dtype(status, "x", args.x.dtype, "f32, f16 or bf16");
  const int32_t to = args.y.dtype != 0 ? args.y.dtype : TESSERA_E4M3;
  if (to != TESSERA_E4M3 && to != TESSERA_INT8) return refuse_dtype(status, "y", to, "e4m3 or int8");
  const Dims rows = packed ? Dims{{args.total, args.heads, args.head_dim, 0}, 3}
                           : Dims{{args.batch, args.seqlen, args.heads, args.head_dim}, 4};
  int code = resolve_operand(status, "x", args.x, args.x.dtype, rows, false, &out->x);
  const Dims ordered = packed ? Dims{{args.heads, args.head_dim, packed_first_slot(args.total, args.batch), 0}, 3}
                              : Dims{{args.batch, args.heads, args.head_dim, whole_groups(args.seqlen)}, 4};
  if (code == TESSERA_OK)
    code = resolve_operand(status, "y", args.y, to, args.order == 1 ? ordered : rows, true, &out->y);
  if (args.order == 1) std::swap(out->y.row_stride, out->y.head_stride);
  if (code != TESSERA_OK) return code;
  if (args.scale.dtype != 0 && args.scale.dtype != TESSERA_F32)
    return refuse_dtype(status, "scale", args.scale.dtype, "f32");
  const int64_t blocks = args.scale_rows > 0 ? (args.seqlen + args.scale_rows - 1) / args.scale_rows : 1;
  const Dims cells{{args.batch, blocks, args.heads, 1}, 3};
  int64_t stride[4];
  std::copy(args.scale.stride, args.scale.stride + 4, stride);
  code = check_scale_strides(status, "scale", cells, stride);
  for (int i = 0; i < 3; ++i) {
    out->scale_stride[i] = stride[i];
    out->cells[i] = stride[i] == 0 ? std::min<int64_t>(cells.extent[i], 1) : cells.extent[i];
  }
  out->rotation = args.hadamard == 1 ? rotation_block(args.head_dim) : 0;
  return code;
}

int check_pointers(const Quantize& quantize, tessera_status* status) {
  const tessera_quantize_args& args = *quantize.args;
  const bool packed = quantize.packed(), some = args.batch > 0 && (packed ? args.total : args.seqlen) > 0;
  if (!packed && args.cu_seqlens != nullptr)
    return fail(status, TESSERA_INVALID_ARGUMENT, "cu_seqlens is %p and layout is dense; expected NULL",
                static_cast<const void*>(args.cu_seqlens));
  if (args.subtract_mean == 0 && args.mean != nullptr) {
    return fail(status, TESSERA_INVALID_ARGUMENT, "mean is %p and subtract_mean is 0; expected NULL",
                static_cast<const void*>(args.mean));
  }
  const PointerRule rules[] = {
      {"x_data", args.x_data, quantize.x.align, some},
      {"y_data", args.y_data, quantize.y.align, some},
      {"scale_data", args.scale_data, 4, args.scale_data != nullptr},
      {"mean", args.mean, 4, args.batch > 0 && args.subtract_mean == 1},
      {"cu_seqlens", args.cu_seqlens, 4, packed},
  };
  if (const int code = check_rules(rules, status)) return code;
  if (!some || args.x_data != args.y_data) return TESSERA_OK;
  return fail(status, TESSERA_INVALID_ARGUMENT,
              "y_data is %p, as x_data; expected memory of its own for what is written", args.y_data);
}

int check_lengths(const tessera_quantize_args& args, tessera_status* status) {
  if (args.layout != TESSERA_PACKED) return TESSERA_OK;
  const int32_t* cu = args.cu_seqlens;
  if (cu[0] != 0) return refuse(status, "cu_seqlens[0]", cu[0], "0");
  for (int64_t b = 0; b < args.batch; ++b) {
    const int64_t rows = int64_t{cu[b + 1]} - cu[b];
    if (rows >= 0 && rows <= args.seqlen && cu[b + 1] <= args.total) continue;
    return fail(status, TESSERA_INVALID_ARGUMENT,
                "cu_seqlens[%" PRId64 "] is %d behind %d; expected it not to fall, at most total = %" PRId64
                " and at most seqlen = %" PRId64 " more",
                b + 1, cu[b + 1], cu[b], args.total, args.seqlen);
  }
  return TESSERA_OK;
}

}  // namespace

int quantize(const tessera_quantize_args& args, const tessera_exec* exec, tessera_status* status) {
  Quantize resolved;
  resolved.args = &args;
  if (const int code = check_numbers(args, status)) return code;
  if (const int code = resolve(args, &resolved, status)) return code;
  const char* reason = "";
  if (args.device >= 0 && cuda_info(args.device, &reason) == nullptr)
    return fail(status, TESSERA_NO_DEVICE, "device is %d, but %s", args.device, reason);
  if (const int code = check_exec(exec, args.device < 0, status)) return code;
  if (const int code = check_pointers(resolved, status)) return code;
  if (args.device >= 0) {
    if (const int code = check_quantize_cuda(resolved, status)) return code;
    const int code = run_quantize_cuda(resolved, exec != nullptr ? exec->cuda_stream : nullptr, status);
    return code == TESSERA_OK ? succeed(status) : code;
  }
  if (const int code = check_lengths(args, status)) return code;
  run_quantize(resolved, exec != nullptr && exec->executor != nullptr ? *exec->executor : cpu::default_executor());
  return succeed(status);
}

}  // namespace tessera::core

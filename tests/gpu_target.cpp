// The situations' target on CUDA device 0: the storages that a call points into, mirrored with their canaries.
#include <cuda_runtime_api.h>

#include <cstring>
#include <set>
#include <type_traits>
#include <vector>

#include "device_info.hpp"
#include "gpu_mirror.hpp"
#include "kernel_entry.hpp"
#include "support.hpp"

namespace tessera::test {
namespace {

using baselines::Mirror;

constexpr int32_t kDevice = 0;

void add_storages(const tessera_tensors& tensors, const void* workspace, Mirror* mirror) {
  // Behind `size` the struct is nothing but pointers.
  std::vector<const void*> pointers((sizeof tensors - sizeof tensors.size) / sizeof(void*));
  std::memcpy(pointers.data(), reinterpret_cast<const std::byte*>(&tensors) + sizeof tensors.size,
              pointers.size() * sizeof(void*));
  pointers.push_back(workspace);
  if (const tessera_append_args* a = tensors.append) {
    pointers.insert(pointers.end(), {a->k_new_data, a->v_new_data, a->rotary_cos, a->rotary_sin, a->cu_seqlens_new,
                                     a->k_cache, a->v_cache, a->q_rotated});
  }
  std::set<std::byte*> added;
  for (const void* pointer : pointers) {
    const Storage::Range range = Storage::range_of(pointer);
    if (range.begin == range.end || !added.insert(range.begin).second) continue;
    mirror->add(range.begin, static_cast<size_t>(range.end - range.begin));
  }
}

int run(const tessera_plan* plan, const tessera_tensors& tensors, void* workspace, size_t bytes,
        tessera_status* status) {
  DeviceCall call(tensors, workspace);
  call.mirror.upload();
  const int code = tessera_plan_run(plan, &call.tensors, call.mirror.translate(workspace), bytes, nullptr, status);
  call.mirror.download();
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "an error was left behind";
  return code;
}

int check_metadata(const tessera_plan* plan, const tessera_tensors& tensors, tessera_status* status) {
  DeviceCall call(tensors);
  call.mirror.upload();
  return tessera_check_metadata(plan, &call.tensors, nullptr, status);
}

int merge(const tessera_merge_args& host, bool backward, tessera_status* status) {
  const auto bytes = [](int64_t count, int32_t dtype) {
    return static_cast<size_t>(count) * static_cast<size_t>(core::dtype_bytes(dtype));
  };
  const int64_t rows = host.batch * host.seqlen_q * host.heads, states = host.states;
  const int32_t lse = core::lse_dtype(host.dtype);
  tessera_merge_args args = host;
  args.device = kDevice;
  Mirror mirror(kDevice);
  const auto add = [&](const void* pointer, size_t size) {
    if (pointer != nullptr) mirror.add(pointer, size);
  };
  add(host.o, bytes(states * rows * host.head_dim_v, host.dtype));
  add(host.lse, bytes(states * rows, lse));
  add(host.o_out, bytes(rows * host.head_dim_v, host.out_dtype));
  add(host.lse_out, bytes(rows, lse));
  if (backward) {
    add(host.d_o_out, bytes(rows * host.head_dim_v, host.out_dtype));
    add(host.d_lse_out, bytes(rows, lse));
    add(host.d_o, bytes(states * rows * host.head_dim_v, host.dtype));
    add(host.d_lse, bytes(states * rows, lse));
    args.d_o_out = mirror.translate(host.d_o_out);
    args.d_lse_out = mirror.translate(host.d_lse_out);
    args.d_o = mirror.translate(host.d_o);
    args.d_lse = mirror.translate(host.d_lse);
  }
  args.o = mirror.translate(host.o);
  args.lse = mirror.translate(host.lse);
  args.o_out = mirror.translate(host.o_out);
  args.lse_out = mirror.translate(host.lse_out);
  mirror.upload();
  const int code = backward ? tessera_merge_backward(&args, nullptr, status) : tessera_merge(&args, nullptr, status);
  mirror.download();
  return code;
}

int append(const tessera_problem& host, const tessera_tensors& tensors, const tessera_append_args& args,
           tessera_status* status) {
  tessera_tensors with_rows = tensors;
  with_rows.append = &args;
  DeviceCall call(with_rows);
  call.mirror.upload();
  tessera_problem problem = host;
  problem.device = kDevice;
  const int code = tessera_append(&problem, &call.tensors, &call.append, nullptr, status);
  call.mirror.download();
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "an error was left behind";
  return code;
}

int quantize(const tessera_quantize_args& host, tessera_status* status) {
  tessera_quantize_args args = host;
  args.device = kDevice;
  Mirror mirror(kDevice);
  std::set<std::byte*> added;
  for (const void* pointer :
       std::initializer_list<const void*>{host.x_data, host.cu_seqlens, host.y_data, host.scale_data, host.mean}) {
    const Storage::Range range = Storage::range_of(pointer);
    if (range.begin == range.end || !added.insert(range.begin).second) continue;
    mirror.add(range.begin, static_cast<size_t>(range.end - range.begin));
  }
  args.x_data = mirror.translate(host.x_data);
  args.cu_seqlens = static_cast<const int32_t*>(mirror.translate(host.cu_seqlens));
  args.y_data = mirror.translate(host.y_data);
  args.scale_data = static_cast<float*>(mirror.translate(host.scale_data));
  args.mean = static_cast<float*>(mirror.translate(host.mean));
  mirror.upload();
  const int code = tessera_quantize(&args, nullptr, status);
  mirror.download();
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "an error was left behind";
  return code;
}

constexpr Target kTarget{run, check_metadata, merge, append, quantize};

}  // namespace

DeviceCall::DeviceCall(const tessera_tensors& host, const void* workspace) : mirror(kDevice), tensors(host), append{} {
  add_storages(host, workspace, &mirror);
  tensors.append = nullptr;
  tensors = mirror.translate(tensors);
  if (host.append == nullptr) return;
  append = *host.append;
  const auto move = [&](auto** pointer) {
    *pointer = static_cast<std::remove_reference_t<decltype(*pointer)>>(mirror.translate(*pointer));
  };
  move(&append.k_new_data), move(&append.v_new_data);
  move(&append.rotary_cos), move(&append.rotary_sin);
  move(&append.cu_seqlens_new);
  move(&append.k_cache), move(&append.v_cache), move(&append.q_rotated);
  tensors.append = &append;
}

OnGpu::OnGpu() { gpu_target = &kTarget; }
OnGpu::~OnGpu() { gpu_target = nullptr; }

const char* no_gpu() {
  const char* reason = nullptr;
  return core::cuda_info(kDevice, &reason) != nullptr ? nullptr : reason;
}

}  // namespace tessera::test

// The situations' target on CUDA device 0: the storages that a call points into, mirrored with their canaries.
#include <cuda_runtime_api.h>

#include <cstring>
#include <set>
#include <vector>

#include "baselines/device_memory.hpp"
#include "device_info.hpp"
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
  std::set<std::byte*> added;
  for (const void* pointer : pointers) {
    const Storage::Range range = Storage::range_of(pointer);
    if (range.begin == range.end || !added.insert(range.begin).second) continue;
    mirror->add(range.begin, static_cast<size_t>(range.end - range.begin));
  }
}

int run(const tessera_plan* plan, const tessera_tensors& tensors, void* workspace, size_t bytes,
        tessera_status* status) {
  Mirror mirror(kDevice);
  add_storages(tensors, workspace, &mirror);
  mirror.upload();
  const tessera_tensors on_device = mirror.translate(tensors);
  const int code = tessera_plan_run(plan, &on_device, mirror.translate(workspace), bytes, nullptr, status);
  mirror.download();
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "an error was left behind";
  return code;
}

int check_metadata(const tessera_plan* plan, const tessera_tensors& tensors, tessera_status* status) {
  Mirror mirror(kDevice);
  add_storages(tensors, nullptr, &mirror);
  mirror.upload();
  const tessera_tensors on_device = mirror.translate(tensors);
  return tessera_check_metadata(plan, &on_device, nullptr, status);
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

constexpr Target kTarget{run, check_metadata, merge};

}  // namespace

OnGpu::OnGpu() { gpu_target = &kTarget; }
OnGpu::~OnGpu() { gpu_target = nullptr; }

const char* no_gpu() {
  const char* reason = nullptr;
  return core::cuda_info(kDevice, &reason) != nullptr ? nullptr : reason;
}

}  // namespace tessera::test

// What planning knows of a machine: plain data, read from the system once or named ("h200"), so that planning for a
// GPU works on machines without one.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera::core {

// CPU instruction sets in rising order; a row runs natively when the machine's level reaches it.
enum class Isa : int32_t { portable = 1, avx2 = 2, avx512 = 3, amx = 4, neon = 5 };  // TESSERA_ISA_*

struct DeviceInfo {
  char name[32];
  bool is_cpu;
  bool present;   // false: named only, or no driver
  int32_t arch;   // CUDA: 10 * major + minor; CPU: 0
  int32_t units;  // multiprocessors, or CPUs of the affinity mask
  int64_t l1_bytes, l2_bytes, l3_bytes;
  int64_t shared_bytes_per_block, memory_bytes;
  // Rough peaks for estimates and explain: FLOP/s of the unit for that type, and bytes/s.
  double peak_f32, peak_16bit, peak_8bit, bandwidth;
  // CPU features.
  Isa isa;  // highest level that the CPU and the kernel both allow
  bool has_f16c, has_avx512_bf16, has_avx512_fp16, has_amx_bf16, has_amx_int8;
};

// This machine's CPU, read once; TESSERA_ISA caps `isa`.
const DeviceInfo& cpu_info();

// The CUDA device `index`, or null with a static reason ("no NVIDIA driver", "built without CUDA").
const DeviceInfo* cuda_info(int32_t index, const char** reason);

// How many CUDA devices there are; 0 without a driver or without CUDA.
int32_t cuda_device_count();

// Null, or what is wrong with TESSERA_ISA; planning for the CPU reports it.
const char* cpu_isa_error();

// "portable", "avx2", ... as in isa=; null for an unknown value. isa_from_name gives 0 for an unknown name.
const char* isa_name(int32_t isa);
int32_t isa_from_name(std::string_view name);

// A GPU by name: h200, h100, a100, rtx4090, b200. Null when unknown.
const DeviceInfo* named_device(std::string_view name);

}  // namespace tessera::core

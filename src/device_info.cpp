// The CPU by cpuid, XCR0 and the kernel's word on AMX; caches and clock from sysfs; GPUs by name from data sheets.
#include "device_info.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "cpu/thread_pool.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#endif

namespace tessera::core {
namespace {

constexpr const char* kIsaNames[] = {nullptr, "portable", "avx2", "avx512", "amx", "neon"};

// First number of a sysfs file, with a K or M behind it taken into account; 0 when it cannot be read.
int64_t read_number(const char* path) {
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return 0;
  long long value = 0;
  char unit = 0;
  const int fields = std::fscanf(file, "%lld%c", &value, &unit);
  std::fclose(file);
  if (fields < 1 || value < 0 || value > (int64_t{1} << 40)) return 0;
  return value * (unit == 'K' ? 1024 : unit == 'M' ? 1024 * 1024 : 1);
}

void read_caches(DeviceInfo* info) {
  for (int index = 0; index < 8; ++index) {
    char path[96];
    const char* folder = "/sys/devices/system/cpu/cpu0/cache/index";
    std::snprintf(path, sizeof path, "%s%d/type", folder, index);
    char type = 0;  // Data, Instruction, Unified
    if (std::FILE* file = std::fopen(path, "re")) {
      if (std::fscanf(file, "%c", &type) != 1) type = 0;
      std::fclose(file);
    }
    if (type != 'D' && type != 'U') continue;
    std::snprintf(path, sizeof path, "%s%d/level", folder, index);
    const int64_t level = read_number(path);
    std::snprintf(path, sizeof path, "%s%d/size", folder, index);
    const int64_t bytes = read_number(path);
    if (level == 1) info->l1_bytes = bytes;
    if (level == 2) info->l2_bytes = bytes;
    if (level == 3) info->l3_bytes = bytes;
  }
#if defined(_SC_LEVEL1_DCACHE_SIZE)
  if (info->l1_bytes <= 0) info->l1_bytes = sysconf(_SC_LEVEL1_DCACHE_SIZE);
  if (info->l2_bytes <= 0) info->l2_bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (info->l3_bytes <= 0) info->l3_bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
  // Containers without sysfs: the smallest caches of the last ten years' servers.
  if (info->l1_bytes <= 0) info->l1_bytes = 32 << 10;
  if (info->l2_bytes <= 0) info->l2_bytes = 512 << 10;
  if (info->l3_bytes < 0) info->l3_bytes = 0;
}

#if defined(__x86_64__)
uint64_t read_xcr0() {
  uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

// Linux hands out AMX's tile registers only on request, once a process; later threads inherit it.
bool amx_permitted() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr int kReqXcompPerm = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kReqXcompPerm, kTileData) == 0;
#else
  return false;
#endif
}

void read_name(DeviceInfo* info) {
  unsigned brand[12] = {};
  if (static_cast<unsigned>(__get_cpuid_max(0x80000000u, nullptr)) >= 0x80000004u) {
    for (unsigned leaf = 0; leaf < 3; ++leaf) {
      __get_cpuid(0x80000002u + leaf, brand + 4 * leaf, brand + 4 * leaf + 1, brand + 4 * leaf + 2,
                  brand + 4 * leaf + 3);
    }
  }
  char text[sizeof brand + 1] = {};
  std::memcpy(text, brand, sizeof brand);
  const char* begin = text;
  while (*begin == ' ') ++begin;
  std::snprintf(info->name, sizeof info->name, "%.31s", *begin != '\0' ? begin : "x86-64");
}

// Bits: Intel SDM volume 2, CPUID leaves 1, 7.0 and 7.1; XCR0 bits in volume 1, chapter 13.
void read_features(DeviceInfo* info) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  info->isa = Isa::portable;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return;
  const bool osxsave = (c >> 27 & 1) != 0, fma = (c >> 12 & 1) != 0, f16c = (c >> 29 & 1) != 0;
  const uint64_t xcr0 = osxsave ? read_xcr0() : 0;
  const bool ymm = (xcr0 & 0x6) == 0x6, zmm = (xcr0 & 0xe6) == 0xe6, tiles = (xcr0 & 0x60000) == 0x60000;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return;
  const unsigned leaf7_b = b, leaf7_d = d, subleaves = a;
  unsigned leaf71_a = 0;
  if (subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0) leaf71_a = a;
  info->has_f16c = f16c && ymm;
  if (ymm && fma && f16c && (leaf7_b >> 5 & 1) != 0) info->isa = Isa::avx2;
  constexpr unsigned kAvx512 = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;  // f, dq, cd, bw, vl
  if (info->isa != Isa::avx2 || !zmm || (leaf7_b & kAvx512) != kAvx512) return;
  info->isa = Isa::avx512;
  info->has_avx512_bf16 = (leaf71_a >> 5 & 1) != 0;
  info->has_avx512_fp16 = (leaf7_d >> 23 & 1) != 0;
  const bool amx_tile = (leaf7_d >> 24 & 1) != 0;
  if (!tiles || !amx_tile || (leaf7_d >> 22 & 1) == 0 || !amx_permitted()) return;
  info->isa = Isa::amx;
  info->has_amx_bf16 = true;
  info->has_amx_int8 = (leaf7_d >> 25 & 1) != 0;
}
#elif defined(__aarch64__)
void read_name(DeviceInfo* info) { std::snprintf(info->name, sizeof info->name, "aarch64"); }
void read_features(DeviceInfo* info) { info->isa = Isa::neon; }
#else
void read_name(DeviceInfo* info) { std::snprintf(info->name, sizeof info->name, "cpu"); }
void read_features(DeviceInfo* info) { info->isa = Isa::portable; }
#endif

// Shapes a wrong or absent clock cannot spoil: estimates are rough and bench probes the real peaks.
void estimate_peaks(DeviceInfo* info) {
  const int64_t khz = read_number("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq");
  const double clock = khz > 0 ? static_cast<double>(khz) * 1e3 : 3e9;
  double flops_per_cycle = 4;  // portable: one 4-lane multiply or add a cycle
  if (info->isa == Isa::avx2) flops_per_cycle = 32;
  if (info->isa == Isa::avx512 || info->isa == Isa::amx) flops_per_cycle = 64;
  if (info->isa == Isa::neon) flops_per_cycle = 16;
  info->peak_f32 = info->units * clock * flops_per_cycle;
  info->peak_16bit = info->has_amx_bf16 ? info->units * clock * 1024 : info->peak_f32;
  info->peak_8bit = info->has_amx_int8 ? info->units * clock * 2048 : info->peak_f32;
  // 12 GB/s a core is what one core's outstanding misses sustain on recent servers; a socket stops near 200.
  info->bandwidth = 12e9 * info->units < 200e9 ? 12e9 * info->units : 200e9;
}

struct CpuState {
  DeviceInfo info{};
  char isa_error[128] = "";
};

CpuState read_cpu() {
  CpuState state;
  DeviceInfo& info = state.info;
  info.is_cpu = info.present = true;
  info.units = cpu::affinity_cpus();
  read_name(&info);
  read_features(&info);
  if (const char* cap = std::getenv("TESSERA_ISA"); cap != nullptr && cap[0] != '\0') {
    const int32_t level = isa_from_name(cap);
    if (level == 0) {
      std::snprintf(state.isa_error, sizeof state.isa_error,
                    "TESSERA_ISA is \"%.40s\"; expected portable, avx2, avx512, amx or neon", cap);
    } else if (static_cast<Isa>(level) < info.isa &&
               (info.isa != Isa::neon || static_cast<Isa>(level) == Isa::portable)) {
      // On Arm the x86 levels are another architecture's, and cap nothing.
      info.isa = static_cast<Isa>(level);
      info.has_amx_bf16 = info.has_amx_int8 = false;
      if (info.isa < Isa::avx512) info.has_avx512_bf16 = info.has_avx512_fp16 = false;
      if (info.isa < Isa::avx2) info.has_f16c = false;
    }
  }
  read_caches(&info);
  const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  info.memory_bytes = pages > 0 && page_bytes > 0 ? int64_t{pages} * page_bytes : 0;
  info.shared_bytes_per_block = 0;
  estimate_peaks(&info);
  return state;
}

const CpuState& cpu_state() {
  static const CpuState kState = read_cpu();
  return kState;
}

DeviceInfo gpu(const char* name, int32_t arch, int32_t units, int64_t l2_mib, int64_t shared_kib, int64_t memory_gib,
               double f32, double f16, double f8, double bandwidth) {
  DeviceInfo info{};
  std::snprintf(info.name, sizeof info.name, "%s", name);
  info.arch = arch;
  info.units = units;
  info.l1_bytes = (shared_kib + 1) << 10;
  info.l2_bytes = l2_mib << 20;
  info.shared_bytes_per_block = shared_kib << 10;
  info.memory_bytes = memory_gib << 30;
  info.peak_f32 = f32 * 1e12;
  info.peak_16bit = f16 * 1e12;
  info.peak_8bit = f8 * 1e12;
  info.bandwidth = bandwidth * 1e12;
  return info;
}

}  // namespace

const DeviceInfo& cpu_info() { return cpu_state().info; }

const char* cpu_isa_error() {
  const char* error = cpu_state().isa_error;
  return error[0] != '\0' ? error : nullptr;
}

const DeviceInfo* named_device(std::string_view name) {
  // Dense figures of NVIDIA's data sheets: H200 and H100 SXM (2023), A100 80 GB SXM (2021), GeForce RTX 4090 (Ada
  // whitepaper 1.1), B200 SXM (2024); shared memory a block: CUDA C++ Programming Guide, compute capabilities table.
  static const DeviceInfo kDevices[] = {
      gpu("h200", 90, 132, 50, 227, 141, 66.9, 989.5, 1979, 4.8),
      gpu("h100", 90, 132, 50, 227, 80, 66.9, 989.5, 1979, 3.35),
      gpu("a100", 80, 108, 40, 163, 80, 19.5, 312, 624, 2.04),
      gpu("rtx4090", 89, 128, 72, 99, 24, 82.6, 165.2, 660.6, 1.008),
      gpu("b200", 100, 148, 126, 227, 180, 75, 2250, 4500, 8.0),
  };
  for (const DeviceInfo& device : kDevices) {
    if (name == device.name) return &device;
  }
  return nullptr;
}

const char* isa_name(int32_t isa) {
  return isa > 0 && isa < static_cast<int32_t>(std::size(kIsaNames)) ? kIsaNames[isa] : nullptr;
}

int32_t isa_from_name(std::string_view name) {
  for (int32_t isa = 1; isa < static_cast<int32_t>(std::size(kIsaNames)); ++isa) {
    if (name == kIsaNames[isa]) return isa;
  }
  return 0;
}

}  // namespace tessera::core

// What planning knows of machines.
#include "device_info.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>

#include "cpu/thread_pool.hpp"
#include "devices.hpp"

namespace tessera::core {
namespace {

TEST(DeviceInfo, CpuIsPlausible) {
  const DeviceInfo& cpu = cpu_info();
  EXPECT_TRUE(cpu.is_cpu);
  EXPECT_TRUE(cpu.present);
  EXPECT_EQ(&cpu, &cpu_info());
  EXPECT_NE(cpu.name[0], '\0');
  EXPECT_EQ(cpu.units, cpu::affinity_cpus());
  EXPECT_GE(cpu.l1_bytes, 8 << 10);
  EXPECT_LE(cpu.l1_bytes, 1 << 20);
  EXPECT_GE(cpu.l2_bytes, cpu.l1_bytes);
  EXPECT_GT(cpu.memory_bytes, int64_t{1} << 26);
  EXPECT_GT(cpu.peak_f32, 1e9);
  EXPECT_GT(cpu.bandwidth, 1e9);
  EXPECT_EQ(cpu_isa_error(), nullptr);
}

// The kernel's own list of features is the judge of ours.
TEST(DeviceInfo, FeaturesAgreeWithTheKernel) {
#if !defined(__x86_64__)
  GTEST_SKIP() << "x86-64 features only";
#endif
  if (std::getenv("TESSERA_ISA") != nullptr) GTEST_SKIP() << "TESSERA_ISA caps what is reported";
  std::ifstream file("/proc/cpuinfo");
  std::string line, flags;
  while (flags.empty() && std::getline(file, line)) {
    if (line.rfind("flags", 0) == 0) flags = line + " ";
  }
  if (flags.empty()) GTEST_SKIP() << "no flags in /proc/cpuinfo";
  const auto has = [&](const char* name) { return flags.find(std::string(" ") + name + " ") != std::string::npos; };
  const DeviceInfo& cpu = cpu_info();
  const bool avx2 = has("avx2") && has("fma") && has("f16c");
  const bool avx512 =
      avx2 && has("avx512f") && has("avx512bw") && has("avx512dq") && has("avx512vl") && has("avx512cd");
  EXPECT_EQ(cpu.isa >= Isa::avx2, avx2);
  EXPECT_EQ(cpu.isa >= Isa::avx512, avx512);
  EXPECT_EQ(cpu.has_f16c, has("f16c"));
  EXPECT_EQ(cpu.has_avx512_bf16, avx512 && has("avx512_bf16"));
  EXPECT_EQ(cpu.has_avx512_fp16, avx512 && has("avx512_fp16"));
  if (!has("amx_bf16")) {
    EXPECT_LT(cpu.isa, Isa::amx);
  }
}

TEST(DeviceInfo, NamedGpus) {
  for (const char* name : {"h200", "h100", "a100", "rtx4090", "b200"}) {
    const DeviceInfo* gpu = named_device(name);
    ASSERT_NE(gpu, nullptr) << name;
    EXPECT_STREQ(gpu->name, name);
    EXPECT_FALSE(gpu->is_cpu);
    EXPECT_FALSE(gpu->present);
    EXPECT_GE(gpu->arch, 80);
    EXPECT_GT(gpu->peak_16bit, gpu->peak_f32);
    EXPECT_GE(gpu->shared_bytes_per_block, 99 << 10);
  }
  EXPECT_EQ(named_device("h2000"), nullptr);
  EXPECT_EQ(named_device(""), nullptr);
}

TEST(DeviceInfo, IsaNames) {
  for (int32_t isa = TESSERA_ISA_PORTABLE; isa <= TESSERA_ISA_NEON; ++isa) EXPECT_EQ(isa_from_name(isa_name(isa)), isa);
  EXPECT_EQ(isa_name(0), nullptr);
  EXPECT_EQ(isa_name(6), nullptr);
  EXPECT_EQ(isa_from_name("sse"), 0);
}

TEST(DeviceInfo, DevicesListsEveryRow) {
  const std::string words = describe_devices({}, false), json = describe_devices({}, true);
  EXPECT_NE(words.find(cpu_info().name), std::string::npos);
  for (const KernelEntry& entry : cpu_kernels()) {
    EXPECT_NE(words.find(entry.name), std::string::npos);
    EXPECT_NE(json.find(entry.name), std::string::npos);
  }
  EXPECT_EQ(json.find('\n'), std::string::npos);
}

// The longest name of a row is followed by a space, and 8-bit caches are asked for too.
TEST(DeviceInfo, DevicesSetsWordsApart) {
  static constexpr KernelEntry kRow{"cpu.portable.forward.of_a_long_name",
                                    [](const Problem& p, const DeviceInfo&) {
                                      return p.k.dtype == TESSERA_E4M3 && p.q.dtype == TESSERA_BF16
                                                 ? Refusal{}
                                                 : Refusal{"takes an e4m3 cache", "k.dtype", p.k.dtype};
                                    },
                                    [](const Problem&, const DeviceInfo&) { return Launch{}; }, nullptr};
  const std::string words = describe_devices({&kRow, 1}, false);
  EXPECT_NE(words.find("cpu.portable.forward.of_a_long_name native: bf16 kv=e4m3\n"), std::string::npos) << words;
}

}  // namespace
}  // namespace tessera::core

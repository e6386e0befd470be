// TESSERA_ISA from outside, since a process reads it once: which row a decode and a prefill problem get under each cap,
// and that every row above the cap says so. A cap above the machine, or of another architecture, is none.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "device_info.hpp"
#include "tessera/tessera.h"

namespace tessera::core {
namespace {

nlohmann::json explained(const std::string& cap, const std::string& problem) {
  const std::string command =
      "TESSERA_KERNEL= TESSERA_ISA=" + cap + " '" + TESSERA_CLI_PATH + "' explain --json '" + problem + "'";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string text;
  char buffer[4096];
  for (size_t n; pipe != nullptr && (n = std::fread(buffer, 1, sizeof buffer, pipe.get())) > 0;) text.append(buffer, n);
  return nlohmann::json::parse(text, nullptr, false);
}

TEST(IsaCaps, EachCapTakesItsRows) {
  if (std::getenv("TESSERA_ISA") != nullptr) GTEST_SKIP() << "TESSERA_ISA caps what this machine is known to have";
  const auto machine = static_cast<int32_t>(cpu_info().isa);
  const bool arm = machine == TESSERA_ISA_NEON;
  for (int32_t cap = TESSERA_ISA_PORTABLE; cap <= TESSERA_ISA_NEON; ++cap) {
    const char* name = isa_name(cap);
    SCOPED_TRACE(name);
    int32_t level = machine;
    if (cap == TESSERA_ISA_PORTABLE) level = cap;
    if (!arm && cap != TESSERA_ISA_NEON) level = std::min(cap, machine);
    const std::string vector_set = isa_name(level == TESSERA_ISA_AMX ? TESSERA_ISA_AVX512 : level);

    for (const char* words : {"f32 hq8 hkv2 sq1 sk4096 d64", "bf16 hq8 hkv2 sq1 sk4096 d64"}) {
      const nlohmann::json decode = explained(name, words);
      ASSERT_FALSE(decode.is_discarded());
      EXPECT_EQ(decode["kernel"], "cpu." + vector_set + ".decode") << words;
      if (decode["passed_over"] > 0 && level != TESSERA_ISA_AMX) {
        EXPECT_NE(std::string(decode["first_reason"]).find("or TESSERA_ISA caps it"), std::string::npos);
      }
    }
    // Tiles take int8 keys of any number of rows.
    for (const char* words : {"bf16 hq8 hkv2 sq1 sk4096 d64 kv=int8", "bf16 hq8 hkv2 sq3 sk4096 d64 kv=int8"}) {
      const bool tiles = level == TESSERA_ISA_AMX && cpu_info().has_amx_int8;
      EXPECT_EQ(explained(name, words)["kernel"], tiles ? "cpu.amx.decode" : "cpu." + vector_set + ".decode") << words;
    }
    EXPECT_EQ(explained(name, "f64 hq8 sq512 d64")["kernel"], "cpu." + vector_set + ".forward");
    for (const char* words : {"bf16 hq8 sq512 d64", "f32 hq8 sq512 d64"}) {
      const nlohmann::json forward = explained(name, words);
      EXPECT_EQ(forward["kernel"], level == TESSERA_ISA_AMX ? "cpu.amx.forward" : "cpu." + vector_set + ".forward");
      for (const auto& row : forward["rows"]) {
        if (row["kernel"] != "cpu.amx.forward" || level == TESSERA_ISA_AMX) continue;
        EXPECT_NE(std::string(row["reason"]).find("or TESSERA_ISA caps it"), std::string::npos) << row["reason"];
      }
    }
  }
}

}  // namespace
}  // namespace tessera::core

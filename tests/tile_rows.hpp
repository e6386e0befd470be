// What the tests of the CPU rows on matrix tiles share: both rows of a pass against the judge, and cases around units
// of 32 rows, steps of 32 and 64 keys and chunks of 256.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "judged_run.hpp"

namespace tessera::tests {

// The emulated row ("cpu.amx_emulated." and the pass) must run; the native one runs or refuses.
inline void check_tile_rows(const baselines::OperandSet& operands, const std::string& pass, const std::string& what) {
  const Judged judged = judge(operands);
  RunResult result;
  EXPECT_EQ(check_row(operands, judged, "cpu.amx_emulated." + pass, &result), "") << what;
  EXPECT_EQ(result.code, TESSERA_OK) << what << ": " << result.message;
  EXPECT_EQ(check_row(operands, judged, "cpu.amx." + pass, &result), "") << what;
}

inline constexpr const char* kTileSizes[] = {"sq33 sk65", "sq64 sk64", "sq31 sk257",
                                             "sq70 sk30", "sq1 sk100", "sq96 sk300"};
inline constexpr const char* kTileTerms[] = {"",
                                             "causal",
                                             "topleft causal",
                                             "window=20,0",
                                             "window=0,0",
                                             "window=5,9",
                                             "window=-1,40",
                                             "window=300,300",
                                             "softcap=4",
                                             "softcap=0.001 causal",
                                             "alibi",
                                             "alibi causal",
                                             "sinks causal",
                                             "sinks window=3,0",
                                             "bias=bh",
                                             "bias=h",
                                             "bias=1 causal",
                                             "mask",
                                             "mask causal softcap=9",
                                             "scale=0",
                                             "scale=-0.4",
                                             "scale=3 causal"};
inline constexpr const char* kTileDims[] = {"d1",  "d7 dv33",    "d31",      "d64 dv128", "d128 dv64",
                                            "d72", "d192 dv128", "d96 dv17", "d256",      "d576 dv512"};
inline constexpr const char* kTileHeads[] = {"hq3", "hq4 hkv1", "hq7 hkv1", "hq8 hkv2"};

}  // namespace tessera::tests

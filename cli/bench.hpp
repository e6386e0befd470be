// What `tessera bench` measures and how it is written down.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.hpp"

namespace tessera::cli {

// The peaks of this process: probed once for each thread count and sampled again with every problem, or what a GPU
// states of itself.
struct Peaks {
  double flops_per_second = 0, bytes_per_second = 0;
  std::string fma_text;
  const char* unit = "FMA";  // whose peak flops_per_second is
  bool stated = false;       // by the device, not probed
};

// One kernel on one problem.
struct BenchRow {
  std::string problem, kernel, device;
  std::string reason, refusal_text;  // why refused, on one line and for people; empty when it ran
  bool baseline = false;
  double seconds_median = 0, seconds_min = 0, seconds_max = 0;
  double flops = 0, bytes = 0;
  double bound_fraction = 0;         // of `binding`'s probed peak
  const char* binding = "FMA";       // or "memory"
  double speedup_over_textbook = 0;  // 0: no textbook row
  double workspace_bytes = 0, plan_seconds = 0, host_seconds = 0;
};

nlohmann::ordered_json bench_json(const BenchRow& row);
// A table for people, one problem's rows.
std::string bench_text(const std::vector<BenchRow>& rows, const Peaks& peaks);
// {device, host, driver, clocks, versions, commit, kernel_sources_sha256, date, rows}.
std::string result_file_text(const std::vector<BenchRow>& rows, const Peaks& peaks, bool cuda);

// "tessera 0.1.0, commit ..., kernel sources (cpu) ...".
std::string version_text();

}  // namespace tessera::cli

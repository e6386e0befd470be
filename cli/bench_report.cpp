// Bench rows as JSON objects with fixed keys, as a table, and as a result file that says where they come from.
#include <chrono>
#include <cmath>
#include <ctime>
#include <fstream>

#include "baselines/device_memory.hpp"
#include "cli/bench.hpp"
#include "cli/failure.hpp"
#include "cli/json_text.hpp"
#include "cli/units.hpp"
#include "device_info.hpp"
#include "tessera_build_info.hpp"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

Json positive(double value) { return std::isfinite(value) && value > 0 ? Json(value) : Json(nullptr); }

// Counts are exact up to 2^53 and print without a fraction.
Json whole(double value) { return value < 9e15 ? Json(static_cast<int64_t>(value)) : Json(value); }

// The value of the first line of /proc/cpuinfo that begins with `key`.
std::string cpuinfo(const std::string& key) {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.compare(0, key.size(), key) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string utc_date() {
  const std::time_t seconds = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

}  // namespace

Json bench_json(const BenchRow& row) {
  const bool ran = row.reason.empty();
  const auto measured = [&](double value) { return ran ? positive(value) : Json(nullptr); };
  Json line;
  line["problem"] = row.problem;
  line["kernel"] = row.kernel.empty() ? Json(nullptr) : Json(row.kernel);
  line["status"] = ran ? "ran" : "refused";
  line["reason"] = ran ? Json(nullptr) : Json(row.reason);
  line["baseline"] = row.baseline;
  line["seconds_median"] = measured(row.seconds_median);
  line["seconds_min"] = measured(row.seconds_min);
  line["seconds_max"] = measured(row.seconds_max);
  line["flops"] = ran ? whole(row.flops) : Json(nullptr);
  line["bytes"] = ran ? whole(row.bytes) : Json(nullptr);
  line["tflops"] = measured(row.flops / row.seconds_median * 1e-12);
  line["gbytes_per_s"] = measured(row.bytes / row.seconds_median * 1e-9);
  line["bound_fraction"] = measured(row.bound_fraction);
  line["speedup_over_textbook"] = measured(row.speedup_over_textbook);
  line["workspace_bytes"] = ran ? whole(row.workspace_bytes) : Json(nullptr);
  line["plan_seconds"] = measured(row.plan_seconds);
  line["host_seconds"] = measured(row.host_seconds);
  line["peers"] = Json::object();
  line["device"] = row.device;
  return line;
}

std::string bench_text(const std::vector<BenchRow>& rows, const Peaks& peaks) {
  std::vector<std::vector<std::string>> cells = {
      {"kernel", "median", "spread", "rate", "GB/s", "of bound", "extra memory", "speed-up"}};
  std::string refused, overhead;
  for (const BenchRow& row : rows) {
    if (!row.reason.empty()) {
      refused += row.refusal_text;
      continue;
    }
    cells.push_back(
        {row.kernel, seconds_text(row.seconds_median),
         fmt::format("{} .. {}", seconds_text(row.seconds_min), seconds_text(row.seconds_max)),
         rate_text(row.flops / row.seconds_median), fmt::format("{:.2f}", row.bytes / row.seconds_median * 1e-9),
         fmt::format("{:.1f} % of {}", row.bound_fraction * 100, row.binding), bytes_text(row.workspace_bytes),
         row.speedup_over_textbook > 0 ? fmt::format("{:.2f}x", row.speedup_over_textbook) : "-"});
    if (!row.baseline && overhead.empty())
      overhead = fmt::format("  planning {}, overhead of a run {}", seconds_text(row.plan_seconds),
                             row.host_seconds > 0 ? seconds_text(row.host_seconds) : "not measured");
  }
  std::string text = rows.front().problem + '\n';
  if (cells.size() > 1) text += table_text(cells);
  if (cells.size() > 1)
    text += fmt::format("{}{}{} peaks: {}, read {:.1f} GB/s\n", overhead, overhead.empty() ? "  " : "; ",
                        peaks.stated ? "stated" : "probed", peaks.fma_text, peaks.bytes_per_second * 1e-9);
  return text + refused;
}

std::string result_file_text(const std::vector<BenchRow>& rows, const Peaks& peaks, bool cuda) {
  Json file;
  file["device"] = rows.empty() ? "" : rows.front().device;
  file["host"] = cpuinfo("model name");
  const std::string driver = cuda ? baselines::driver_version() : "";
  file["driver"] = driver.empty() ? Json(nullptr) : Json(driver);
  file["clocks"] = {{"cpu_mhz", cpuinfo("cpu MHz")},
                    {"probed_flops_per_s", positive(peaks.flops_per_second)},
                    {"probed_read_bytes_per_s", positive(peaks.bytes_per_second)},
                    {"probe", peaks.fma_text}};
  file["versions"] = {
      {"tessera", fmt::format("{}.{}.{}", TESSERA_VERSION_MAJOR, TESSERA_VERSION_MINOR, TESSERA_VERSION_PATCH)},
      {"compiler", TESSERA_COMPILER}};
  file["commit"] = kBuildCommit;
  file["kernel_sources_sha256"] = cuda ? kCudaSourcesSha256 : kCpuSourcesSha256;
  file["date"] = utc_date();
  file["rows"] = Json::array();
  for (const BenchRow& row : rows) file["rows"].push_back(bench_json(row));
  return json_text(file, 1) + '\n';
}

std::string version_text() {
  return fmt::format("tessera {}.{}.{}, commit {}, kernel sources {}", TESSERA_VERSION_MAJOR, TESSERA_VERSION_MINOR,
                     TESSERA_VERSION_PATCH, kBuildCommit, std::string(kCpuSourcesSha256).substr(0, 12));
}

}  // namespace tessera::cli

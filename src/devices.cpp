// The devices command: what this machine has, and for every row of the lists how it runs here, found by asking the row
// itself about a few small problems.
#include "devices.hpp"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "problem_text.hpp"
#include "status.hpp"

namespace tessera::core {
namespace {

using Json = nlohmann::ordered_json;

// Probes: one a dtype, prefill and decode, both passes. A row that takes none of them says why for the first.
constexpr const char* kProbes[] = {"f64", "f32", "f16", "bf16", "e4m3", "f32 kv=int8", "bf16 kv=int8", "bf16 kv=e4m3"};

struct RowReport {
  std::string name, runs, instructions, reason;  // runs: native, emulated, no
  std::vector<std::string> takes;
};

RowReport probe_row(const KernelEntry& entry, const DeviceInfo& device) {
  RowReport report{entry.name, "no", "", "", {}};
  for (const char* types : kProbes) {
    bool taken = false;
    for (const char* shape : {"fwd hq4 hkv2 sq64 d64", "fwd hq4 hkv2 sq1 sk256 d64", "bwd hq4 hkv2 sq64 d64"}) {
      tessera_problem problem;
      Problem checked;
      const std::string line = fmt::format("{} {} {}", shape, types, device.is_cpu ? "cpu" : "cuda");
      if (parse_problem(line, &problem, nullptr, nullptr) != TESSERA_OK ||
          validate(problem, &checked, nullptr) != TESSERA_OK)
        continue;
      const Refusal refusal = entry.refuse(checked, device);
      if (refusal) {
        if (report.reason.empty()) report.reason = format_refusal(refusal);
        continue;
      }
      const Launch launch = entry.configure(checked, device);
      if (launch.instructions != nullptr) report.instructions = launch.instructions;
      taken = true;
    }
    if (taken) report.takes.push_back(types);
  }
  if (report.takes.empty()) return report;
  report.reason.clear();
  report.runs = report.instructions.find("emulated") != std::string::npos ? "emulated" : "native";
  return report;
}

std::vector<RowReport> probe_rows(const DeviceInfo& device, KernelList extra) {
  std::vector<RowReport> reports;
  for (const KernelList list : {device.is_cpu ? cpu_kernels() : cuda_kernels(), extra}) {
    for (const KernelEntry& entry : list) {
      if ((std::strncmp(entry.name, "cpu.", 4) == 0) == device.is_cpu) reports.push_back(probe_row(entry, device));
    }
  }
  return reports;
}

std::string cpu_features(const DeviceInfo& cpu) {
  std::string text = isa_name(static_cast<int32_t>(cpu.isa));
  const auto add = [&](bool on, const char* name) {
    if (on) text.append(" ").append(name);
  };
  add(cpu.has_f16c, "f16c");
  add(cpu.has_avx512_bf16, "avx512_bf16");
  add(cpu.has_avx512_fp16, "avx512_fp16");
  add(cpu.has_amx_bf16, "amx_bf16");
  add(cpu.has_amx_int8, "amx_int8");
  return text;
}

Json device_json(const DeviceInfo& device, KernelList extra) {
  Json json;
  json["name"] = device.name;
  json["kind"] = device.is_cpu ? "cpu" : "cuda";
  json["units"] = device.units;
  json["features"] = device.is_cpu ? cpu_features(device) : fmt::format("sm_{}", device.arch);
  json["l1_bytes"] = device.l1_bytes;
  json["l2_bytes"] = device.l2_bytes;
  json["l3_bytes"] = device.l3_bytes;
  json["memory_bytes"] = device.memory_bytes;
  json["kernels"] = Json::array();
  for (const RowReport& row : probe_rows(device, extra)) {
    json["kernels"].push_back({{"kernel", row.name},
                               {"runs", row.runs},
                               {"instructions", row.instructions},
                               {"takes", row.takes},
                               {"reason", row.reason}});
  }
  return json;
}

std::string device_words(const DeviceInfo& device, KernelList extra) {
  std::string text = fmt::format("{}: {}, {} {}, {}\n", device.is_cpu ? "cpu" : "cuda", device.name, device.units,
                                 device.is_cpu ? "CPUs" : "multiprocessors",
                                 device.is_cpu ? cpu_features(device) : fmt::format("sm_{}", device.arch));
  text += fmt::format("  caches: L1 {} KiB, L2 {} KiB, L3 {} KiB; memory {} GiB\n", device.l1_bytes >> 10,
                      device.l2_bytes >> 10, device.l3_bytes >> 10, device.memory_bytes >> 30);
  const std::vector<RowReport> rows = probe_rows(device, extra);
  if (rows.empty()) text += "  this build has no kernels for it\n";
  for (const RowReport& row : rows) {
    text += row.runs == "no"
                ? fmt::format("  {:<25} does not run here: {}\n", row.name, row.reason)
                : fmt::format("  {:<25} {}{}{}: {}\n", row.name, row.runs, row.instructions.empty() ? "" : ", ",
                              row.instructions, fmt::join(row.takes, ", "));
  }
  return text;
}

}  // namespace

std::string describe_devices(KernelList extra, bool json) {
  const char* reason = "";
  std::vector<const DeviceInfo*> devices = {&cpu_info()};
  for (int32_t i = 0; i < cuda_device_count(); ++i) {
    if (const DeviceInfo* device = cuda_info(i, &reason)) devices.push_back(device);
  }
  if (devices.size() == 1) cuda_info(0, &reason);
  if (json) {
    Json all;
    all["devices"] = Json::array();
    for (const DeviceInfo* device : devices) all["devices"].push_back(device_json(*device, extra));
    all["cuda"] = devices.size() > 1 ? "present" : reason;
    return all.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  std::string text;
  for (const DeviceInfo* device : devices) text += device_words(*device, extra);
  if (devices.size() == 1) text += fmt::format("cuda: {}\n", reason);
  return text;
}

}  // namespace tessera::core

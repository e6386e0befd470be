// A plan in words and as JSON, from the same fields, so that the two never disagree.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "kernel_entry.hpp"
#include "problem_text.hpp"

namespace tessera::core {
namespace {

using Json = nlohmann::ordered_json;

struct Bound {
  double compute_seconds, memory_seconds;
  double seconds() const { return std::max(compute_seconds, memory_seconds); }
  const char* resource() const { return compute_seconds >= memory_seconds ? "compute" : "memory"; }
};

Bound roofline(const Problem& problem, const DeviceInfo& device, const Work& work) {
  const int32_t bytes = dtype_bytes(problem.q.dtype);
  double peak = bytes == 1 ? device.peak_8bit : bytes == 2 ? device.peak_16bit : device.peak_f32;
  if (bytes == 8) peak *= 0.5;
  // A product of f32 takes six of bf16 on the tiles of a CPU.
  if (bytes == 4 && device.has_amx_bf16) peak = std::max(peak, device.peak_16bit / 6);
  return {peak > 0 ? work.flops / peak : 0, device.bandwidth > 0 ? work.bytes / device.bandwidth : 0};
}

const char* layout_name(int32_t layout) {
  return layout == TESSERA_DENSE ? "dense" : layout == TESSERA_PACKED ? "packed" : "paged";
}

struct Row {
  std::string name, reason;
};

std::vector<Row> other_rows(const Plan& plan, KernelList extra) {
  struct Context {
    const Plan& plan;
    std::vector<Row> rows;
  } context{plan, {}};
  visit_rows(
      plan.problem, *plan.device, extra,
      [](const RowAnswer& answer, void* arg) {
        auto* c = static_cast<Context*>(arg);
        if (answer.entry == c->plan.entry) return;
        std::string reason = answer.refusal ? format_refusal(answer.refusal) : std::string();
        if (reason.empty() && answer.pin_excludes)
          reason = answer.entry->pinned_only ? "runs only when pinned" : "excluded by the pin";
        if (reason.empty()) reason = "would run; stands behind the chosen row";
        c->rows.push_back({answer.entry->name, std::move(reason)});
      },
      &context);
  return std::move(context.rows);
}

Json explain_json(const Plan& plan, KernelList extra) {
  const Launch& launch = plan.launch;
  const Work work = count_work(plan.problem);
  const Bound bound = roofline(plan.problem, *plan.device, work);
  const auto text = [](const char* s) { return Json(s != nullptr ? s : ""); };
  Json json;
  json["problem"] = format_resolved(plan.problem);
  json["device"] = plan.device->name;
  json["kernel"] = plan.entry->name;
  json["tile_m"] = launch.tile_m;
  json["tile_n"] = launch.tile_n;
  json["stages"] = launch.stages;
  json["num_splits"] = launch.num_splits;
  json["threads"] = launch.threads;
  json["registers"] = launch.registers;
  json["shared_bytes"] = launch.shared_bytes;
  json["workspace_bytes"] = launch.workspace_bytes;
  json["schedule"] = text(launch.schedule);
  json["instructions"] = text(launch.instructions);
  json["flops"] = work.flops;
  json["bytes"] = work.bytes;
  json["schedule_bytes"] = launch.schedule_bytes > 0 ? launch.schedule_bytes : work.bytes;
  json["bound"] = bound.resource();
  json["bound_seconds"] = bound.seconds();
  json["estimate_seconds"] = launch.seconds;
  json["passed_over"] = plan.passed_over;
  json["first_reason"] = plan.first_reason;
  json["rows"] = Json::array();
  for (const Row& row : other_rows(plan, extra)) json["rows"].push_back({{"kernel", row.name}, {"reason", row.reason}});
  return json;
}

std::string scaled_bytes(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  for (; bytes >= 1024 && unit < 4; ++unit) bytes /= 1024;
  return fmt::format("{:.4g} {}", bytes, kUnits[unit]);
}

std::string scaled_seconds(double seconds) {
  if (seconds >= 1) return fmt::format("{:.3g} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} us", seconds * 1e6);
}

std::string explain_words(const Plan& plan, KernelList extra) {
  const Launch& launch = plan.launch;
  const Work work = count_work(plan.problem);
  const Bound bound = roofline(plan.problem, *plan.device, work);
  std::string text;
  const auto line = [&](const char* label, const std::string& value) {
    text += fmt::format("{:<14}{}\n", label, value);
  };
  line("problem", format_resolved(plan.problem));
  line("device", fmt::format("{}, {} {}{}", plan.device->name, plan.device->units,
                             plan.device->is_cpu ? "CPUs" : "multiprocessors",
                             plan.device->present ? "" : " (named; explains, does not run)"));
  line("kernel", plan.entry->name);
  if (launch.tile_m > 0) line("tile", fmt::format("{} queries x {} keys", launch.tile_m, launch.tile_n));
  if (launch.stages > 0) line("stages", std::to_string(launch.stages));
  line("splits", std::to_string(launch.num_splits));
  if (plan.device->is_cpu) line("threads", std::to_string(launch.threads));
  if (launch.registers > 0) line("registers", std::to_string(launch.registers));
  if (launch.shared_bytes > 0) line("shared memory", scaled_bytes(static_cast<double>(launch.shared_bytes)));
  line("workspace", scaled_bytes(static_cast<double>(launch.workspace_bytes)));
  if (launch.schedule != nullptr) line("schedule", launch.schedule);
  if (launch.instructions != nullptr) line("instructions", launch.instructions);
  line("work", fmt::format("{:.4g} GFLOP, {}, {:.3g} FLOP a byte", work.flops * 1e-9, scaled_bytes(work.bytes),
                           work.bytes > 0 ? work.flops / work.bytes : 0.0));
  if (launch.schedule_bytes > 0)
    line("traffic", fmt::format("{} by the schedule's model", scaled_bytes(launch.schedule_bytes)));
  line("bound", fmt::format("{}, {} at the device's rough peaks", bound.resource(), scaled_seconds(bound.seconds())));
  if (launch.seconds > 0) line("estimate", scaled_seconds(launch.seconds));
  line("passed over", plan.passed_over == 0 ? "0" : fmt::format("{}, first: {}", plan.passed_over, plan.first_reason));
  const std::vector<Row> rows = other_rows(plan, extra);
  if (!rows.empty()) text += "other rows\n";
  for (const Row& row : rows) text += fmt::format("  {:<25} {}\n", row.name, row.reason);
  return text;
}

}  // namespace

std::string format_refusal(const Refusal& refusal) {
  if (refusal.text == nullptr) return "";
  if (refusal.argument == nullptr) return refusal.text;
  const std::string_view argument = refusal.argument;
  const auto number = static_cast<int32_t>(refusal.value);
  if (argument == "pass") return fmt::format("{} (pass={})", refusal.text, number == TESSERA_FORWARD ? "fwd" : "bwd");
  if (argument.ends_with("dtype")) return fmt::format("{} ({}={})", refusal.text, argument, dtype_name(number));
  if (argument.starts_with("layout")) return fmt::format("{} ({}={})", refusal.text, argument, layout_name(number));
  return fmt::format("{} ({}={})", refusal.text, argument, refusal.value);
}

std::string explain(const Plan& plan, KernelList extra, bool json) {
  return json ? explain_json(plan, extra).dump(-1, ' ', false, Json::error_handler_t::replace)
              : explain_words(plan, extra);
}

}  // namespace tessera::core

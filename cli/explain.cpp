// `tessera explain` and `tessera devices`: what would run and why, and what this machine has.
#include <cstring>
#include <nlohmann/json.hpp>

#include "baselines/kernels.hpp"
#include "cli/commands.hpp"
#include "cli/failure.hpp"
#include "cli/runner.hpp"
#include "cli/units.hpp"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Row {
  std::string kernel, reason;
};

constexpr const char* kNoDevice = "no CUDA device; name one with --device";

void name_device(const std::string& device, tessera_problem* problem) {
  if (core::named_device(device) == nullptr)
    bad_input("--device {}: unknown, expected h200, h100, a100, rtx4090 or b200", device);
  std::memset(problem->device_name, 0, sizeof problem->device_name);
  std::strncpy(problem->device_name, device.c_str(), sizeof problem->device_name - 1);
  if (problem->device < 0) problem->device = 0;
}

bool lacks_device(const tessera_problem& problem) {
  const char* reason = nullptr;
  return problem.device >= 0 && problem.device_name[0] == '\0' && core::cuda_info(problem.device, &reason) == nullptr;
}

// Every row that could have taken the problem, each with its reason.
std::vector<Row> refused_rows(const tessera_problem& problem) {
  std::vector<Row> rows;
  if (lacks_device(problem)) {
    for (const core::KernelEntry& entry : core::cuda_kernels()) rows.push_back({entry.name, kNoDevice});
    return rows;
  }
  core::Problem checked;
  tessera_status status;
  require_ok(core::validate(problem, &checked, &status), status);
  const core::DeviceInfo& device = problem.device < 0 ? core::cpu_info() : *core::named_device(problem.device_name);
  core::visit_rows(
      checked, device, baselines::kernels(),
      [](const core::RowAnswer& answer, void* context) {
        const std::string reason = answer.refusal        ? core::format_refusal(answer.refusal)
                                   : answer.pin_excludes ? "excluded by kernel="
                                                         : "only by name (kernel=)";
        static_cast<std::vector<Row>*>(context)->push_back({answer.entry->name, reason});
      },
      &rows);
  return rows;
}

void print_refused(const Request& request, const std::string& why, bool json) {
  const std::vector<Row> rows = refused_rows(request.problem);
  if (json) {
    Json line = {{"problem", request.text}, {"kernel", nullptr}, {"status", "refused"}, {"reason", why}};
    line["rows"] = Json::array();
    for (const Row& row : rows) line["rows"].push_back({{"kernel", row.kernel}, {"reason", row.reason}});
    fmt::print("{}\n", line.dump(-1, ' ', true));
    return;
  }
  std::vector<std::vector<std::string>> cells;
  for (const Row& row : rows) cells.push_back({row.kernel, "refused: " + row.reason});
  fmt::print("{}\n  refused: {}\n{}", request.text, why, table_text(cells));
}

}  // namespace

int explain_command(const ExplainOptions& options) {
  Request request = parse_request(options.problem);
  if (!options.device.empty()) {
    name_device(options.device, &request.problem);
    validate_request(request.problem);
    request.text = core::format_problem(request.problem, &request.extras);
  }
  const Candidate candidate =
      lacks_device(request.problem) ? Candidate{"", kNoDevice, kRefused, {}} : find_row(request.problem, nullptr);
  if (!candidate.reason.empty()) {
    print_refused(request, candidate.reason, options.json);
    return candidate.exit_code;
  }
  std::string text = core::explain(candidate.plan, baselines::kernels(), options.json);
  if (text.empty() || text.back() != '\n') text += '\n';
  fmt::print("{}", text);
  return kDone;
}

int devices_command(bool json) {
  std::string text(tessera_devices(json ? 1 : 0, nullptr, 0), '\0');
  tessera_devices(json ? 1 : 0, text.data(), text.size() + 1);
  if (text.empty() || text.back() != '\n') text += '\n';
  fmt::print("{}", text);
  return kDone;
}

}  // namespace tessera::cli

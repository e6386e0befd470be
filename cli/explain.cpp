// `tessera explain` and `tessera devices`: what would run and why, and what this machine has.
#include <cstring>
#include <nlohmann/json.hpp>

#include "baselines/kernels.hpp"
#include "cli/commands.hpp"
#include "cli/failure.hpp"
#include "cli/json_text.hpp"
#include "cli/runner.hpp"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kNoDevice = "no CUDA device; name one with --device";

// Whether the text holds the word `cpu`. The parsed problem does not tell: the CPU is also the default.
bool says_cpu(std::string text) {
  for (char& c : text)
    if (c == '\t' || c == '\r' || c == '\n') c = ' ';
  return (' ' + text + ' ').find(" cpu ") != std::string::npos;
}

void name_device(const std::string& text, const std::string& device, tessera_problem* problem) {
  if (core::named_device(device) == nullptr)
    bad_input("--device {}: unknown, expected h200, h100, a100, rtx4090 or b200", device);
  if (says_cpu(text)) bad_input("--device {}: a GPU, but the problem says cpu, expected cuda or neither word", device);
  std::memset(problem->device_name, 0, sizeof problem->device_name);
  std::strncpy(problem->device_name, device.c_str(), sizeof problem->device_name - 1);
  if (problem->device < 0) problem->device = 0;
}

bool lacks_device(const tessera_problem& problem) {
  const char* reason = nullptr;
  return problem.device >= 0 && problem.device_name[0] == '\0' && core::cuda_info(problem.device, &reason) == nullptr;
}

// Without a device nothing can be planned: every CUDA row is refused for the same reason.
Candidate without_device() {
  Candidate candidate{"", kNoDevice, kRefused, {}, {}};
  for (const core::KernelEntry& entry : core::cuda_kernels()) candidate.rows.push_back({entry.name, kNoDevice});
  return candidate;
}

void print_refused(const Request& request, const Candidate& candidate, bool json) {
  if (!json) {
    fmt::print("{}\n{}", request.text, candidate.refusal_text());
    return;
  }
  Json line = {
      {"problem", request.text}, {"kernel", nullptr}, {"status", "refused"}, {"reason", candidate.full_reason()}};
  line["rows"] = Json::array();
  for (const RowReason& row : candidate.rows) line["rows"].push_back({{"kernel", row.kernel}, {"reason", row.reason}});
  fmt::print("{}\n", json_text(line));
}

}  // namespace

int explain_command(const ExplainOptions& options) {
  Request request = parse_request(options.problem);
  if (!options.device.empty()) {
    name_device(options.problem, options.device, &request.problem);
    validate_request(request.problem);
    request.text = core::format_problem(request.problem, &request.extras);
  }
  const Candidate candidate = lacks_device(request.problem) ? without_device() : find_row(request.problem, nullptr);
  if (candidate.refused()) {
    print_refused(request, candidate, options.json);
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

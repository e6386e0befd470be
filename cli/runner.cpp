// Planning goes over the library's list and then the baselines', so a pin such as kernel=cpu.textbook finds its row.
#include "cli/runner.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "baselines/kernels.hpp"
#include "cli/failure.hpp"
#include "cli/units.hpp"
#include "sequence.hpp"

namespace tessera::cli {
namespace {

// Memory that a problem's operands and the judge's float64 results need, over the problem's least traffic.
constexpr double kMemoryPerTraffic = 3;

bool pins_every_row(const tessera_problem& problem) { return std::strcmp(problem.kernel, "*") == 0; }

const core::DeviceInfo* device_of(const core::Problem& problem) {
  if (problem.device < 0) return &core::cpu_info();
  if (problem.device_name[0] != '\0') return core::named_device(problem.device_name);
  const char* reason = nullptr;
  return core::cuda_info(problem.device, &reason);
}

// Every row of the device's list and the baselines, each with its reason. None without a device.
std::vector<RowReason> reasons_of_rows(const tessera_problem& problem) {
  std::vector<RowReason> rows;
  core::Problem checked;
  if (core::validate(problem, &checked, nullptr) != TESSERA_OK) return rows;
  const core::DeviceInfo* device = device_of(checked);
  if (device == nullptr) return rows;
  struct Context {
    std::vector<RowReason>* rows;
    std::string excluded;
  } context{&rows, "runs only when pinned"};
  const char* source = problem.kernel[0] != '\0' ? "kernel" : "TESSERA_KERNEL";
  if (const char* pin = core::active_pin(checked); pin[0] != '\0')
    context.excluded = fmt::format("excluded by {}={}", source, pin);
  core::visit_rows(
      checked, *device, baselines::kernels(),
      [](const core::RowAnswer& answer, void* opaque) {
        const Context& c = *static_cast<Context*>(opaque);
        if (!answer.refusal && !answer.pin_excludes) return;
        c.rows->push_back(
            {answer.entry->name, answer.pin_excludes ? c.excluded : core::format_refusal(answer.refusal)});
      },
      &context);
  return rows;
}

}  // namespace

std::string Candidate::full_reason() const {
  if (rows.empty()) return reason;
  std::string text = "no kernel takes this problem";
  for (const RowReason& row : rows)
    text += fmt::format("{} {}: {}", &row == rows.data() ? ":" : ";", row.kernel, row.reason);
  return text;
}

std::string Candidate::refusal_text() const {
  if (rows.empty()) return fmt::format("  {}refused: {}\n", kernel.empty() ? "" : kernel + " ", reason);
  std::vector<std::vector<std::string>> cells;
  for (const RowReason& row : rows) cells.push_back({row.kernel, "refused: " + row.reason});
  return table_text(cells);
}

void validate_request(const tessera_problem& problem) {
  core::Problem checked;
  tessera_status status;
  require_ok(core::validate(problem, &checked, &status), status);
}

Request parse_request(const std::string& text) {
  Request request;
  tessera_status status;
  require_ok(core::parse_problem(text, &request.problem, &request.extras, &status), status);
  if (request.problem.pass == TESSERA_FORWARD) request.problem.flags |= TESSERA_FLAG_LSE;
  validate_request(request.problem);
  request.text = core::format_problem(request.problem, &request.extras);
  return request;
}

Candidate find_row(tessera_problem problem, const char* kernel) {
  if (kernel != nullptr) {
    std::memset(problem.kernel, 0, sizeof problem.kernel);
    std::strncpy(problem.kernel, kernel, sizeof problem.kernel - 1);
  }
  Candidate candidate;
  tessera_status status;
  const int code = core::make_plan(problem, baselines::kernels(), &candidate.plan, &status);
  candidate.exit_code = exit_of_status(code);
  if (code == TESSERA_OK) {
    candidate.kernel = candidate.plan.entry->name;
    return candidate;
  }
  if (candidate.exit_code != kRefused) throw Failure{candidate.exit_code, status.message};
  candidate.reason = status.message;
  if (kernel != nullptr) {
    candidate.kernel = kernel;
  } else if (code == TESSERA_UNSUPPORTED) {
    candidate.rows = reasons_of_rows(problem);
  }
  return candidate;
}

std::vector<Candidate> find_candidates(const tessera_problem& problem) {
  if (!pins_every_row(problem)) return {find_row(problem, nullptr)};
  core::Problem checked;
  tessera_status status;
  require_ok(core::validate(problem, &checked, &status), status);
  const core::DeviceInfo* device = device_of(checked);
  if (device == nullptr) return {find_row(problem, nullptr)};
  std::vector<core::RowAnswer> answers;
  core::visit_rows(
      checked, *device, baselines::kernels(),
      [](const core::RowAnswer& answer, void* context) {
        static_cast<std::vector<core::RowAnswer>*>(context)->push_back(answer);
      },
      &answers);
  std::vector<Candidate> candidates;
  for (const core::RowAnswer& answer : answers) {
    if (answer.refusal) {
      candidates.push_back({answer.entry->name, core::format_refusal(answer.refusal), kRefused, {}, {}});
    } else {
      candidates.push_back(find_row(problem, answer.entry->name));
    }
  }
  return candidates;
}

void Place::prepare(const tessera_problem& problem, bool cold) {
  if (problem.device < 0) return;
  const char* reason = nullptr;
  const core::DeviceInfo* device = core::cuda_info(problem.device, &reason);
  const size_t flush_bytes = cold && device != nullptr ? 2 * static_cast<size_t>(device->l2_bytes) : 0;
  mirror_ = std::make_unique<baselines::Mirror>(problem.device);
  clock_ = std::make_unique<baselines::DeviceClock>(problem.device, flush_bytes);
}

void Place::finish(const tessera_tensors& host) {
  tensors_ = host;
  if (!on_device()) return;
  tensors_ = mirror_->translate(host);
  upload();
}

Place::Place(const baselines::OperandSet& set, bool cold) {
  prepare(set.problem, cold);
  if (on_device()) set.add_to(mirror_.get());
  finish(set.tensors);
}

Place::Place(const Job& job) {
  prepare(job.problem, false);
  if (on_device()) {
    for (const auto* tensors : {&job.inputs, &job.outputs})
      for (const auto& [name, tensor] : *tensors) mirror_->add(tensor.data.data(), tensor.data.bytes());
  }
  finish(job.tensors);
}

void Place::upload() const {
  if (on_device()) mirror_->upload();
}

void Place::download() const {
  if (on_device()) mirror_->download();
}

Runner::Runner(const core::Plan& plan, const Place& place) : plan_(plan), place_(&place) {
  const auto bytes = static_cast<size_t>(plan.launch.workspace_bytes);
  if (place.on_device()) {
    device_workspace_ = baselines::DeviceBuffer(plan.problem.device, bytes);
  } else {
    workspace_ = AlignedBytes(bytes, false);
  }
}

int Runner::call(const tessera_tensors& tensors, tessera_status* status) const {
  if (!place_->on_device())
    return core::run_plan(plan_, &tensors, workspace_.data(), workspace_.bytes(), nullptr, status);
  const tessera_exec exec{sizeof exec, place_->clock().stream(), nullptr};
  return core::run_plan(plan_, &tensors, device_workspace_.data(), device_workspace_.bytes(), &exec, status);
}

double Runner::run(const tessera_tensors& tensors) {
  tessera_status status;
  int code = TESSERA_OK;
  double seconds = 0;
  if (place_->on_device()) {
    seconds = place_->clock().seconds([&] { code = call(tensors, &status); });
  } else {
    const double begin = now();
    code = call(tensors, &status);
    seconds = now() - begin;
  }
  require_ok(code, status);
  return seconds;
}

double Runner::call_seconds() {
  tessera_status status;
  const double begin = now();
  const int code = call(place_->tensors(), &status);
  const double seconds = now() - begin;
  require_ok(code, status);
  return seconds;
}

void run_forward(tessera_problem problem, const Place& place) {
  problem.pass = TESSERA_FORWARD;
  problem.flags &= ~(TESSERA_FLAG_D_LSE | TESSERA_FLAG_D_SINKS | TESSERA_FLAG_D_BIAS);
  problem.flags |= TESSERA_FLAG_LSE;
  problem.kernel[0] = '\0';
  const Candidate candidate = find_row(problem, nullptr);
  if (candidate.refused()) throw Failure{candidate.exit_code, candidate.full_reason()};
  Runner(candidate.plan, place).run();
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> values) {
  const size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle), values.end());
  if (values.size() % 2 == 1) return values[middle];
  return (values[middle] + *std::max_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle))) / 2;
}

core::Work exact_work(const core::Problem& problem, const tessera_tensors& tensors) {
  const bool equal_lengths = problem.layout_q == TESSERA_DENSE && problem.layout_kv == TESSERA_DENSE &&
                             !problem.has(TESSERA_FLAG_SEQUSED_Q | TESSERA_FLAG_SEQUSED_K | TESSERA_FLAG_LEFTPAD);
  if (equal_lengths) return core::count_work(problem);
  core::Work sum{0, 0};
  for (int64_t b = 0; b < problem.batch; ++b) {
    const core::Sequence sequence = core::locate_sequence(problem, tensors, b);
    core::Problem one = problem;
    one.batch = one.batch_kv = 1;
    one.layout_q = one.layout_kv = TESSERA_DENSE;
    one.seqlen_q = sequence.seqlen_q;
    one.seqlen_k = sequence.seqlen_k;
    const core::Work work = core::count_work(one);
    sum.flops += work.flops;
    sum.bytes += work.bytes;
  }
  return sum;
}

void require_memory(const core::Problem& problem) {
  const double needed = kMemoryPerTraffic * core::count_work(problem).bytes;
  const double present = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  if (needed > present)
    throw Failure{kDeviceError, fmt::format("out of memory: operands and reference need about {}, this machine has {}",
                                            bytes_text(needed), bytes_text(present))};
}

const char* textbook_of(const tessera_problem& problem) {
  return problem.device < 0 ? "cpu.textbook" : "cuda.textbook";
}

int machine_threads() { return std::max(1, core::cpu_info().units); }

}  // namespace tessera::cli

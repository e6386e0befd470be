// `tessera run`: attention on tensors from files, and a report that sets the chosen kernel beside the textbook method.
#include <algorithm>
#include <utility>

#include "baselines/operands.hpp"
#include "cli/commands.hpp"
#include "cli/failure.hpp"
#include "cli/file_io.hpp"
#include "cli/npy.hpp"
#include "cli/progress.hpp"
#include "cli/runner.hpp"
#include "cli/safetensors.hpp"
#include "cli/units.hpp"

namespace tessera::cli {
namespace {

constexpr double kReportSeconds = 0.2;  // of repeated runs for one line of the report
constexpr size_t kReportRuns = 100;

void check_options(const RunOptions& options) {
  const FileOptions& files = options.files;
  if (!files.given()) bad_input("run: no tensors, expected --input FILE or --q, --k and --v");
  if (files.out.empty() && !options.report) bad_input("--out: absent, expected a file for the result (or --report)");
  const bool safetensors = !files.input.empty();
  const auto ends_with = [](const std::string& path, std::string_view end) {
    return path.size() >= end.size() && path.compare(path.size() - end.size(), end.size(), end) == 0;
  };
  const auto is_special = [](const std::string& path) { return path.rfind("/dev/", 0) == 0; };
  const char* expected = safetensors ? ".safetensors" : ".npy";
  if (!files.out.empty() && !ends_with(files.out, expected) && !is_special(files.out))
    bad_input("--out {}: expected a name that ends in {} (as the input has)", files.out, expected);
  if (!files.lse.empty() && safetensors) bad_input("--lse {}: lse goes into --out beside --input", files.lse);
  if (!files.lse.empty() && !ends_with(files.lse, ".npy") && !is_special(files.lse))
    bad_input("--lse {}: expected a name that ends in .npy", files.lse);
  if (!files.lse.empty() && !files.out.empty() && same_file(files.lse, files.out))
    bad_input("--lse {}: is --out as well, expected two files", files.lse);
  for (const std::string* input : {&files.input, &files.q, &files.k, &files.v})
    for (const auto& [option, output] : {std::pair("--out", &files.out), std::pair("--lse", &files.lse)})
      if (!input->empty() && !output->empty() && same_file(*input, *output))
        bad_input("{} {}: is an input as well, expected another file", option, *output);
}

// Fails before the work, not after it, where a result could not be written.
void check_writable(const FileOptions& files) {
  if (!files.out.empty()) OutputFile(files.out, "--out " + files.out);
  if (!files.lse.empty()) OutputFile(files.lse, "--lse " + files.lse);
}

void write_npy(OutputFile* file, const Tensor& tensor) {
  const std::string header = npy_header(tensor.dtype, tensor.shape);
  file->write(header.data(), header.size());
  file->write(tensor.data.data(), tensor.data.bytes());
}

// Every file is complete before the first one takes its name.
void write_outputs(const FileOptions& files, const Job& job) {
  if (files.out.empty()) return;
  OutputFile out(files.out, "--out " + files.out);
  if (!files.input.empty()) {
    std::vector<TensorView> views;
    for (const auto& [name, tensor] : job.outputs) views.push_back(tensor.view(name));
    const std::string header = safetensors_header(views);
    out.write(header.data(), header.size());
    for (const TensorView& view : views) out.write(view.data, view.bytes);
    out.commit();
    return;
  }
  write_npy(&out, job.outputs.at("o"));
  if (files.lse.empty()) {
    out.commit();
    return;
  }
  OutputFile lse(files.lse, "--lse " + files.lse);
  write_npy(&lse, job.outputs.at("lse"));
  out.commit();
  lse.commit();
}

double repeated_median(Runner* runner) {
  std::vector<double> times;
  const double end = now() + kReportSeconds;
  do {
    times.push_back(runner->run());
  } while (now() < end && times.size() < kReportRuns);
  return median(times);
}

std::vector<std::string> report_row(const std::string& name, Runner* runner, const Job& job, const Place& place,
                                    double flops, const baselines::Results& exact, const baselines::Results& naive,
                                    bool* passed) {
  const double seconds = repeated_median(runner);
  place.download();
  const auto comparisons = baselines::compare(runner->plan().problem, job.tensors, &exact, &naive, machine_threads());
  const baselines::Comparison& worst = baselines::worst(comparisons);
  *passed = worst.passed;
  const auto o = std::find_if(comparisons.begin(), comparisons.end(), [](const auto& c) { return c.tensor == "o"; });
  const baselines::Comparison& shown = o != comparisons.end() ? *o : worst;
  return {name,
          runner->plan().entry->name,
          seconds_text(seconds),
          rate_text(flops / seconds),
          fmt::format("{:.1e}", shown.max_abs_error),
          bytes_text(static_cast<double>(runner->plan().launch.workspace_bytes))};
}

// Leaves the chosen kernel's results in the outputs. Returns false when they miss the tolerance.
bool print_report(const Job& job, const Place& place, Runner* chosen) {
  Progress progress;
  progress.show("float64 reference");
  const core::Problem& problem = chosen->plan().problem;
  const auto exact = baselines::reference(problem, job.tensors, baselines::Precision::exact, machine_threads());
  const auto naive = baselines::reference(problem, job.tensors, baselines::Precision::naive, machine_threads());
  const double flops = exact_work(problem, job.tensors).flops;
  std::vector<std::vector<std::string>> rows = {
      {"method", "kernel", "time", "rate", "error vs float64", "extra memory"}};
  const Candidate textbook = find_row(job.problem, textbook_of(job.problem));
  bool passed = true, textbook_passed = true;
  if (!textbook.refused()) {
    progress.show("textbook baseline");
    Runner runner(textbook.plan, place);
    rows.push_back(report_row("textbook", &runner, job, place, flops, exact, naive, &textbook_passed));
  }
  progress.show(chosen->plan().entry->name);
  rows.push_back(report_row("tessera", chosen, job, place, flops, exact, naive, &passed));
  progress.clear();
  fmt::print("problem {}\n\n{}", job.text(), table_text(rows));
  if (textbook.refused()) fmt::print("  textbook baseline refused: {}\n", textbook.reason);
  fmt::print(
      "\n  rate: useful arithmetic a second. extra memory: beyond inputs and outputs.\n  error: largest difference of "
      "any element of {}; {} the tolerance of its element type.\n",
      problem.pass == TESSERA_BACKWARD ? "the worst gradient" : "o", passed ? "within" : "BEYOND");
  return passed;
}

}  // namespace

int run_command(const RunOptions& options) {
  check_options(options);
  Job job = bind_tensors(load_tensors(options.files), options.words,
                         !options.files.input.empty() || !options.files.lse.empty());
  validate_request(job.problem);
  const Candidate candidate = find_row(job.problem, nullptr);
  if (candidate.refused()) throw Failure{candidate.exit_code, candidate.full_reason()};
  check_writable(options.files);
  const Place place(job);
  if (job.problem.pass == TESSERA_BACKWARD) run_forward(job.problem, place);
  Runner runner(candidate.plan, place);
  const double seconds = runner.run();
  place.download();
  const bool passed = !options.report || print_report(job, place, &runner);
  write_outputs(options.files, job);
  if (!options.report) {
    const core::Work work = exact_work(candidate.plan.problem, job.tensors);
    fmt::print("{}: {}, {}, {}, workspace {}\n", job.text(), candidate.kernel, seconds_text(seconds),
               rate_text(work.flops / seconds), bytes_text(static_cast<double>(candidate.plan.launch.workspace_bytes)));
  }
  if (!options.files.out.empty())
    fmt::print("wrote {}{}{}\n", options.files.out, options.files.lse.empty() ? "" : " and ", options.files.lse);
  return passed ? kDone : kCheckFailed;
}

}  // namespace tessera::cli

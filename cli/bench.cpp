// `tessera bench`: kernels and the textbook baseline take turns in random order, round after round, so drift of the
// machine meets all of them alike; the probe of the peak is sampled between the rounds. Medians over all runs.
#include "cli/bench.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>

#include "baselines/kernels.hpp"
#include "baselines/operands.hpp"
#include "cli/cold_caches.hpp"
#include "cli/failure.hpp"
#include "cli/file_io.hpp"
#include "cli/json_text.hpp"
#include "cli/probe.hpp"
#include "cli/progress.hpp"
#include "cli/runner.hpp"
#include "cli/units.hpp"

namespace tessera::cli {
namespace {

constexpr const char* kReference = "cpu.reference";
constexpr int kPlanRuns = 201;
constexpr int kHostRuns = 201;
constexpr int kMaxRunsPerTurn = 1000;
constexpr int kSamplesPerTurn = 4;
constexpr int kQueuedRuns = 16;  // calls of a host time that a stream takes without waiting

struct Contender {
  std::unique_ptr<Runner> runner;
  std::vector<double> times;
  BenchRow row;
};

bool is_named(const Candidate& candidate, const char* kernel) { return candidate.kernel == kernel; }

// Planning as the caller asked for it where that leads to `kernel`, else with the kernel pinned.
double plan_seconds(tessera_problem problem, const std::string& kernel) {
  core::Plan plan;
  tessera_status status;
  const int code = core::make_plan(problem, baselines::kernels(), &plan, &status);
  if (code != TESSERA_OK || kernel != plan.entry->name) {
    std::memset(problem.kernel, 0, sizeof problem.kernel);
    std::strncpy(problem.kernel, kernel.c_str(), sizeof problem.kernel - 1);
  }
  std::vector<double> times;
  times.reserve(kPlanRuns);
  for (int i = 0; i < kPlanRuns; ++i) {
    const double begin = now();
    (void)core::make_plan(problem, baselines::kernels(), &plan, &status);
    times.push_back(now() - begin);
  }
  return median(times);
}

// What a run takes of the host: on the CPU the same row on one query and one key, where nothing else takes time, on a
// device the call alone, on a stream that has room. 0 where the row refuses one query.
double host_seconds(const Request& request, const std::string& kernel) {
  tessera_problem tiny;
  tessera_problem_init(&tiny, sizeof tiny);
  const int32_t dtype = request.problem.q.dtype;
  const bool on_device = request.problem.device >= 0;
  const std::string text =
      fmt::format("{} b1 hq1 hkv1 sq1 sk1 d8 threads=1 {}", core::dtype_name(dtype), on_device ? "cuda" : "cpu");
  core::TextExtras extras;
  if (core::parse_problem(text, &tiny, &extras, nullptr) != TESSERA_OK) return 0;
  tiny.isa = request.problem.isa;
  const Candidate candidate = find_row(tiny, kernel.c_str());
  if (candidate.refused() || request.problem.pass != TESSERA_FORWARD) return 0;
  const baselines::OperandSet operands = baselines::make_operands(tiny, extras);
  const Place place(operands, false);
  Runner runner(candidate.plan, place);
  std::vector<double> times;
  times.reserve(kHostRuns);
  for (int i = 0; i < kHostRuns; ++i) {
    if (on_device && i % kQueuedRuns == 0) place.clock().synchronize();
    times.push_back(on_device ? runner.call_seconds() : runner.run());
  }
  if (on_device) place.clock().synchronize();
  return median(times);
}

class Bench {
 public:
  explicit Bench(const BenchOptions& options) : options_(options) {}

  // Rows of one problem, the textbook's last; `exit_code` is that of a refusal when no row took it.
  std::vector<BenchRow> measure(const Request& request, int* exit_code) {
    std::vector<Candidate> candidates = find_candidates(request.problem);
    const bool all = candidates.size() > 1;
    // The judge is a plain loop: of every row it would take nearly all the time.
    if (all) std::erase_if(candidates, [](const Candidate& c) { return is_named(c, kReference); });
    const char* textbook = textbook_of(request.problem);
    const bool has_textbook =
        std::any_of(candidates.begin(), candidates.end(), [&](const Candidate& c) { return is_named(c, textbook); });
    const bool any = std::any_of(candidates.begin(), candidates.end(), [](const Candidate& c) { return !c.refused(); });
    if (any && options_.baseline && !has_textbook) candidates.push_back(find_row(request.problem, textbook));
    std::vector<BenchRow> rows;
    if (!any) {
      for (const Candidate& candidate : candidates) *exit_code = worse_exit(*exit_code, candidate.exit_code);
      for (const Candidate& candidate : candidates) rows.push_back(refused_row(request, candidate));
      return rows;
    }
    run_contenders(request, candidates, &rows);
    return rows;
  }

  const Peaks& peaks() const { return peaks_; }

 private:
  static BenchRow refused_row(const Request& request, const Candidate& candidate) {
    BenchRow row;
    row.problem = request.text;
    row.kernel = candidate.kernel;
    row.reason = candidate.full_reason();
    row.refusal_text = candidate.refusal_text();
    row.baseline = is_named(candidate, textbook_of(request.problem));
    const char* absent = nullptr;
    const core::DeviceInfo* device =
        request.problem.device < 0 ? &core::cpu_info() : core::cuda_info(request.problem.device, &absent);
    row.device = device != nullptr ? device->name : "";
    return row;
  }

  void run_contenders(const Request& request, const std::vector<Candidate>& candidates, std::vector<BenchRow>* rows) {
    for (const Candidate& candidate : candidates)
      if (!candidate.refused()) require_memory(candidate.plan.problem);
    progress_.show(fmt::format("{}: operands", request.text));
    const baselines::OperandSet operands = baselines::make_operands(request.problem, request.extras);
    const Place place(operands, true);
    if (operands.problem.pass == TESSERA_BACKWARD) run_forward(operands.problem, place);
    std::vector<Contender> contenders;
    for (const Candidate& candidate : candidates) {
      if (candidate.refused()) {
        rows->push_back(refused_row(request, candidate));
        continue;
      }
      Candidate planned = find_row(operands.problem, candidate.kernel.c_str());
      if (planned.refused()) throw Failure{planned.exit_code, planned.reason};
      try {
        contenders.push_back({std::make_unique<Runner>(planned.plan, place), {}, {}});
      } catch (const std::bad_alloc&) {
        // The textbook's scores may be too large for a device that runs the kernels with ease.
        if (!is_named(candidate, textbook_of(request.problem))) throw;
        planned.reason = fmt::format("needs a workspace of {}, which the device has not free",
                                     bytes_text(static_cast<double>(planned.plan.launch.workspace_bytes)));
        rows->push_back(refused_row(request, planned));
      }
    }
    if (contenders.empty()) return;
    if (place.on_device()) {
      take_device_turns(request, &contenders);
    } else {
      ColdCaches caches(operands, exact_work(contenders.front().runner->plan().problem, operands.tensors));
      take_turns(request, &caches, &contenders);
    }
    fill_rows(request, operands, &contenders);
    for (Contender& contender : contenders) rows->push_back(std::move(contender.row));
    std::stable_partition(rows->begin(), rows->end(), [](const BenchRow& row) { return !row.baseline; });
    progress_.clear();
  }

  void take_turns(const Request& request, ColdCaches* caches, std::vector<Contender>* contenders) {
    const int threads = request.problem.threads > 0 ? request.problem.threads : machine_threads();
    FmaProbe probe(request.problem, threads);
    if (!read_probe_ || read_probe_->threads() != threads) read_probe_ = std::make_unique<ReadProbe>(threads);
    read_probe_->forget();
    rotate(
        request, contenders, [&](Runner* runner) { return runner->run(caches->next()); },
        [&] {
          for (int i = 0; i < kSamplesPerTurn; ++i) {
            probe.sample();
            read_probe_->sample();
          }
        });
    peaks_.bytes_per_second = read_probe_->bytes_per_second();
    peaks_.flops_per_second = probe.flops_per_second();
    peaks_.fma_text = probe.text();
    peaks_.unit = probe.unit();
    peaks_.stated = false;
  }

  // The bounds are the device's own: its tensor cores at the clock it states, and its memory.
  void take_device_turns(const Request& request, std::vector<Contender>* contenders) {
    const core::DeviceInfo& device = *contenders->front().runner->plan().device;
    peaks_.flops_per_second = device.peak_16bit;
    peaks_.bytes_per_second = device.bandwidth;
    peaks_.unit = "tensor cores";
    peaks_.stated = true;
    peaks_.fma_text = fmt::format("tensor cores {}", rate_text(device.peak_16bit));
    rotate(
        request, contenders, [](Runner* runner) { return runner->run(); }, [] {});
  }

  // Two first runs of each, then rounds in random order; `between` comes before each turn.
  template <class Run, class Between>
  void rotate(const Request& request, std::vector<Contender>* contenders, Run run, Between between) {
    std::vector<int> runs;  // in one turn
    for (Contender& contender : *contenders) {
      progress_.show(fmt::format("{}: first run of {}", request.text, contender.runner->plan().entry->name));
      run(contender.runner.get());
      const double once = run(contender.runner.get());
      const double turn = options_.seconds / (options_.rounds * static_cast<double>(contenders->size()));
      runs.push_back(static_cast<int>(std::clamp(turn / std::max(once, 1e-7), 1.0, double{kMaxRunsPerTurn})));
    }
    std::vector<size_t> order(contenders->size());
    std::iota(order.begin(), order.end(), size_t{0});
    for (int round = 0; round < options_.rounds; ++round) {
      progress_.show(fmt::format("{}: round {} of {}", request.text, round + 1, options_.rounds));
      std::shuffle(order.begin(), order.end(), random_);
      for (const size_t index : order) {
        between();
        for (int i = 0; i < runs[index]; ++i)
          (*contenders)[index].times.push_back(run((*contenders)[index].runner.get()));
      }
    }
  }

  void fill_rows(const Request& request, const baselines::OperandSet& operands, std::vector<Contender>* contenders) {
    double textbook = 0;
    for (Contender& contender : *contenders)
      if (std::strcmp(contender.runner->plan().entry->name, textbook_of(request.problem)) == 0)
        textbook = median(contender.times);
    for (Contender& contender : *contenders) {
      const core::Plan& plan = contender.runner->plan();
      const core::Work work = exact_work(plan.problem, operands.tensors);
      BenchRow& row = contender.row;
      row.problem = request.text;
      row.kernel = plan.entry->name;
      row.device = plan.device->name;
      row.baseline = row.kernel == textbook_of(request.problem);
      row.seconds_median = median(contender.times);
      const auto [low, high] = std::minmax_element(contender.times.begin(), contender.times.end());
      row.seconds_min = *low;
      row.seconds_max = *high;
      row.flops = work.flops;
      row.bytes = work.bytes;
      const double flops_bound = work.flops / peaks_.flops_per_second,
                   bytes_bound = work.bytes / peaks_.bytes_per_second;
      row.binding = flops_bound >= bytes_bound ? peaks_.unit : "memory";
      row.bound_fraction = std::max(flops_bound, bytes_bound) / row.seconds_median;
      row.speedup_over_textbook = textbook / row.seconds_median;
      row.workspace_bytes = static_cast<double>(plan.launch.workspace_bytes);
      row.plan_seconds = plan_seconds(operands.problem, row.kernel);
      row.host_seconds = host_seconds(request, row.kernel);
    }
  }

  const BenchOptions& options_;
  Peaks peaks_;
  std::unique_ptr<ReadProbe> read_probe_;
  Progress progress_;
  std::mt19937 random_{std::random_device{}()};
};

void check_options(const BenchOptions& options) {
  if (options.problems.empty()) bad_input("bench: no problem, expected e.g. \"fwd f32 b1 hq16 sq2048 d64\"");
  if (!(options.seconds > 0 && options.seconds <= 3600))
    bad_input("--seconds {}: expected above 0, at most 3600", options.seconds);
  if (options.rounds < 1 || options.rounds > 1000) bad_input("--rounds {}: expected 1 to 1000", options.rounds);
  if (!options.out.empty()) OutputFile(options.out, "--out " + options.out);
}

}  // namespace

int bench_command(const BenchOptions& options) {
  check_options(options);
  std::vector<Request> requests;
  for (const std::string& text : options.problems) requests.push_back(parse_request(text));
  Bench bench(options);
  std::vector<BenchRow> all;
  int exit_code = kDone;
  bool cuda = false;
  for (const Request& request : requests) {
    const std::vector<BenchRow> rows = bench.measure(request, &exit_code);
    cuda = cuda || request.problem.device >= 0;
    if (options.json) {
      for (const BenchRow& row : rows) fmt::print("{}\n", json_text(bench_json(row)));
    } else {
      fmt::print("{}", bench_text(rows, bench.peaks()));
    }
    std::fflush(stdout);
    all.insert(all.end(), rows.begin(), rows.end());
  }
  if (!options.out.empty()) {
    const std::string text = result_file_text(all, bench.peaks(), cuda);
    OutputFile file(options.out, "--out " + options.out);
    file.write(text.data(), text.size());
    file.commit();
  }
  return exit_code;
}

}  // namespace tessera::cli

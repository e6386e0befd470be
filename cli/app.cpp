// Arguments to commands, and every failure to an exit code and one line on stderr.
#include "cli/app.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <system_error>

#include "cli/bench.hpp"
#include "cli/commands.hpp"
#include "cli/failure.hpp"

namespace tessera::cli {
namespace {

constexpr const char* kLanguage =
    "A problem is one line of words, in any order (sq and d are required, the rest has defaults):\n"
    "  fwd|bwd  f64|f32|f16|bf16|e4m3  bN hqN hkvN sqN skN dN dvN  causal topleft window=l,r softcap=X scale=X\n"
    "  alibi sinks bias[=bh|b|h|1] mask dbias dlse o=DTYPE kv=int8|e4m3 packed paged=N pages=shuffled leftpad\n"
    "  seed=N lens=equal|longtail|a:b:c layout=bshd|bhsd splits=N deterministic batch-invariant sm_margin=N\n"
    "  threads=N kernel=GLOB isa=portable|avx2|avx512|amx|neon cpu cuda\n"
    "Exit codes: 0 done, 1 a check failed, 2 bad input, 3 refused, 4 device error or out of memory.";

struct Options {
  RunOptions run;
  CheckOptions check;
  BenchOptions bench;
  ExplainOptions explain;
  bool no_baseline = false, devices_json = false;
  int exit_code = kDone;
};

void add_file_options(CLI::App* command, FileOptions* files) {
  command->add_option("--input", files->input, ".safetensors file with q, k, v and optional tensors by their C names");
  command->add_option("--q", files->q, ".npy file [batch, seqlen, heads, dim] or [seqlen, heads, dim]");
  command->add_option("--k", files->k, ".npy file, as --q");
  command->add_option("--v", files->v, ".npy file, as --q");
}

void add_run(CLI::App* app, Options* options) {
  CLI::App* command = app->add_subcommand("run", "Attention on tensors from files");
  RunOptions& run = options->run;
  command->add_option("words", run.words, "What the tensors do not say: causal, scale=0.125, kernel=..., threads=2");
  add_file_options(command, &run.files);
  command->add_option("--out", run.files.out, "Where the result goes: .safetensors beside --input, else .npy");
  command->add_option("--lse", run.files.lse, "Where lse goes (.npy; beside --input it goes into --out)");
  command->add_flag("--report", run.report, "Print time, error against float64 and memory beside the textbook method");
  command->footer(
      "Examples:\n"
      "  tessera run causal --q q.npy --k k.npy --v v.npy --out o.npy --report\n"
      "  tessera run causal window=127,0 --input qkv.safetensors --out o.safetensors");
  command->callback([options] { options->exit_code = run_command(options->run); });
}

void add_check(CLI::App* app, Options* options) {
  CLI::App* command = app->add_subcommand("check", "Compare kernels with a float64 reference");
  CheckOptions& check = options->check;
  command->add_option("problems", check.problems, "Problems, each in quotes; with tensor files: words, as for run");
  add_file_options(command, &check.files);
  command->add_flag("--json", check.json, "One object a line");
  command->footer(
      "Examples:\n"
      "  tessera check \"fwd f64 b1 hq1 hkv1 sq1000 sk1000 d64\" \"bf16 hq8 hkv2 sq300 d128 causal kernel=*\"\n"
      "  tessera check causal --q q.npy --k k.npy --v v.npy\n"
      "Fails (exit code 1) when an error exceeds its tolerance; kernel=* checks every row that takes the problem.");
  command->callback([options] { options->exit_code = check_command(options->check); });
}

void add_bench(CLI::App* app, Options* options) {
  CLI::App* command = app->add_subcommand("bench", "Measure kernels beside the textbook baseline");
  BenchOptions& bench = options->bench;
  command->add_option("problems", bench.problems, "Problems, each in quotes");
  command->add_flag("--json", bench.json, "One object a line");
  command->add_option("--out", bench.out, "Result file (JSON)");
  command->add_option("--seconds", bench.seconds, "Seconds of measuring a problem")->capture_default_str();
  command->add_option("--rounds", bench.rounds, "Rounds in which the kernels take turns")->capture_default_str();
  command->add_flag("--no-baseline", options->no_baseline, "Leave the textbook baseline out");
  command->footer(
      "Example:\n  tessera bench \"f32 hq16 sq2048 d64 isa=avx2 threads=2\" \"f32 hq16 sq2048 d64 causal\" --json");
  command->callback([options] {
    options->bench.baseline = !options->no_baseline;
    options->exit_code = bench_command(options->bench);
  });
}

void add_explain(CLI::App* app, Options* options) {
  CLI::App* command = app->add_subcommand("explain", "Say which kernel would run and why the others would not");
  command->add_option("problem", options->explain.problem, "A problem in quotes")->required();
  command->add_option("--device", options->explain.device, "Plan for a named GPU: h200, h100, a100, rtx4090, b200");
  command->add_flag("--json", options->explain.json, "One JSON object");
  command->footer("Example:\n  tessera explain \"fwd bf16 b4 hq32 hkv8 sq4096 d128 causal cuda\" --device h200");
  command->callback([options] { options->exit_code = explain_command(options->explain); });
}

void add_devices(CLI::App* app, Options* options) {
  CLI::App* command = app->add_subcommand("devices", "What this machine has and which kernels it can run");
  command->add_flag("--json", options->devices_json, "One JSON object");
  command->callback([options] { options->exit_code = devices_command(options->devices_json); });
}

// Messages quote what users typed or files hold: whatever that is, it stays one line.
void say(std::string message, bool keep_lines) {
  for (char& c : message)
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = keep_lines && c == '\n' ? '\n' : '?';
  while (!message.empty() && message.back() == '\n') message.pop_back();
  // Not by fmt::print, which throws where stderr is closed or full: the exit code has to come out then, too.
  std::fputs(("tessera: " + message + '\n').c_str(), stderr);
}

int give_up(int exit_code, const std::string& message) {
  std::fflush(stdout);
  say(message, exit_code == kRefused);
  return exit_code;
}

// The library ignores a setting that it does not know, and prints nothing; here it is no failure either.
void note_unknown_log() {
  const char* log = std::getenv("TESSERA_LOG");
  if (log != nullptr && log[0] != '\0' && std::strcmp(log, "plan") != 0)
    say(fmt::format("TESSERA_LOG={}: unknown and ignored, expected plan", log), false);
}

// stdout may be closed, or a file on a full disk.
int lost_stdout(int exit_code, int error) {
  return give_up(worse_exit(exit_code, kDeviceError),
                 fmt::format("stdout: cannot be written ({})", std::strerror(error)));
}

int finish(int exit_code) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  return lost_stdout(exit_code, errno != 0 ? errno : EIO);
}

// A file opened while a standard stream is closed would take its number, and messages would go into that file. The
// mode is the one that makes use of the stream fail as it does when closed.
void occupy_standard_streams() {
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(number, F_GETFD) < 0) (void)::open("/dev/null", number == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

int usage_error(const CLI::App& app, int argc, const char* const* argv, const CLI::ParseError& error) {
  if (argc > 1 && argv[1][0] != '-' && app.get_subcommands().empty())
    return give_up(kBadInput,
                   fmt::format("{}: unknown command, expected run, check, bench, explain or devices", argv[1]));
  if (argc <= 1)
    return give_up(kBadInput, "no command, expected run, check, bench, explain or devices (see tessera --help)");
  if (app.get_subcommands().empty())
    return give_up(kBadInput, fmt::format("{}: unknown option, expected a command (see tessera --help)", argv[1]));
  const bool conversion = dynamic_cast<const CLI::ConversionError*>(&error) != nullptr;
  return give_up(kBadInput,
                 fmt::format("{}{} (see tessera {} --help)", error.what(), conversion ? ", expected a number" : "",
                             app.get_subcommands().front()->get_name()));
}

}  // namespace

int run_app(int argc, const char* const* argv) {
  occupy_standard_streams();
  note_unknown_log();
  CLI::App app("Tessera: exact attention in tiles, on CPU and GPU", "tessera");
  Options options;
  app.set_version_flag("--version", [] { return version_text(); });
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.footer(kLanguage);
  app.require_subcommand(1);
  add_run(&app, &options);
  add_check(&app, &options);
  add_bench(&app, &options);
  add_explain(&app, &options);
  add_devices(&app, &options);
  try {
    app.parse(argc, argv);
    return finish(options.exit_code);
  } catch (const CLI::Success& request) {  // --help, --version
    return finish(app.exit(request));
  } catch (const CLI::ParseError& error) {
    return usage_error(app, argc, argv, error);
  } catch (const Failure& failure) {
    return give_up(failure.exit_code, failure.message);
  } catch (const std::bad_alloc&) {
    return give_up(kDeviceError, "out of memory");
  } catch (const std::system_error& error) {
    // fmt::print throws this where stdout cannot be written; commands turn errors of their own files into Failure.
    if (std::ferror(stdout) != 0) return lost_stdout(kDone, error.code().value());
    return give_up(kDeviceError, error.what());
  } catch (const std::exception& error) {
    return give_up(kDeviceError, error.what());
  }
}

}  // namespace tessera::cli

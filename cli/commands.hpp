// The five commands. Each prints its results on stdout and returns an exit code; bad input is thrown as Failure.
#pragma once

#include <string>
#include <vector>

#include "cli/bind.hpp"

namespace tessera::cli {

struct RunOptions {
  std::vector<std::string> words;
  FileOptions files;
  bool report = false;  // beside the textbook baseline and the judge
};
int run_command(const RunOptions& options);

struct CheckOptions {
  std::vector<std::string> problems;
  FileOptions files;
  bool json = false;
};
int check_command(const CheckOptions& options);

struct BenchOptions {
  std::vector<std::string> problems;
  bool json = false;
  bool baseline = true;
  std::string out;     // result file
  double seconds = 2;  // of measuring a problem
  int rounds = 7;
};
int bench_command(const BenchOptions& options);

struct ExplainOptions {
  std::string problem, device;
  bool json = false;
};
int explain_command(const ExplainOptions& options);

int devices_command(bool json);

}  // namespace tessera::cli

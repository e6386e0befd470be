// Any text as a line of problem text: parsing, the canonical line, planning and explaining. Invariant: the canonical
// line of what was parsed parses again, to the same canonical line.
#include <string>

#include "fuzz.hpp"
#include "tessera/tessera.h"

using tessera::fuzz::require;

namespace {

std::string canonical(const tessera_problem& problem) {
  std::string text(tessera_problem_format(&problem, nullptr, 0), '\0');
  tessera_problem_format(&problem, text.data(), text.size() + 1);
  return text;
}

void explain(const tessera_problem& problem, size_t capacity) {
  tessera_status status;
  tessera_plan* plan = nullptr;
  const int code = tessera_plan_create(&problem, &plan, &status);
  require((code == TESSERA_OK) == (plan != nullptr), "a plan exists exactly when its creation succeeded");
  require(code == TESSERA_OK || status.message[0] != '\0', "a failure has a message");
  std::string reasons(capacity, 'x');
  require(tessera_supports(&problem, reasons.data(), reasons.size()) == code, "supports tells what planning tells");
  if (plan == nullptr) return;
  for (int json = 0; json < 2; ++json) {
    std::string text(capacity, 'x');
    tessera_plan_explain(plan, json, text.data(), text.size());
  }
  tessera_plan_destroy(plan);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const size_t capacity = data[0];
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  tessera_problem problem, again;
  tessera_status status;
  if (tessera_problem_parse(text.c_str(), &problem, &status) != TESSERA_OK) {
    require(status.message[0] != '\0', "a refused line has a message");
    return 0;
  }
  const std::string line = canonical(problem);
  if (tessera_problem_parse(line.c_str(), &again, &status) != TESSERA_OK) {
    std::fprintf(stderr, "%s\n%s\n", line.c_str(), status.message);
    require(false, "the canonical line parses");
  }
  if (canonical(again) != line) {
    std::fprintf(stderr, "%s\n%s\n", line.c_str(), canonical(again).c_str());
    require(false, "the canonical line is its own canonical line");
  }
  explain(problem, capacity);
  return 0;
}

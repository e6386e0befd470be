// Calls that must fail: one clear line, nothing written.
#include <algorithm>
#include <memory>

#include "support.hpp"

namespace tessera::test {
namespace {

void expect_one_line(const tessera_status& status, const std::string& word) {
  EXPECT_NE(std::string(status.message).find(word), std::string::npos)
      << "\"" << status.message << "\" does not name " << word;
  EXPECT_EQ(std::string(status.message).find('\n'), std::string::npos);
}

}  // namespace

void expect_refused(Case& c, int code, const std::string& word) {
  tessera_status status{};
  EXPECT_EQ(run(c, {"", false}, &status), code) << status.message;
  EXPECT_EQ(status.code, code);
  expect_one_line(status, word);
  for (const auto& [name, tensor] : c.outputs()) {
    const std::vector<std::byte> bytes = bytes_of(*tensor);
    EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0xff}; }))
        << name << " was written by a refused call";
    EXPECT_TRUE(tensor->gaps_intact()) << name;
  }
}

void expect_metadata_refused(Case& c, const std::string& word) {
  if (!on_gpu()) {
    expect_refused(c, TESSERA_INVALID_ARGUMENT, word);
    return;
  }
  const tessera_tensors tensors = c.bind();
  tessera_plan* made = nullptr;
  tessera_status status{};
  ASSERT_EQ(tessera_plan_create(&c.problem, &made, &status), TESSERA_OK) << status.message;
  const std::unique_ptr<tessera_plan, void (*)(tessera_plan*)> plan(made, tessera_plan_destroy);
  EXPECT_EQ(gpu_target->check_metadata(plan.get(), tensors, &status), TESSERA_INVALID_ARGUMENT);
  expect_one_line(status, word);
  EXPECT_EQ(run(c, {"", false}, &status), TESSERA_OK) << status.message;
  for (const auto& [name, tensor] : c.outputs()) EXPECT_TRUE(tensor->gaps_intact()) << name;
}

}  // namespace tessera::test

// The binary `tessera` on a CUDA device: run, check and bench put operands there, run, and bring results back.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "baselines/elements.hpp"
#include "cli/npy.hpp"
#include "gpu_support.hpp"
#include "temporary_folder.hpp"

namespace tessera::tests {
namespace {

using Json = nlohmann::json;

class GpuCli : public ::testing::Test {
 protected:
  void SetUp() override {
    TESSERA_NEEDS_GPU();
    ASSERT_NE(folder_, "");
  }
  std::string content(const std::string& name) const {
    std::ifstream file(folder_ + "/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Runs in the test's folder; output in "out", errors in "err". Returns the exit code.
  int tessera(const std::string& arguments) const {
    const std::string binary = test::file_of_build(TESSERA_CLI_PATH, "tessera");
    const int status =
        std::system(("cd " + folder_ + " && exec " + binary + " " + arguments + " >out 2>err </dev/null").c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::vector<Json> lines() const {
    std::vector<Json> objects;
    std::istringstream text(content("out"));
    for (std::string line; std::getline(text, line);) objects.push_back(Json::parse(line));
    return objects;
  }
  // f16 [1, 200, 2, 64], normal(0, 1).
  void write_array(const std::string& name, unsigned seed) const {
    constexpr int64_t kCount = 200 * 2 * 64;
    std::string bytes(2 * kCount, '\0');
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    for (int64_t i = 0; i < kCount; ++i) baselines::store_element(TESSERA_F16, bytes.data(), i, normal(random));
    std::ofstream(folder_ + "/" + name, std::ios::binary) << cli::npy_header("F16", {1, 200, 2, 64}) << bytes;
  }

  test::TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
};

TEST_F(GpuCli, ChecksAgainstFloat64) {
  EXPECT_EQ(tessera("check --json 'bf16 b2 hq4 hkv2 sq300 d64 causal cuda'"
                    " 'f16 b3 hq2 sq70 sk200 d128 paged=16 pages=shuffled lens=longtail splits=3 cuda'"),
            0)
      << content("err");
  const std::vector<Json> rows = lines();
  ASSERT_EQ(rows.size(), 2u);
  for (const Json& row : rows) {
    EXPECT_EQ(row["status"], "ran");
    EXPECT_EQ(row["kernel"], first_forward_row());
    EXPECT_EQ(row["passed"], true) << row;
    EXPECT_GT(row["max_abs_error"], 0) << "the device's results were not looked at";
  }
}

TEST_F(GpuCli, RunsOnArrays) {
  for (const char* name : {"q.npy", "k.npy", "v.npy"}) write_array(name, static_cast<unsigned>(name[0]));
  const std::string arrays = " --q q.npy --k k.npy --v v.npy ";
  ASSERT_EQ(tessera("run causal cuda" + arrays + "--out gpu.npy --lse lse.npy"), 0) << content("err");
  EXPECT_NE(content("out").find(first_forward_row()), std::string::npos) << content("out");
  ASSERT_EQ(tessera("run causal cuda --report" + arrays), 0) << content("err");
  EXPECT_NE(content("out").find("within the tolerance"), std::string::npos) << content("out");
  ASSERT_EQ(tessera("run causal" + arrays + "--out cpu.npy"), 0) << content("err");
  const std::string gpu = content("gpu.npy"), cpu = content("cpu.npy");
  ASSERT_EQ(gpu.size(), cpu.size());
  const size_t header = gpu.size() - 2 * 200 * 2 * 64;
  for (int64_t i = 0; i < 200 * 2 * 64; ++i) {
    const double a = baselines::load_element(TESSERA_F16, gpu.data() + header, i),
                 b = baselines::load_element(TESSERA_F16, cpu.data() + header, i);
    ASSERT_NEAR(a, b, 4e-3) << i;
  }
}

TEST_F(GpuCli, MeasuresBesideTheTextbook) {
  EXPECT_EQ(tessera("bench --json --seconds 0.2 --rounds 2 'bf16 hq8 sq1024 d64 cuda'"), 0) << content("err");
  const std::vector<Json> rows = lines();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["kernel"], first_forward_row());
  EXPECT_EQ(rows[0]["status"], "ran");
  EXPECT_EQ(rows[0]["baseline"], false);
  EXPECT_EQ(rows[1]["kernel"], "cuda.textbook");
  EXPECT_EQ(rows[1]["baseline"], true);
  for (const char* key : {"seconds_median", "tflops", "bound_fraction", "plan_seconds", "host_seconds"})
    EXPECT_GT(rows[0][key], 0) << key;
  EXPECT_LT(rows[0]["bound_fraction"], 1);
  if (rows[1]["status"] == "ran") {
    EXPECT_GT(rows[0]["speedup_over_textbook"], 1);
  }
}

}  // namespace
}  // namespace tessera::tests

// `tessera run`, `check` and `bench` of the backward pass.
#include "cli_fixture.hpp"

namespace tessera::cli {
namespace {

class CliGradients : public CliFixture {
 protected:
  // q [2, 6, 4, 8], k and v [2, 9, 2, 8], and everything that has a gradient.
  void write_everything() const {
    std::vector<FileTensor> tensors = operands("F32", {2, 6, 4, 8}, {2, 9, 2, 8});
    tensors.push_back(random_tensor("d_o", "F32", {2, 6, 4, 8}, 4));
    tensors.push_back(random_tensor("d_lse", "F32", {2, 4, 6}, 5));
    tensors.push_back(random_tensor("sinks", "F32", {4}, 6));
    tensors.push_back(random_tensor("bias", "F32", {1, 4, 6, 9}, 7));
    write_input(tensors);
  }
};

TEST_F(CliGradients, RunWritesEveryGradient) {
  write_everything();
  const std::string words = "run bwd causal softcap=5 --input in.safetensors --out o.safetensors";
  const Result exact = tessera(words + " kernel=cpu.reference");
  EXPECT_EQ(exact.exit_code, 0) << exact.err;
  const auto expected = read_output(path("o.safetensors"));
  const Result run = tessera(words);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out.find(".backward"), std::string::npos) << run.out;
  const auto found = read_output(path("o.safetensors"));
  const std::map<std::string, std::vector<int64_t>> shapes = {
      {"o", {2, 6, 4, 8}},  {"lse", {2, 4, 6}}, {"dq", {2, 6, 4, 8}},    {"dk", {2, 9, 2, 8}},
      {"dv", {2, 9, 2, 8}}, {"d_sinks", {4}},   {"d_bias", {1, 4, 6, 9}}};
  ASSERT_EQ(found.size(), shapes.size());
  for (const auto& [name, shape] : shapes) {
    ASSERT_TRUE(found.contains(name) && expected.contains(name)) << name;
    EXPECT_EQ(found.at(name).shape, shape) << name;
    const std::vector<double>&got = found.at(name).values, &want = expected.at(name).values;
    ASSERT_EQ(got.size(), want.size()) << name;
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5) << name << ' ' << i;
  }
}

TEST_F(CliGradients, CheckOfFilesAndOfText) {
  write_everything();
  for (const char* command : {"check bwd causal --json --input in.safetensors",
                              "check --json \"bwd bf16 b2 hq4 hkv2 sq33 sk50 d24 causal sinks dlse kernel=*\""}) {
    const Result check = tessera(command);
    EXPECT_EQ(check.exit_code, 0) << check.out << check.err;
    std::istringstream lines(check.out);
    int ran = 0;
    for (std::string line; std::getline(lines, line);) {
      const Json json = Json::parse(line);
      if (json["status"] != "ran") continue;
      ++ran;
      EXPECT_TRUE(json["passed"]) << line;
      EXPECT_GT(json["max_abs_error"].get<double>(), 0) << line;
    }
    EXPECT_GT(ran, 0) << check.out;
  }
}

TEST_F(CliGradients, ReportShowsTheWorstGradient) {
  write_everything();
  const Result report = tessera("run bwd causal --report --input in.safetensors");
  EXPECT_EQ(report.exit_code, 0) << report.err;
  EXPECT_NE(report.out.find("the worst gradient; within"), std::string::npos) << report.out;
}

// The probe of memory takes seconds.
using CliGradientsFull = CliGradients;

TEST_F(CliGradientsFull, Bench) {
  const Result bench = tessera("bench --json --seconds 0.05 --rounds 1 \"bwd f32 b1 hq2 sq70 d16\"");
  EXPECT_EQ(bench.exit_code, 0) << bench.err;
  const Json row = Json::parse(bench.out.substr(0, bench.out.find('\n')));
  EXPECT_EQ(row["status"], "ran");
  EXPECT_NE(row["kernel"].get<std::string>().find(".backward"), std::string::npos);
  EXPECT_EQ(row["flops"].get<double>(), 2.5 * 4 * 2 * 70 * 70 * 16);
}

}  // namespace
}  // namespace tessera::cli

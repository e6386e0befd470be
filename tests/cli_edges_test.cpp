// The binary `tessera` where something around it is unusual: names of one file, lost streams, the environment.
#include "cli_fixture.hpp"

namespace tessera::cli {
namespace {

class CliEdges : public CliFixture {};

// Files by any name: a result never takes the place of an operand, nor one result that of another.
TEST_F(CliEdges, OutputsAreNoOtherFileOfTheCommand) {
  std::filesystem::create_directory(path("sub"));
  std::filesystem::create_directory_symlink(folder_, path("here"));
  write_input(operands("F32", {1, 6, 2, 8}, {1, 9, 2, 8}));
  for (const char* name : {"q", "k", "v"})
    std::filesystem::create_symlink(std::string(name) + ".npy", path(std::string("link_") + name + ".npy"));
  std::filesystem::create_symlink("in.safetensors", path("link_in.safetensors"));
  const std::string before = content(path("q.npy")) + content(path("k.npy")) + content(path("v.npy"));
  const std::string input = content(path("in.safetensors"));
  for (const std::string& prefix : {std::string(), std::string("./"), folder_ + "/", std::string("sub/../"),
                                    std::string("here/"), std::string(".//here/here/"), std::string("link_")}) {
    for (const char* name : {"q.npy", "k.npy", "v.npy"}) {
      expect_bad_input("run " + kArrays + "--out " + prefix + name, "--out " + prefix + name + ": is an input as well");
      expect_bad_input("run " + kArrays + "--out o.npy --lse " + prefix + name,
                       "--lse " + prefix + name + ": is an input as well");
    }
    expect_bad_input("run --input in.safetensors --out " + prefix + "in.safetensors", "is an input as well");
    if (prefix == "link_") continue;
    expect_bad_input("run " + kArrays + "--out o.npy --lse " + prefix + "o.npy", "o.npy: is --out as well");
    write_file(path("old.npy"), "old");
    expect_bad_input("run " + kArrays + "--out " + prefix + "old.npy --lse old.npy", "--lse old.npy: is --out as well");
  }
  EXPECT_EQ(content(path("q.npy")) + content(path("k.npy")) + content(path("v.npy")), before);
  EXPECT_EQ(content(path("in.safetensors")), input);
  EXPECT_EQ(content(path("old.npy")), "old");
  std::filesystem::create_symlink("nothing.npy", path("dangling.npy"));
  expect_bad_input("run " + kArrays + "--out dangling.npy", "a symbolic link to a file that does not exist");
}

// Each redirection by its exit code: a lost stderr changes none, a lost stdout is 4 with one line that says so.
TEST_F(CliEdges, LostStreamsKeepTheExitCode) {
  const auto exit_code = [&](const std::string& arguments) {
    const int status = std::system(("cd " + folder_ + " && exec " + binary() + " " + arguments).c_str());
    EXPECT_TRUE(WIFEXITED(status)) << arguments;
    return WEXITSTATUS(status);
  };
  for (const char* lost : {" 2>&-", " 2>/dev/full"}) {
    for (const char* bad : {"check bogus", "", "--frobnicate", "run --q absent.npy --k k.npy --v v.npy --out o.npy"})
      EXPECT_EQ(exit_code(bad + std::string(" >/dev/null") + lost), 2) << bad << lost;
    EXPECT_EQ(exit_code("run kernel=cpu.none " + kArrays + "--out o.npy >/dev/null" + lost), 3) << lost;
    EXPECT_EQ(exit_code("check 'f32 sq16 d16' >/dev/null" + std::string(lost)), 0) << lost;
  }
  for (const char* lost : {" >&-", " >/dev/full"}) {
    for (const std::string& good :
         {std::string("devices"), std::string("--help"), std::string("--version"), std::string("run --help"),
          std::string("explain --json 'f32 sq16 d16'"), std::string("check 'f32 sq16 d16' --json"),
          std::string("bench --seconds 0.01 --rounds 1 'f32 sq16 d16'"), "run " + kArrays + "--out o.npy"}) {
      EXPECT_EQ(exit_code(good + lost + " 2>.err"), 4) << good << lost;
      const std::string err = content(path(".err"));
      EXPECT_EQ(err.rfind("tessera: stdout: cannot be written (", 0), 0u) << good << lost << "\n" << err;
      EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << good << lost << "\n" << err;
      EXPECT_EQ(exit_code(good + lost + (lost[2] == '&' ? " 2>&-" : " 2>/dev/full")), 4) << good << lost;
    }
    EXPECT_EQ(exit_code("check bogus" + std::string(lost) + " 2>/dev/null"), 2) << lost;
  }
  // No file takes the number of a closed stream, and with it what was meant for the stream.
  ASSERT_EQ(exit_code("run " + kArrays + "--out whole.npy >/dev/null"), 0);
  EXPECT_EQ(content(path("o.npy")), content(path("whole.npy")));
}

// A pin of the environment is named as one of the problem is, for every row and in every command.
TEST_F(CliEdges, RefusalsNameThePin) {
  const struct {
    const char *environment, *word, *says, *other;
  } kPins[] = {{"TESSERA_KERNEL=foo ", "", "excluded by TESSERA_KERNEL=foo", "excluded by kernel="},
               {"", " kernel=foo", "excluded by kernel=foo", "TESSERA_KERNEL"},
               {"TESSERA_KERNEL=bar ", " kernel=foo", "excluded by kernel=foo", "TESSERA_KERNEL"}};
  for (const auto& pin : kPins) {
    for (const char* command : {"check", "check --json", "bench", "bench --json", "explain", "explain --json"}) {
      const std::string text = std::string(command) + " 'f64 sq64 d64" + pin.word + "' >.pin";
      const int status =
          std::system(("cd " + folder_ + " && " + pin.environment + "exec " + binary() + " " + text).c_str());
      const std::string out = content(path(".pin"));
      EXPECT_EQ(WEXITSTATUS(status), 3) << pin.environment << text;
      EXPECT_NE(out.find(pin.says), std::string::npos) << pin.environment << text << "\n" << out;
      EXPECT_EQ(out.find(pin.other), std::string::npos) << pin.environment << text << "\n" << out;
      EXPECT_EQ(out.find("runs only when pinned"), std::string::npos) << pin.environment << text << "\n" << out;
    }
  }
}

}  // namespace
}  // namespace tessera::cli

// The readers of .npy and .safetensors: what they accept, and that every way a header can lie is one line of bad input.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "cli/failure.hpp"
#include "cli/file_io.hpp"
#include "cli/npy.hpp"
#include "cli/safetensors.hpp"
#include "temporary_folder.hpp"

namespace tessera::cli {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

template <class Call>
std::string failure_of(const Call& call) {
  try {
    call();
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.exit_code, kBadInput);
    EXPECT_EQ(failure.message.rfind("file", 0), 0u) << failure.message;
    return failure.message;
  }
  return "accepted";
}
std::string npy_failure(const std::string& file) {
  return failure_of([&] { read_npy(bytes_of(file), "file"); });
}
std::string safetensors_failure(const std::string& file) {
  return failure_of([&] { read_safetensors(bytes_of(file), "file"); });
}
#define EXPECT_MESSAGE(actual, part)                                                \
  do {                                                                              \
    const std::string got_message = (actual);                                       \
    EXPECT_NE(got_message.find(part), std::string::npos) << "got: " << got_message; \
  } while (false)

std::string npy_file(const std::string& dict, size_t data_bytes, int version = 1) {
  std::string file = "\x93NUMPY";
  file += static_cast<char>(version);
  file += '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) file += static_cast<char>(dict.size() >> (8 * i) & 0xff);
  return file + dict + std::string(data_bytes, '\x11');
}
std::string npy_of(const std::string& descr, const std::string& shape, size_t data_bytes, int version = 1) {
  return npy_file("{'descr': " + descr + ", 'fortran_order': False, 'shape': " + shape + ", }\n", data_bytes, version);
}

TEST(Npy, ReadsEveryVersionAndType) {
  for (const int version : {1, 2, 3}) {
    for (const auto& [descr, dtype, size] :
         {std::tuple{"'<f2'", "F16", 2}, {"'<f4'", "F32", 4}, {"\"<f8\"", "F64", 8}}) {
      const std::string file = npy_of(descr, "(1, 3L, 2)", static_cast<size_t>(6 * size), version);
      const TensorView tensor = read_npy(bytes_of(file), "file");
      EXPECT_EQ(tensor.dtype, dtype);
      EXPECT_EQ(tensor.shape, (std::vector<int64_t>{1, 3, 2}));
      EXPECT_EQ(tensor.bytes, static_cast<size_t>(6 * size));
      EXPECT_EQ(static_cast<const void*>(tensor.data), file.data() + file.size() - tensor.bytes);
    }
  }
}

TEST(Npy, AcceptsEmptyArraysScalarsAndAnyKeyOrder) {
  EXPECT_EQ(read_npy(bytes_of(npy_of("'<f4'", "(0, 5)", 0)), "file").bytes, 0u);
  EXPECT_EQ(read_npy(bytes_of(npy_of("'<f4'", "()", 4)), "file").bytes, 4u);
  EXPECT_EQ(read_npy(bytes_of(npy_file("{'shape':(2,),'descr':'<f4','fortran_order':True}", 8)), "file").bytes, 8u);
  // A zero extent makes any other extent harmless.
  EXPECT_EQ(read_npy(bytes_of(npy_of("'<f8'", "(0, 9223372036854775807)", 0)), "file").bytes, 0u);
}

TEST(Npy, WritesWhatItReads) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {7}, {1, 64, 9, 64}, {0, 3}}) {
    for (const char* dtype : {"F16", "F32", "F64"}) {
      std::string file = npy_header(dtype, shape);
      EXPECT_EQ(file.size() % 64, 0u);
      EXPECT_EQ(file.back(), '\n');
      size_t data_bytes = 0;
      ASSERT_TRUE(checked_bytes(shape, element_bytes(dtype), &data_bytes));
      file.append(data_bytes, '\x22');
      const TensorView tensor = read_npy(bytes_of(file), "file");
      EXPECT_EQ(tensor.dtype, dtype);
      EXPECT_EQ(tensor.shape, shape);
      EXPECT_EQ(tensor.bytes, data_bytes);
    }
  }
}

TEST(Npy, RefusesEveryTruncation) {
  const std::string file = npy_of("'<f4'", "(2, 3)", 24);
  ASSERT_EQ(npy_failure(file), "accepted");
  for (size_t size = 0; size < file.size(); ++size) EXPECT_NE(npy_failure(file.substr(0, size)), "accepted") << size;
  EXPECT_MESSAGE(npy_failure(file + "x"), "needs 24 bytes of data, the file has 25");
}

TEST(Npy, NamesUnsupportedTypes) {
  EXPECT_MESSAGE(npy_failure(npy_of("'|O'", "(2,)", 16)), "pickled object array, dtype '|O'");
  EXPECT_MESSAGE(npy_failure(npy_of("'<c8'", "(2,)", 16)), "complex dtype '<c8'");
  EXPECT_MESSAGE(npy_failure(npy_of("'>f4'", "(2,)", 8)), "big-endian dtype '>f4'");
  EXPECT_MESSAGE(npy_failure(npy_of("'<i8'", "(2,)", 16)), "unsupported dtype '<i8', expected '<f2', '<f4' or '<f8'");
  EXPECT_MESSAGE(npy_failure(npy_of("'|V2'", "(2,)", 4)), "bfloat16 goes into .safetensors");
  EXPECT_MESSAGE(npy_failure(npy_of("[('a', '<f4')]", "(2,)", 8)), "structured");
  EXPECT_MESSAGE(npy_failure(npy_of("''", "(2,)", 8)), "unsupported dtype ''");
  const std::string fortran = "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }";
  EXPECT_MESSAGE(npy_failure(npy_file(fortran, 24)), "Fortran order, expected C order");
}

TEST(Npy, RefusesLyingSizes) {
  EXPECT_MESSAGE(npy_failure(npy_of("'<f4'", "(4294967296, 4294967296)", 8)), "2^63 bytes or more");
  EXPECT_MESSAGE(npy_failure(npy_of("'<f4'", "(2305843009213693952,)", 8)), "2^63 bytes or more");
  EXPECT_MESSAGE(npy_failure(npy_of("'<f4'", "(9223372036854775808,)", 8)), "extent of 2^63 or more");
  EXPECT_MESSAGE(npy_failure(npy_of("'<f4'", "(99999999999999999999999,)", 8)), "extent of 2^63 or more");
  EXPECT_MESSAGE(npy_failure(npy_of("'<f4'", "(-2, -3)", 24)), "non-negative integer");
  EXPECT_MESSAGE(npy_failure(npy_of("'<f4'", "(1000000,)", 8)), "needs 4000000 bytes of data, the file has 8");
  std::string file = npy_of("'<f4'", "(2,)", 8, 2);
  file[11] = '\x7f';  // a header of 2 GB
  EXPECT_MESSAGE(npy_failure(file), "but the file has");
}

TEST(Npy, RefusesMalformedHeaders) {
  const char* const kDicts[] = {"",
                                "{",
                                "{}",
                                "[]",
                                "{'descr': '<f4'}",
                                "{'descr': '<f4', 'fortran_order': False, 'shape': 2}",
                                "{'descr': '<f4', 'fortran_order': False, 'shape': (2}",
                                "{'descr': '<f4', 'fortran_order': False, 'shape': (2)}",
                                "{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}",
                                "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} x",
                                "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}",
                                "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': 1}",
                                "{'descr': '<f4, 'fortran_order': False, 'shape': (2,)}",
                                "{'descr' '<f4', 'fortran_order': False, 'shape': (2,)}",
                                "{descr: '<f4', 'fortran_order': False, 'shape': (2,)}",
                                "{'descr': '<f\n', 'fortran_order': False, 'shape': (2,)}",
                                "{'descr': '<f4', 'fortran_order': False, 'shape': (2.0,)}",
                                "{'descr': '<f4', 'fortran_order': False, 'shape': (,)}",
                                "{'descr': '<f4', 'fortran_order': False, 'shape': "
                                "(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2)}"};
  for (const char* dict : kDicts) EXPECT_NE(npy_failure(npy_file(dict, 8)), "accepted") << dict;
  EXPECT_MESSAGE(npy_failure("\x93NUMPX\x01"), "not a .npy file");
  EXPECT_MESSAGE(npy_failure(npy_of("'<f4'", "(2,)", 8, 4)), "version 4.0, expected 1.0, 2.0 or 3.0");
}

// No single byte of a header can be flipped into something that reads out of bounds (the sanitizer build watches).
TEST(Npy, SurvivesEveryByteFlip) {
  const std::string file = npy_of("'<f4'", "(2, 3)", 24);
  for (size_t i = 0; i < file.size() - 24; ++i) {
    for (const int value : {0, 1, 0x27, 0x28, 0x39, 0x7f, 0xff}) {
      std::string changed = file;
      changed[i] = static_cast<char>(value);
      const std::string message = npy_failure(changed);
      EXPECT_EQ(message.find('\n'), std::string::npos);
    }
  }
}

std::string safetensors_file(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, '\x33');
}

TEST(Safetensors, ReadsEveryTypeByRisingOffset) {
  const std::string file =
      safetensors_file(R"({"__metadata__":{"a":"b"},"v":{"dtype":"F32","shape":[2],"data_offsets":[8,16]},)"
                       R"("k":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]},)"
                       R"("e":{"dtype":"F8_E4M3","shape":[],"data_offsets":[16,17]},)"
                       R"("i":{"dtype":"I8","shape":[0,9223372036854775807],"data_offsets":[17,17]}}   )",
                       17);
  const std::vector<TensorView> tensors = read_safetensors(bytes_of(file), "file");
  ASSERT_EQ(tensors.size(), 4u);
  EXPECT_EQ(tensors[0].name, "k");
  EXPECT_EQ(tensors[0].dtype, "BF16");
  EXPECT_EQ(tensors[1].name, "v");
  EXPECT_EQ(tensors[1].data - tensors[0].data, 8);
  EXPECT_EQ(tensors[2].bytes, 1u);
  EXPECT_EQ(tensors[3].bytes, 0u);
  EXPECT_EQ(read_safetensors(bytes_of(safetensors_file("{}", 0)), "file").size(), 0u);
}

TEST(Safetensors, WritesWhatItReads) {
  const std::string o(24, 'o'), lse(8, 'l');
  const auto data = [](const std::string& text) { return bytes_of(text).data(); };
  const std::vector<TensorView> written = {{"lse", "F32", {2}, data(lse), 8}, {"o \"q\"", "F64", {1, 3}, data(o), 24}};
  const std::string header = safetensors_header(written);
  EXPECT_EQ(header.size() % 64, 0u);
  const std::string file = header + lse + o;
  const std::vector<TensorView> read = read_safetensors(bytes_of(file), "file");
  ASSERT_EQ(read.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(read[i].name, written[i].name);
    EXPECT_EQ(read[i].dtype, written[i].dtype);
    EXPECT_EQ(read[i].shape, written[i].shape);
    ASSERT_EQ(read[i].bytes, written[i].bytes);
    EXPECT_EQ(std::memcmp(read[i].data, written[i].data, read[i].bytes), 0);
  }
}

TEST(Safetensors, RefusesEveryTruncation) {
  const std::string file = safetensors_file(R"({"q":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  ASSERT_EQ(safetensors_failure(file), "accepted");
  for (size_t size = 0; size < file.size(); ++size)
    EXPECT_NE(safetensors_failure(file.substr(0, size)), "accepted") << size;
  EXPECT_MESSAGE(safetensors_failure(file + "x"), "9 bytes of data, but the tensors end at byte 8");
}

TEST(Safetensors, RefusesLyingHeaders) {
  std::string huge = safetensors_file("{}", 0);
  huge[7] = '\x7f';
  EXPECT_MESSAGE(safetensors_failure(huge), "but the file has 10");
  std::string all_ones = safetensors_file("{}", 0);
  for (int i = 0; i < 8; ++i) all_ones[static_cast<size_t>(i)] = '\xff';
  EXPECT_MESSAGE(safetensors_failure(all_ones), "header of 18446744073709551615 bytes");
  EXPECT_MESSAGE(safetensors_failure(safetensors_file(" {}", 0)), "does not begin with '{'");
  EXPECT_MESSAGE(safetensors_failure(safetensors_file("", 0)), "does not begin with '{'");
  EXPECT_MESSAGE(safetensors_failure(safetensors_file("{\"q\":", 0)), "not JSON");
  EXPECT_MESSAGE(safetensors_failure(safetensors_file("{} {}", 0)), "not JSON");
  EXPECT_MESSAGE(safetensors_failure(safetensors_file("{\"\xff\":1}", 0)), "not JSON");
  EXPECT_MESSAGE(safetensors_failure(safetensors_file("{" + std::string(100000, '[') + "}", 0)), "not JSON");
  // A number that no double holds, wherever a value may stand.
  for (const char* header : {R"({"q":{"dtype":1e999,"shape":[2],"data_offsets":[0,8]}})",
                             R"({"q":{"dtype":"F32","shape":[-2e400],"data_offsets":[0,8]}})",
                             R"({"q":{"dtype":"F32","shape":[2],"data_offsets":[0,166666E666]}})",
                             R"({"__metadata__":{"a":1e309}})", R"({"q":1e309})"})
    EXPECT_MESSAGE(safetensors_failure(safetensors_file(header, 8)), "too large for a double");
  EXPECT_MESSAGE(safetensors_failure(safetensors_file(R"({"__metadata__":{"a":1}})", 0)), "map of strings");
  EXPECT_MESSAGE(safetensors_failure(safetensors_file(R"({"__metadata__":[]})", 0)), "map of strings");
}

TEST(Safetensors, RefusesNamesGivenTwice) {
  const std::string q = R"("q":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_MESSAGE(safetensors_failure(safetensors_file("{" + q + "," + q + "}", 8)), "names \"q\" twice");
  EXPECT_MESSAGE(safetensors_failure(
                     safetensors_file(R"({"q":{"dtype":"F32","dtype":"F16","shape":[2],"data_offsets":[0,8]}})", 8)),
                 "names \"dtype\" twice");
}

TEST(Safetensors, RefusesBadTensors) {
  const std::pair<const char*, const char*> kCases[] = {
      {R"("q":3)", "is not {dtype, shape, data_offsets}"},
      {R"("q":{"dtype":"F32","shape":[2]})", "is not {dtype, shape, data_offsets}"},
      {R"("q":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})", "is not {dtype, shape, data_offsets}"},
      {R"("q":{"dtype":"C64","shape":[1],"data_offsets":[0,8]})", "has dtype \"C64\""},
      {R"("q":{"dtype":7,"shape":[1],"data_offsets":[0,8]})", "has dtype 7"},
      {R"("q":{"dtype":"F32","shape":2,"data_offsets":[0,8]})", "shape is not a list"},
      {R"("q":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", "extent -2 in shape"},
      {R"("q":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})", "extent 2.0 in shape"},
      {R"("q":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8]})", "extent 9223372036854775808"},
      {R"("q":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})", "2^63 bytes or more"},
      {R"("q":{"dtype":"F32","shape":[2],"data_offsets":[8]})", "data_offsets [8]"},
      {R"("q":{"dtype":"F32","shape":[2],"data_offsets":[8,0]})", "data_offsets [8,0]"},
      {R"("q":{"dtype":"F32","shape":[2],"data_offsets":[0,"8"]})", "data_offsets [0,\"8\"]"},
      {R"("q":{"dtype":"F32","shape":[3],"data_offsets":[0,8]})", "needs 12 bytes, data_offsets span 8"},
      {R"("q":{"dtype":"F32","shape":[1],"data_offsets":[4,8]})", "begins at byte 4, expected 0"},
      {R"("q":{"dtype":"F32","shape":[4],"data_offsets":[0,16]})", "ends at byte 16, but the file has 8"},
      {R"("q":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})", "8 bytes of data, but the tensors end at byte 4"},
      {R"("q":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"k":{"dtype":"F32","shape":[1],"data_offsets":[4,8]})",
       "begins at byte 4, expected 8"},
      {R"("q":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"k":{"dtype":"F16","shape":[1],"data_offsets":[6,8]})",
       "begins at byte 6, expected 4"}};
  for (const auto& [tensors, message] : kCases) {
    EXPECT_MESSAGE(safetensors_failure(safetensors_file("{" + std::string(tensors) + "}", 8)), message);
    // Names may hold anything; a message stays one line.
    std::string named = tensors;
    for (const auto& [name, other] :
         {std::pair(R"("q":)", R"("q\n\u0000\u001b":)"), std::pair(R"("k":)", R"("k\r\n":)")})
      if (const size_t at = named.find(name); at != std::string::npos) named.replace(at, 4, other);
    const std::string told = safetensors_failure(safetensors_file("{" + named + "}", 8));
    EXPECT_TRUE(std::none_of(told.begin(), told.end(), [](unsigned char c) { return c < ' '; })) << told;
    EXPECT_MESSAGE(told, told.find("tensor \"") == std::string::npos ? message : "\\n");
  }
}

class Files : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(folder_, ""); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  size_t count() const { return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {})); }
  static std::string content(const std::string& name) {
    std::ifstream file(name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  test::TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
};

TEST_F(Files, OutputAppearsOnlyByCommit) {
  {
    OutputFile file(path("o"), "file");
    file.write("half", 4);
    EXPECT_FALSE(std::filesystem::exists(path("o")));
  }
  EXPECT_EQ(count(), 0u);
  OutputFile file(path("o"), "file");
  file.write("whole", 5);
  file.commit();
  EXPECT_EQ(content(path("o")), "whole");
  EXPECT_EQ(count(), 1u);
  struct stat info {};
  ASSERT_EQ(::stat(path("o").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0600, 0600u);
}

TEST_F(Files, OutputFollowsLinksAndKeepsTheOldFileUntilThen) {
  std::ofstream(path("target")) << "old";
  std::filesystem::create_symlink(path("target"), path("link"));
  OutputFile file(path("link"), "file");
  file.write("new", 3);
  EXPECT_EQ(content(path("target")), "old");
  file.commit();
  EXPECT_EQ(content(path("target")), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(path("link")));
}

TEST_F(Files, UnwritableOutputsAreOneLine) {
  EXPECT_MESSAGE(failure_of([&] { OutputFile(path("no/such/folder"), "file"); }),
                 "file: cannot be written (No such file");
  EXPECT_MESSAGE(failure_of([&] { OutputFile(folder_, "file"); }), "file: cannot be written (Is a directory)");
  EXPECT_MESSAGE(failure_of([&] {
                   OutputFile file("/dev/full", "file");
                   file.write("x", 1);
                   file.commit();
                 }),
                 "file: cannot be written (No space left on device)");
  EXPECT_EQ(count(), 0u);
}

TEST_F(Files, ALinkToNothingIsNoOutput) {
  std::filesystem::create_symlink(path("nothing"), path("link"));
  std::filesystem::create_symlink("loop", path("loop"));
  EXPECT_MESSAGE(failure_of([&] { OutputFile(path("link"), "file"); }),
                 "file: cannot be written (a symbolic link to a file that does not exist)");
  EXPECT_MESSAGE(failure_of([&] { OutputFile(path("loop"), "file"); }), "file: cannot be written (Too many");
  EXPECT_EQ(count(), 2u);
  EXPECT_TRUE(std::filesystem::is_symlink(path("link")));
}

TEST_F(Files, EverySpellingOfAFileIsThatFile) {
  std::filesystem::create_directory(path("sub"));
  std::filesystem::create_directory_symlink(folder_, path("here"));
  std::ofstream(path("old")) << "x";
  std::ofstream(path("other")) << "x";
  std::filesystem::create_symlink("old", path("link"));
  std::filesystem::create_hard_link(path("old"), path("hard"));
  const std::string relative = std::filesystem::relative(folder_);
  for (const std::string& prefix : {folder_ + "/", folder_ + "//./", path("sub/../"), path("here/"), relative + "/"}) {
    EXPECT_TRUE(same_file(path("old"), prefix + "old")) << prefix;
    EXPECT_TRUE(same_file(prefix + "link", path("old"))) << prefix;
    EXPECT_TRUE(same_file(prefix + "hard", path("old"))) << prefix;
    EXPECT_TRUE(same_file(path("new"), prefix + "new")) << prefix << ", not there yet";
    EXPECT_TRUE(same_file(path("no/such/new"), prefix + "no/such/new")) << prefix << ", not there yet";
    EXPECT_FALSE(same_file(path("old"), prefix + "other")) << prefix;
    EXPECT_FALSE(same_file(path("old"), prefix + "new")) << prefix;
    EXPECT_FALSE(same_file(path("new"), prefix + "newer")) << prefix;
    EXPECT_FALSE(same_file(path("new"), prefix + "sub/new")) << prefix;
  }
}

TEST_F(Files, InputIsTheFileOrOneLine) {
  std::ofstream(path("i")) << "content";
  const InputFile file(path("i"), "file");
  ASSERT_EQ(file.bytes().size(), 7u);
  EXPECT_EQ(std::memcmp(file.bytes().data(), "content", 7), 0);
  std::ofstream(path("empty")).close();
  EXPECT_EQ(InputFile(path("empty"), "file").bytes().size(), 0u);
  EXPECT_MESSAGE(failure_of([&] { InputFile(path("absent"), "file"); }), "file: No such file");
  EXPECT_MESSAGE(failure_of([&] { InputFile(folder_, "file"); }), "is a directory");
}

// A pipe is read to the end that its header gives, whatever the pieces, and not to the end of an endless one.
TEST_F(Files, InputReadsAPipeAsFarAsItsHeaderSays) {
  const std::string npy = npy_header("F32", {3, 250000}) + std::string(3000000, '\x11');
  const std::string safetensors =
      safetensors_header({{"q", "F32", {750000}, nullptr, 3000000}}) + std::string(3000000, '\x11');
  const std::string lie = npy_header("F64", {int64_t{1} << 50}), later(16, ' ');
  int pipes = 0;  // each writer has its own, so that none meets the next reader
  const auto through_pipe = [&](const std::string& bytes, const char* more, SizeInHeader size_in_header) {
    const std::string name = path("pipe" + std::to_string(pipes++)), begin = name + ".begin";
    EXPECT_EQ(::mkfifo(name.c_str(), 0600), 0);
    std::ofstream(begin, std::ios::binary) << bytes;
    const std::string command =
        "{ head -c 5 " + begin + "; sleep 0.1; tail -c +6 " + begin + "; " + more + "; } > " + name + " 2>/dev/null &";
    EXPECT_EQ(std::system(command.c_str()), 0);
    const InputFile file(name, "file", size_in_header);
    return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  };
  EXPECT_TRUE(through_pipe(npy, "true", npy_size) == npy);
  EXPECT_TRUE(through_pipe(safetensors, "true", safetensors_size) == safetensors);
  EXPECT_TRUE(through_pipe(npy.substr(0, 70), "true", npy_size) == npy.substr(0, 70)) << "the reader names what lacks";
  EXPECT_MESSAGE(failure_of([&] { through_pipe(npy, "cat /dev/zero", npy_size); }), "goes on after the 3000128 bytes");
  EXPECT_MESSAGE(failure_of([&] { through_pipe(safetensors, "cat /dev/zero", safetensors_size); }),
                 "goes on after the");
  EXPECT_MESSAGE(failure_of([&] { through_pipe(later, "cat /dev/zero", npy_size); }), "not a .npy file");
  EXPECT_MESSAGE(failure_of([&] { through_pipe(later, "cat /dev/zero", safetensors_size); }), "expected at most");
  EXPECT_MESSAGE(failure_of([&] {
                   through_pipe("\x93NUMPY\x02" + std::string(1, 0) + "\xff\xff\xff\x7f", "cat /dev/zero", npy_size);
                 }),
                 ".npy header of 2147483647 bytes");
  EXPECT_MESSAGE(failure_of([&] { through_pipe(npy, "true", nullptr); }), "is a pipe");
  try {
    through_pipe(lie, "cat /dev/zero", npy_size);
    ADD_FAILURE() << "accepted";
  } catch (const Failure& failure) {
    EXPECT_EQ(failure.exit_code, kDeviceError);
    EXPECT_MESSAGE(failure.message, "file: out of memory: its header says 9007199254741120 bytes");
  }
}

TEST_F(Files, DevicesAreNoInput) {
  for (const SizeInHeader size_in_header :
       {SizeInHeader{nullptr}, SizeInHeader{npy_size}, SizeInHeader{safetensors_size}})
    for (const char* device : {"/dev/zero", "/dev/urandom", "/dev/null", "/dev/full"})
      EXPECT_MESSAGE(failure_of([&] { InputFile(device, "file", size_in_header); }),
                     "file: is a device, expected a file or a pipe");
}

}  // namespace
}  // namespace tessera::cli

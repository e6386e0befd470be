// What tests of the binary `tessera` share: a folder with operands to run it in, and files written and read.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "baselines/operands.hpp"
#include "cli/npy.hpp"
#include "cli/safetensors.hpp"
#include "device_info.hpp"
#include "support.hpp"
#include "temporary_folder.hpp"

namespace tessera::cli {
using Json = nlohmann::ordered_json;

inline std::string binary() { return test::file_of_build(TESSERA_CLI_PATH, "tessera"); }

inline std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

struct FileTensor {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::vector<double> values;
};

inline int32_t code_of(const std::string& dtype) { return tessera_dtype(dtype); }

inline std::string raw_bytes(const FileTensor& tensor) {
  std::string bytes(tensor.values.size() * element_bytes(tensor.dtype), '\0');
  for (size_t i = 0; i < tensor.values.size(); ++i) {
    if (tensor.dtype == "I32") {
      const auto value = static_cast<int32_t>(tensor.values[i]);
      std::memcpy(bytes.data() + 4 * i, &value, 4);
    } else {
      baselines::store_element(code_of(tensor.dtype), bytes.data(), static_cast<int64_t>(i), tensor.values[i]);
    }
  }
  return bytes;
}

inline std::string safetensors_bytes(const std::vector<FileTensor>& tensors) {
  std::vector<TensorView> views;
  std::string data;
  for (const FileTensor& tensor : tensors) {
    const std::string bytes = raw_bytes(tensor);
    views.push_back({tensor.name, tensor.dtype, tensor.shape, nullptr, bytes.size()});
    data += bytes;
  }
  return safetensors_header(views) + data;
}

inline FileTensor random_tensor(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape,
                                unsigned seed) {
  FileTensor tensor{name, dtype, shape, {}};
  const bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
  int64_t count = empty ? 0 : 1;
  for (const int64_t extent : shape) count = empty ? 0 : count * extent;
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal;
  for (int64_t i = 0; i < count; ++i) tensor.values.push_back(normal(engine));
  return tensor;
}
inline FileTensor int_tensor(const std::string& name, const std::vector<int64_t>& shape,
                             const std::vector<double>& values) {
  return {name, "I32", shape, values};
}

inline std::map<std::string, FileTensor> read_output(const std::string& path) {
  const std::string file = content(path);
  std::map<std::string, FileTensor> tensors;
  for (const TensorView& view : read_safetensors(std::as_bytes(std::span(file.data(), file.size())), path)) {
    FileTensor tensor{view.name, view.dtype, view.shape, {}};
    for (size_t i = 0; i < view.bytes / element_bytes(view.dtype); ++i)
      tensor.values.push_back(baselines::load_element(code_of(view.dtype), view.data, static_cast<int64_t>(i)));
    tensors[view.name] = tensor;
  }
  return tensors;
}

class CliFixture : public ::testing::Test {
 protected:
  struct Result {
    int exit_code;
    std::string out, err;
  };

  void SetUp() override {
    ASSERT_NE(folder_, "");
    for (const char* name : {"q", "k", "v"}) {
      const FileTensor tensor = random_tensor(name, "F32", {1, 20, 2, 8}, static_cast<unsigned>(name[0]));
      write_file(path(std::string(name) + ".npy"), npy_header("F32", tensor.shape) + raw_bytes(tensor));
    }
  }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  // Runs in the test's own folder.
  Result tessera(const std::string& arguments) const {
    const std::string command = "cd " + folder_ + " && exec " + binary() + " " + arguments + " >.out 2>.err </dev/null";
    const int status = std::system(command.c_str());
    EXPECT_TRUE(WIFEXITED(status)) << arguments;
    Result result{WEXITSTATUS(status), content(path(".out")), content(path(".err"))};
    std::filesystem::remove(path(".out"));
    std::filesystem::remove(path(".err"));
    return result;
  }

  // Exit code 2, one line on stderr that holds `part`, and no file more than before.
  void expect_bad_input(const std::string& arguments, const std::string& part) const {
    const auto files = [&] { return std::distance(std::filesystem::directory_iterator(folder_), {}); };
    const auto before = files();
    const Result result = tessera(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments << "\n" << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << arguments << "\n" << result.err;
    EXPECT_NE(result.err.find(part), std::string::npos) << arguments << "\n" << result.err;
    EXPECT_EQ(files(), before) << arguments;
  }

  void write_input(const std::vector<FileTensor>& tensors) const {
    write_file(path("in.safetensors"), safetensors_bytes(tensors));
  }
  std::vector<FileTensor> operands(const std::string& dtype, const std::vector<int64_t>& q_shape,
                                   const std::vector<int64_t>& k_shape) const {
    return {random_tensor("q", dtype, q_shape, 1), random_tensor("k", dtype, k_shape, 2),
            random_tensor("v", dtype, k_shape, 3)};
  }

  test::TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
};

inline const std::string kArrays = "--q q.npy --k k.npy --v v.npy ";

}  // namespace tessera::cli

// Public bug situations about loading the shared library: NVIDIA/cutlass#1027, apache/tvm#15029,
// Dao-AILab/flash-attention#2116, #853 (driver symbols missing at load, symbols of two copies merged).
#include <dlfcn.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "support.hpp"

namespace tessera::test {
namespace {

std::string shared_library() { return file_of_build(TESSERA_SHARED_LIBRARY, "libtessera.so"); }

// One copy of the shared library with every symbol bound at load.
class Library {
 public:
  explicit Library(const std::string& path) : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) ADD_FAILURE() << dlerror();
  }
  ~Library() {
    if (handle_ != nullptr) dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  bool loaded() const { return handle_ != nullptr; }

  template <class Function>
  Function* find(const char* name) const {
    auto* function = reinterpret_cast<Function*>(dlsym(handle_, name));
    EXPECT_NE(function, nullptr) << name;
    return function;
  }

  // Runs through this copy alone; returns the status code.
  int run(Case& c, tessera_status* status) const {
    const tessera_tensors tensors = c.bind();
    tessera_plan* plan = nullptr;
    const int planned = find<decltype(tessera_plan_create)>("tessera_plan_create")(&c.problem, &plan, status);
    if (planned != TESSERA_OK) return planned;
    const Storage workspace(find<decltype(tessera_plan_workspace)>("tessera_plan_workspace")(plan));
    const int code = find<decltype(tessera_plan_run)>("tessera_plan_run")(plan, &tensors, workspace.data(),
                                                                          workspace.bytes(), nullptr, status);
    find<decltype(tessera_plan_destroy)>("tessera_plan_destroy")(plan);
    return code;
  }

 private:
  void* handle_;
};

Case loaded_case() {
  Case c = Case::dense(TESSERA_BF16, {.batch = 2, .seqlen_q = 33, .seqlen_k = 70, .heads_q = 4, .heads_kv = 2});
  c.randomize(141);
  c.set_causal();
  return c;
}

TEST(BugSymbols, LoadsWithEverySymbolBoundAndRunsOnTheCpu) {
  const Library library(shared_library());
  ASSERT_TRUE(library.loaded());
  Case c = loaded_case();
  tessera_status status{};
  ASSERT_EQ(library.run(c, &status), TESSERA_OK) << status.message;
  expect_close(c, judge(c));
}

TEST(BugSymbols, ACudaProblemWithoutADriverIsRefused) {
  if (void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); driver != nullptr) {
    dlclose(driver);
    GTEST_SKIP() << "this machine has an NVIDIA driver";
  }
  const Library library(shared_library());
  ASSERT_TRUE(library.loaded());
  Case c = loaded_case();
  c.problem.device = 0;
  tessera_status status{};
  EXPECT_EQ(library.run(c, &status), TESSERA_NO_DEVICE);
  EXPECT_STRNE(status.message, "");
  EXPECT_TRUE(c.o.untouched(0, 0, 0, 0));
  c.problem.device = -1;
  EXPECT_EQ(library.run(c, &status), TESSERA_OK) << status.message;
}

TEST(BugSymbols, TwoCopiesLiveInOneProcess) {
  const std::filesystem::path copy =
      std::filesystem::temp_directory_path() / ("tessera_copy_" + std::to_string(getpid()) + ".so");
  std::filesystem::copy_file(shared_library(), copy, std::filesystem::copy_options::overwrite_existing);
  {
    const Library first(shared_library()), second(copy.string());
    std::filesystem::remove(copy);
    ASSERT_TRUE(first.loaded() && second.loaded());
    EXPECT_NE(first.find<decltype(tessera_plan_run)>("tessera_plan_run"),
              second.find<decltype(tessera_plan_run)>("tessera_plan_run"));
    Case one = loaded_case(), two = loaded_case();
    tessera_status status{};
    ASSERT_EQ(first.run(one, &status), TESSERA_OK) << status.message;
    ASSERT_EQ(second.run(two, &status), TESSERA_OK) << status.message;
    EXPECT_TRUE(one.o.same_bits(two.o));
    EXPECT_TRUE(one.lse.same_bits(two.lse));
  }
}

TEST(BugSymbols, InternalSymbolsAreNotExported) {
  void* handle = dlopen(shared_library().c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(handle, nullptr) << dlerror();
  EXPECT_NE(dlsym(handle, "tessera_version"), nullptr);
  // The mangled names of tessera::core::cpu_kernels() and tessera::core::cpu_info().
  for (const char* name : {"_ZN7tessera4core11cpu_kernelsEv", "_ZN7tessera4core8cpu_infoEv"})
    EXPECT_EQ(dlsym(handle, name), nullptr) << name;
  dlclose(handle);
}

}  // namespace
}  // namespace tessera::test

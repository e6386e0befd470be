#include "blas.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <string>

namespace tessera::baselines {
namespace {

// Sets an environment variable for the life of the object, then puts back what was there.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    const char* before = std::getenv(name);
    was_set_ = before != nullptr;
    if (was_set_) before_ = before;
    if (value != nullptr) setenv(name, value, 1);
  }
  ~ScopedVariable() {
    if (was_set_) {
      setenv(name_, before_.c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
  bool was_set_ = false;
  std::string before_;
};

// OpenBLAS' name for the core whose kernels stay within `isa`; null leaves its own choice. It has none below SSE3.
const char* openblas_core(core::Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case core::Isa::portable:
      return "Prescott";
    case core::Isa::avx2:
      return "Haswell";
    default:
      return "SkylakeX";  // on AMD processors with AVX-512 its own choice may be the AVX2 kernels
  }
#else
  (void)isa;
  return nullptr;
#endif
}

constexpr const char* kFiles[] = {"libopenblas.so.0", "libblas.so.3"};

// `isolated`: a private copy, since the file may be loaded already with another core.
void* open_library(const char* file, const char* core, bool isolated) {
  const ScopedVariable core_type("OPENBLAS_CORETYPE", core);
  const ScopedVariable threads("OPENBLAS_NUM_THREADS", "1");
  return isolated ? dlmopen(LM_ID_NEWLM, file, RTLD_NOW | RTLD_LOCAL) : dlopen(file, RTLD_NOW | RTLD_LOCAL);
}

// OpenBLAS's sequential build keeps its packing buffers where threads would share them: with sixteen threads on it,
// outputs were off by 0.3 to 2.
bool is_sequential(void* library) {
  const auto parallel = reinterpret_cast<int (*)()>(dlsym(library, "openblas_get_parallel"));
  return parallel != nullptr && parallel() == 0;
}

Blas find_blas(core::Isa isa, bool isolated) {
  Blas blas;
  const char* core = openblas_core(isa);
  bool sequential = false;
  for (const char* file : kFiles) {
    void* library = open_library(file, core, isolated);
    if (library == nullptr) continue;
    blas.sgemm = reinterpret_cast<Blas::Sgemm>(dlsym(library, "sgemm_"));
    blas.dgemm = reinterpret_cast<Blas::Dgemm>(dlsym(library, "dgemm_"));
    if (blas.sgemm == nullptr || blas.dgemm == nullptr) {
      dlclose(library);
      continue;
    }
    if (is_sequential(library)) {
      sequential = true;
      dlclose(library);
      continue;
    }
    const auto set_threads = reinterpret_cast<void (*)(int)>(dlsym(library, "openblas_set_num_threads"));
    if (set_threads != nullptr) set_threads(1);
    const auto core_name = reinterpret_cast<char* (*)()>(dlsym(library, "openblas_get_corename"));
    const char* found = core_name != nullptr ? core_name() : "";
    std::snprintf(blas.description, sizeof blas.description, "%s%s%s", file, *found != '\0' ? " " : "", found);
    return blas;
  }
  blas.refusal =
      sequential ? "libopenblas.so.0 is a sequential build, unsafe on threads; install libopenblas0-pthread"
      : isolated ? "libopenblas.so.0 (or libblas.so.3) is loaded for another instruction set and cannot be loaded twice"
                 : "needs libopenblas.so.0 or libblas.so.3 at run time, and neither can be loaded";
  return blas;
}

}  // namespace

const Blas& load_blas(core::Isa isa) {
  // AMX has no float32 products, so its cap is that of AVX-512.
  if (isa == core::Isa::amx) isa = core::Isa::avx512;
  static std::mutex mutex;
  static Blas loaded[8];
  static bool tried[std::size(loaded)] = {}, any = false;
  const auto index = static_cast<size_t>(isa) < std::size(loaded) ? static_cast<size_t>(isa) : 0;
  const std::lock_guard lock(mutex);
  if (!tried[index]) {
    loaded[index] = find_blas(isa, any);
    tried[index] = true;
    any = any || loaded[index].refusal == nullptr;
  }
  return loaded[index];
}

}  // namespace tessera::baselines

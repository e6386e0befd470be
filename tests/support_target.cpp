// What depends on where situations run, and where the files of the tests lie.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>

#include "support.hpp"

namespace tessera::test {

const Target* gpu_target = nullptr;

std::vector<int32_t> offered(const std::vector<int32_t>& dtypes) {
  std::vector<int32_t> taken;
  std::copy_if(dtypes.begin(), dtypes.end(), std::back_inserter(taken),
               [](int32_t dtype) { return offered(dtype) == dtype; });
  return taken;
}
int32_t offered(int32_t dtype) {
  return on_gpu() && dtype != TESSERA_F16 && dtype != TESSERA_BF16 ? TESSERA_BF16 : dtype;
}
bool offered_dim(int32_t head_dim) { return !on_gpu() || (head_dim % 8 == 0 && head_dim <= 256); }
double lse_slack(double cpu) { return on_gpu() ? std::max(cpu, 1e-5) : cpu; }

std::string file_of_build(const std::string& built, const std::string& name) {
  if (std::filesystem::exists(built)) return built;
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
}
std::string data_file(const std::string& name) {
  if (const char* folder = std::getenv("TESSERA_TEST_DATA")) return std::string(folder) + "/" + name;
  return file_of_build(TESSERA_TEST_DATA "/" + name, "data/" + name);
}

int plan_run(const tessera_plan* plan, const tessera_tensors& tensors, void* workspace, size_t bytes,
             tessera_status* status, const tessera_exec* exec) {
  return on_gpu() ? gpu_target->run(plan, tensors, workspace, bytes, status)
                  : tessera_plan_run(plan, &tensors, workspace, bytes, exec, status);
}
int merge(const tessera_merge_args& args, tessera_status* status, const tessera_exec* exec) {
  return on_gpu() ? gpu_target->merge(args, false, status) : tessera_merge(&args, exec, status);
}
int merge_backward(const tessera_merge_args& args, tessera_status* status) {
  return on_gpu() ? gpu_target->merge(args, true, status) : tessera_merge_backward(&args, nullptr, status);
}
int append(const tessera_problem& problem, const tessera_tensors& tensors, const tessera_append_args& args,
           tessera_status* status, const tessera_exec* exec) {
  return on_gpu() ? gpu_target->append(problem, tensors, args, status)
                  : tessera_append(&problem, &tensors, &args, exec, status);
}
int quantize(const tessera_quantize_args& args, tessera_status* status, const tessera_exec* exec) {
  return on_gpu() ? gpu_target->quantize(args, status) : tessera_quantize(&args, exec, status);
}

}  // namespace tessera::test

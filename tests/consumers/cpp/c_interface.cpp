// A C++17 program over the C interface: one query over three keys whose weights are known in closed form.
#include <tessera/tessera.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

int main() {
  // Scores ln 1, ln 2, ln 3 (scale 1), values 6, 0, 12: o = (1 * 6 + 2 * 0 + 3 * 12) / 6 = 7, lse = ln 6.
  const std::vector<float> q = {1.0f}, k = {0.0f, std::log(2.0f), std::log(3.0f)}, v = {6.0f, 0.0f, 12.0f};
  float o = 0.0f, lse = 0.0f;
  tessera_status status;
  tessera_problem problem;
  tessera_plan* plan = nullptr;
  tessera_problem_init(&problem, sizeof problem);
  problem.batch = problem.seqlen_q = 1;
  problem.heads_q = problem.heads_kv = problem.head_dim_qk = problem.head_dim_v = 1;
  problem.seqlen_k = 3;
  problem.scale = 1.0;
  problem.flags = TESSERA_FLAG_LSE;
  problem.q.align = problem.k.align = problem.v.align = problem.o.align = sizeof(float);
  if (tessera_plan_create(&problem, &plan, &status) != TESSERA_OK) {
    std::fprintf(stderr, "%s\n", status.message);
    return 1;
  }
  std::vector<std::byte> room(tessera_plan_workspace(plan) + 255);
  const auto misaligned = reinterpret_cast<std::uintptr_t>(room.data()) % 256;
  std::byte* workspace = room.data() + (misaligned == 0 ? 0 : 256 - misaligned);
  tessera_tensors tensors = {};
  tensors.size = sizeof tensors;
  tensors.q = q.data();
  tensors.k = k.data();
  tensors.v = v.data();
  tensors.o = &o;
  tensors.lse = &lse;
  const int code = tessera_plan_run(plan, &tensors, workspace, tessera_plan_workspace(plan), nullptr, &status);
  if (code != TESSERA_OK) std::fprintf(stderr, "%s\n", status.message);
  std::printf("o %.6f (7), lse %.6f (%.6f)\n", o, lse, std::log(6.0));
  tessera_plan_destroy(plan);
  return code == TESSERA_OK && std::abs(o - 7.0f) < 1e-5f && std::abs(lse - std::log(6.0f)) < 1e-5f ? 0 : 1;
}

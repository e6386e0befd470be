// A C++20 program over tessera.hpp: one query over three keys whose weights are known in closed form, then a refusal.
#include <cmath>
#include <cstdio>
#include <string>
#include <tessera/tessera.hpp>

int main() {
  // Scores ln 1, ln 2, ln 3 (scale 1), values 6, 0, 12: o = (1 * 6 + 2 * 0 + 3 * 12) / 6 = 7, lse = ln 6.
  const float q[] = {1.0f}, k[] = {0.0f, std::log(2.0f), std::log(3.0f)}, v[] = {6.0f, 0.0f, 12.0f};
  float o = 0.0f, lse = 0.0f;
  auto problem = tessera::Problem::parse("fwd f32 sq1 sk3 d1 scale=1 cpu");
  if (!problem) return std::fprintf(stderr, "%s\n", problem.status().message()), 1;
  problem->set_flags(TESSERA_FLAG_LSE);
  problem->q.align = problem->k.align = problem->v.align = problem->o.align = sizeof(float);
  const auto plan = tessera::plan(problem);
  if (!plan) return std::fprintf(stderr, "%s\n", plan.status().message()), 1;
  const auto workspace = tessera::Workspace::allocate(plan->workspace_bytes());
  if (!workspace) return std::fprintf(stderr, "%s\n", workspace.status().message()), 1;
  const tessera::Status done = plan->run({.q = q, .k = k, .v = v, .o = &o, .lse = &lse}, *workspace);
  if (!done.ok()) return std::fprintf(stderr, "%s\n", done.message()), 1;
  std::printf("%s: o %.6f (7), lse %.6f (%.6f)\n", plan->kernel(), o, lse, std::log(6.0));

  const auto unknown = tessera::Problem::parse("fwd f32 sq1 d1 kernel=none.such cpu");
  const auto refused = tessera::plan(unknown);
  std::string reasons;
  const int32_t code = tessera::supports(*unknown, &reasons);
  std::printf("refused: %s\n", refused.status().message());
  const bool refusal_told = !refused && refused.status().code() == TESSERA_UNSUPPORTED && code == TESSERA_UNSUPPORTED;
  const bool right = std::abs(o - 7.0f) < 1e-5f && std::abs(lse - std::log(6.0f)) < 1e-5f;
  return right && refusal_told && !reasons.empty() ? 0 : 1;
}

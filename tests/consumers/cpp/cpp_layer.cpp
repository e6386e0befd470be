// A C++20 program over tessera.hpp: one query over three keys whose weights are known in closed form, a refusal, and
// the same keys appended to a cache, four numbers as e4m3.
#include <cmath>
#include <cstdio>
#include <string>
#include <tessera/tessera.hpp>

// A cache of four slots that holds one key; two more are appended, alone and in the call that attends.
static bool append_and_attend() {
  const float q[] = {1.0f}, k_new[] = {std::log(2.0f), std::log(3.0f)}, v_new[] = {0.0f, 12.0f};
  float k[4] = {0.0f, -1.0f, -1.0f, -1.0f}, v[4] = {6.0f, -1.0f, -1.0f, -1.0f}, o = 0.0f;
  const int32_t before = 1;
  auto problem = tessera::Problem::parse("fwd f32 sq1 sk4 d1 scale=1 cpu");
  if (!problem) return false;
  problem->set_flags(TESSERA_FLAG_SEQUSED_K);
  problem->q.align = problem->k.align = problem->v.align = problem->o.align = sizeof(float);
  tessera::AppendArgs rows;
  rows.seqlen_new = 2, rows.k_new_data = k_new, rows.v_new_data = v_new, rows.k_cache = k, rows.v_cache = v;
  rows.k_new.align = rows.v_new.align = sizeof(float);
  tessera::Tensors tensors{.q = q, .k = k, .v = v, .o = &o, .seqused_k = &before};
  const tessera::Status alone = tessera::append(*problem, tensors, rows);
  const bool written = v[0] == 6.0f && v[1] == 0.0f && v[2] == 12.0f && v[3] == -1.0f && k[2] == k_new[1];
  const auto plan = tessera::plan(problem);
  if (!plan) return false;
  const auto workspace = tessera::Workspace::allocate(plan->workspace_bytes());
  if (!workspace) return false;
  const tessera_append_args raw = rows.raw();
  tensors.append = &raw;
  const tessera::Status attended = plan->run(tensors, *workspace);
  std::printf("appended: %s%so %.6f (7)\n", alone.message(), attended.message(), o);
  return alone.ok() && written && attended.ok() && std::abs(o - 7.0f) < 1e-5f;
}

// 448, -224, 1 and 0 under the scale that makes the largest 448.
static bool quantize_four() {
  const float x[] = {448.0f, -224.0f, 1.0f, 0.0f};
  unsigned char y[4] = {};
  float scale = 0.0f;
  tessera::QuantizeArgs args;
  args.batch = args.seqlen = 1, args.heads = 1, args.head_dim = 4;
  args.x.dtype = TESSERA_F32, args.x.align = sizeof(float), args.y.align = 1;
  args.x_data = x, args.y_data = y, args.scale_data = &scale;
  const tessera::Status done = tessera::quantize(args);
  std::printf("quantised: %s%02x %02x %02x %02x, scale %g\n", done.message(), y[0], y[1], y[2], y[3],
              static_cast<double>(scale));
  return done.ok() && y[0] == 0x7e && y[1] == 0xf6 && y[2] == 0x38 && y[3] == 0 && scale == 1.0f;
}

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
  return right && refusal_told && !reasons.empty() && append_and_attend() && quantize_four() ? 0 : 1;
}

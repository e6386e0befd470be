/* A program in C11 against an installed tessera: two queries, three keys, causal, checked by plain loops in double. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tessera/tessera.h>

enum { kQueries = 2, kKeys = 3, kDim = 4 };

static double expected(const float* q, const float* k, const float* v, int row, int column) {
  double weight_sum = 0, value = 0;
  for (int j = 0; j <= row + kKeys - kQueries; ++j) {
    double dot = 0;
    for (int d = 0; d < kDim; ++d) dot += (double)q[row * kDim + d] * k[j * kDim + d];
    double weight = exp(dot / sqrt((double)kDim));
    weight_sum += weight;
    value += weight * v[j * kDim + column];
  }
  return value / weight_sum;
}

int main(void) {
  const float q[kQueries * kDim] = {1, 0, 2, -1, 0.5f, 1, -1, 0};
  const float k[kKeys * kDim] = {1, 1, 0, 0, 0, 2, 1, -1, 1, 0, -1, 2};
  const float v[kKeys * kDim] = {1, 2, 3, 4, -1, 0, 1, 2, 5, 6, 7, 8};
  float o[kQueries * kDim];
  tessera_status status;
  tessera_problem problem;
  tessera_plan* plan = NULL;
  if (tessera_problem_parse("fwd f32 sq2 sk3 d4 causal cpu", &problem, &status) != TESSERA_OK ||
      tessera_plan_create(&problem, &plan, &status) != TESSERA_OK) {
    fprintf(stderr, "%s\n", status.message);
    return 1;
  }
  static _Alignas(256) char workspace[1 << 20];
  tessera_tensors tensors;
  memset(&tensors, 0, sizeof tensors);
  tensors.size = sizeof tensors;
  tensors.q = q;
  tensors.k = k;
  tensors.v = v;
  tensors.o = o;
  if (tessera_plan_run(plan, &tensors, workspace, sizeof workspace, NULL, &status) != TESSERA_OK) {
    fprintf(stderr, "%s\n", status.message);
    return 1;
  }
  double worst = 0;
  for (int i = 0; i < kQueries; ++i) {
    for (int c = 0; c < kDim; ++c) worst = fmax(worst, fabs(o[i * kDim + c] - expected(q, k, v, i, c)));
  }
  printf("kernel %s, max error %.2e\n", tessera_plan_kernel(plan), worst);
  tessera_plan_destroy(plan);
  return worst < 1e-5 ? 0 : 1;
}

// The step of docs/serving.md inside of a program: four sequences over a paged cache, one new token each. What the page
// calls by a name stands here; its lines are included as they are, and every row must be what one appended key gives.
#include <cstdint>
#include <cstdio>
#include <tessera/tessera.hpp>
#include <vector>

int main() {
  std::vector<float> queries(4 * 32 * 128, 0.5f), o_rows(queries.size(), -1.0f), turned(queries.size());
  std::vector<float> keys(4 * 8 * 128, 0.25f), values(keys.size(), 3.0f);
  std::vector<float> k_pages(std::size_t{9000} * 16 * 8 * 128), v_pages(k_pages.size());
  std::vector<float> cosine_rows(4096 * 64, 1.0f), sine_rows(4096 * 64, 0.0f);
  std::vector<int32_t> used(4, 0), pages(4 * 256);
  for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<int32_t>(i);
  const float *q = queries.data(), *k_new = keys.data(), *v_new = values.data(), *cosines = cosine_rows.data(),
              *sines = sine_rows.data();
  float *o = o_rows.data(), *k = k_pages.data(), *v = v_pages.data(), *q_rotated = turned.data();
  const int32_t *lengths = used.data(), *table = pages.data();
#include TESSERA_SNIPPET
  if (!done.ok()) return std::puts(done.message()), 1;
  for (float x : o_rows)
    if (x != 3.0f) return std::printf("o = %g, expected 3\n", x), 1;
}

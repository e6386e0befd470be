// Appending and attending in one call equals two calls, bit for bit, on every row of the CPU and of a GPU.
#include "append_case.hpp"

namespace tessera::test {
namespace {

TESSERA_SITUATION(AppendAttention, OneCallEqualsTwoOnEveryRow) {
  for (const char* layout : {"dense", "batch_idx", "leftpad", "paged"})
    for (const int32_t dtype : offered(kAllTypes))
      for (const bool rotary : {false, true}) {
        SCOPED_TRACE(::testing::Message() << layout << ' ' << name_of(dtype) << " rotary " << rotary);
        AppendCase one = serving_case(layout, dtype);
        if (rotary) one.make_rotary(16, 99, 0, true);
        one.c.problem.num_splits = on_gpu() && rotary ? 3 : 0;
        AppendCase two = one;
        two.c.k = one.c.k.clone(), two.c.v = one.c.v.clone();
        if (rotary) two.q_rotated = one.q_rotated.clone();
        Case apart = after_append(two);
        int ran = 0;
        on_every_row(
            apart,
            [&] {
              std::snprintf(one.c.problem.kernel, sizeof one.c.problem.kernel, "%s", apart.kernel.c_str());
              tessera_status status{};
              ASSERT_EQ(one.attend(&status), TESSERA_OK) << status.message;
              EXPECT_TRUE(one.c.o.same_bits(apart.o));
              EXPECT_TRUE(one.c.lse.same_bits(apart.lse));
              EXPECT_TRUE(one.c.k.same_bits(apart.k) && one.c.v.same_bits(apart.v));
              ++ran;
            },
            Rows::library);
        EXPECT_GT(ran, 0);
      }
}

}  // namespace
}  // namespace tessera::test

// Public bug situations about strides, layouts, alignment and aliasing.
#include <sys/mman.h>

#include <cmath>
#include <cstring>

#include "sanitized.hpp"
#include "support.hpp"

namespace tessera::test {
namespace {

// On every library row `c` gives the bits that `plain` does.
void expect_same_o(Case& plain, Case& c) {
  on_every_row(
      plain,
      [&] {
        run_on(c, plain.kernel);
        EXPECT_TRUE(c.o.same_bits(plain.o));
      },
      Rows::library);
}

// pytorch/pytorch#187506: a last stride other than 1 was ignored. Here it is refused by name.
TESSERA_SITUATION(BugStrides, LastStrideMustBeOne) {
  const Dims dims = {2, 33, 3, 40};
  Placement transposed;  // stored [batch, heads, dim, seqlen]
  transposed.stride = {3 * 40 * 33, 1, 40 * 33, 33};
  for (const int32_t dtype : offered({TESSERA_F32, TESSERA_BF16})) {
    const Case plain = [&] {
      Case c = Case::dense(dtype, {.batch = 2, .seqlen_q = 33, .seqlen_k = 33, .heads_q = 3, .head_dim_qk = 40});
      c.randomize(71);
      return c;
    }();
    const std::pair<Tensor Case::*, const char*> operands[] = {{&Case::q, "q"}, {&Case::k, "k"}, {&Case::v, "v"}};
    for (const auto& [operand, name] : operands) {
      Case c = plain.twin();
      c.*operand = Tensor(dtype, dims, transposed);
      (c.*operand).copy_values(plain.*operand);
      expect_refused(c, TESSERA_INVALID_ARGUMENT, name);
      tessera_status status{};
      run(c, {"", false}, &status);
      EXPECT_NE(std::string(status.message).find("stride"), std::string::npos) << status.message;
      EXPECT_NE(std::string(status.message).find("33"), std::string::npos) << status.message;
    }
  }
}

// ROCm/pytorch#3230, flagos-ai/FlagGems#5896: v read as if it had k's layout.
TESSERA_SITUATION(BugStrides, EveryMixOfLayoutsGivesTheSameBits) {
  const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (const int64_t batch : {1, 2})
    for (const int32_t dtype : offered({TESSERA_BF16, TESSERA_F32})) {
      const Shape shape{.batch = batch, .seqlen_q = 62, .seqlen_k = 62, .heads_q = 16, .head_dim_qk = 128};
      Case plain = Case::dense(dtype, shape);
      plain.randomize(72);
      on_every_row(
          plain,
          [&] {
            for (int mix = 0; mix < 12; mix += tests::kSanitized ? 5 : 1) {
              SCOPED_TRACE(mix);
              Case c = plain.twin();
              const auto place = [&](Tensor& t, const Tensor& from, int which) {
                const int* order = orders[which % 6];
                t = Tensor(dtype, from.dims(), stored_as(from.dims(), order[0], order[1], order[2]));
                t.copy_values(from);
              };
              place(c.q, plain.q, mix), place(c.k, plain.k, mix / 2), place(c.v, plain.v, mix + 3);
              place(c.o, plain.o, mix * 5 + 1);
              run_on(c, plain.kernel);
              EXPECT_TRUE(c.o.same_bits(plain.o));
              EXPECT_TRUE(c.lse.same_bits(plain.lse));
            }
          },
          Rows::library);
    }
}

// Slices of one fused buffer, as projections leave them (Dao-AILab/flash-attention#355, #2541 saw one operand's strides
// used for another).
TESSERA_SITUATION(BugStrides, SlicesOfAFusedBuffer) {
  constexpr int64_t kLength = 130, kHeads = 4, kDim = 256;
  for (const int32_t dtype : offered({TESSERA_F16, TESSERA_F32})) {
    Case plain = Case::dense(dtype, {.seqlen_q = kLength, .seqlen_k = kLength, .heads_q = kHeads, .head_dim_qk = kDim});
    plain.randomize(73);
    plain.set_causal();
    Case c = plain.twin();
    const Dims dims = plain.q.dims();
    for (int64_t part = 0; part < 3; ++part) {
      Placement slice;
      slice.stride = {kLength * 3 * kHeads * kDim, 3 * kHeads * kDim, kDim, 1};
      slice.offset = part * kHeads * kDim;
      Tensor& t = part == 0 ? c.q : part == 1 ? c.k : c.v;
      const Tensor from = t;
      t = Tensor(dtype, dims, slice);
      t.copy_values(from);
    }
    Placement wide;
    wide.stride = {kLength * 2 * kHeads * kDim, 2 * kHeads * kDim, kDim, 1};
    wide.offset = kHeads * kDim;
    c.o = Tensor(dtype, dims, wide);  // expect_written sees a store to the other half
    on_every_row(
        c,
        [&] {
          run_on(plain, c.kernel);
          EXPECT_TRUE(c.o.same_bits(plain.o));
        },
        Rows::library);
  }
}

// pytorch/pytorch#170813; flashinfer-ai/flashinfer#4543, #4466; Dao-AILab/flash-attention#470: a base pointer off by
// one element killed the context.
TESSERA_SITUATION(BugAlignment, BasePointerOffByOneElement) {
  for (const int32_t dtype : offered(kAllTypes)) {
    SCOPED_TRACE(name_of(dtype));
    Case plain = Case::dense(dtype, {.seqlen_q = 65, .seqlen_k = 65, .heads_q = 2});
    plain.randomize(74);
    const std::pair<Tensor Case::*, const char*> operands[] = {
        {&Case::q, "q"}, {&Case::k, "k"}, {&Case::v, "v"}, {&Case::o, "o"}};
    for (const auto& [operand, name] : operands) {
      SCOPED_TRACE(name);
      Case c = plain.twin();
      c.*operand = Tensor(dtype, (plain.*operand).dims(), {.offset = 1});
      if (operand != &Case::o) (c.*operand).copy_values(plain.*operand);
      // The descriptor states the true alignment: the CPU's rows work with any, the GPU's refuse by name.
      if (on_gpu()) {
        expect_refused(c, TESSERA_UNSUPPORTED, std::string(name) + ".align");
      } else {
        expect_same_o(plain, c);
      }
      tessera_tensors tensors = c.bind();
      tessera_desc& desc = operand == &Case::q   ? c.problem.q
                           : operand == &Case::k ? c.problem.k
                           : operand == &Case::v ? c.problem.v
                                                 : c.problem.o;
      desc.align = 0;  // claims 16 bytes
      c.o.poison();
      tessera_status status{};
      EXPECT_EQ(run_raw(c.problem, tensors, &status), TESSERA_INVALID_ARGUMENT);
      EXPECT_NE(std::string(status.message).find(name), std::string::npos) << status.message;
      EXPECT_NE(std::string(status.message).find("16"), std::string::npos) << status.message;
      EXPECT_TRUE(c.o.untouched(0, 0, 0, 0));
    }
    run_on(plain);
  }
}

TESSERA_SITUATION(BugAlignment, OddRowStrideAndOddLsePointer) {
  for (const int32_t dtype : offered(kAllTypes)) {
    SCOPED_TRACE(name_of(dtype));
    Case plain = Case::dense(dtype, {.seqlen_q = 65, .seqlen_k = 65});
    plain.randomize(75);
    Case c = plain.twin();
    const Dims dims = plain.q.dims();
    const Placement odd{.stride = {65 * 65, 65, 64, 1}, .offset = 3};
    const auto move = [&](Tensor& t, bool copy) {
      const Tensor from = t;
      t = Tensor(dtype, dims, odd);
      if (copy) t.copy_values(from);
    };
    if (on_gpu()) {
      Case odd_rows = plain.twin();
      move(odd_rows.k, true);
      expect_refused(odd_rows, TESSERA_UNSUPPORTED, "k.");
    } else {
      move(c.q, true), move(c.k, true), move(c.v, true), move(c.o, false);
    }
    c.lse = Tensor(plain.lse.dtype(), plain.lse.dims(), {.offset = 1});
    on_every_row(
        plain,
        [&] {
          run_on(c, plain.kernel);
          EXPECT_TRUE(c.o.same_bits(plain.o));
          EXPECT_TRUE(c.lse.same_bits(plain.lse));
        },
        Rows::library);
  }
}

// Dao-AILab/flash-attention#566, #818, #2388; facebookresearch/xformers#788; NVIDIA/cutlass#1027: strides past 32 bits.
TEST(BugStrides, BatchStrideOf2To33Elements) {
  constexpr int64_t kStride = int64_t{1} << 33;
  constexpr size_t kBytes =
      (static_cast<size_t>(kStride) * 2) + (size_t{1} << 20);  // 2 bytes an element, two batch rows
  Case plain = Case::dense(TESSERA_F16, {.batch = 2, .seqlen_q = 5, .seqlen_k = 9, .heads_q = 2});
  plain.randomize(76);
  std::byte* maps[4];
  for (std::byte*& map : maps) {
    void* address = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) GTEST_SKIP() << "no 64 GiB of address space";
    map = static_cast<std::byte*>(address);
  }
  const auto scatter = [&](std::byte* map, const Tensor& from) {
    const int64_t row = from.dims()[1] * from.dims()[2] * from.dims()[3] * 2;
    for (int64_t b = 0; b < 2; ++b)
      std::memcpy(map + b * kStride * 2, static_cast<std::byte*>(from.data()) + b * row, static_cast<size_t>(row));
  };
  scatter(maps[0], plain.q), scatter(maps[1], plain.k), scatter(maps[2], plain.v);
  on_every_row(
      plain,
      [&] {
        Case c = plain.twin();
        tessera_tensors tensors = c.bind();
        for (tessera_desc* desc : {&c.problem.q, &c.problem.k, &c.problem.v, &c.problem.o}) desc->stride[0] = kStride;
        tensors.q = maps[0], tensors.k = maps[1], tensors.v = maps[2], tensors.o = maps[3];
        std::snprintf(c.problem.kernel, sizeof c.problem.kernel, "%s", plain.kernel.c_str());
        tessera_status status{};
        ASSERT_EQ(run_raw(c.problem, tensors, &status), TESSERA_OK) << status.message;
        const size_t row = 5 * 2 * 64 * 2;
        for (size_t b = 0; b < 2; ++b)
          EXPECT_EQ(std::memcmp(maps[3] + b * static_cast<size_t>(kStride) * 2,
                                static_cast<std::byte*>(plain.o.data()) + b * row, row),
                    0);
      },
      Rows::library);
  for (std::byte* map : maps) munmap(map, kBytes);
}

TESSERA_SITUATION(BugStrides, NegativeAndOverlappingStridesAreRefused) {
  Case c = Case::dense(offered(TESSERA_F32), {.batch = 2, .seqlen_q = 5, .seqlen_k = 9, .heads_q = 2});
  c.randomize(77);
  const tessera_tensors tensors = c.bind();
  const auto refused = [&](tessera_desc tessera_problem::*operand, int dim, int64_t stride, const char* name) {
    tessera_problem problem = c.problem;
    (problem.*operand).stride[dim] = stride;
    c.o.poison(), c.lse.poison();
    tessera_status status{};
    EXPECT_EQ(run_raw(problem, tensors, &status), TESSERA_INVALID_ARGUMENT) << name << " stride " << stride;
    EXPECT_NE(std::string(status.message).find(name), std::string::npos) << status.message;
    EXPECT_NE(std::string(status.message).find("stride"), std::string::npos) << status.message;
    EXPECT_TRUE(c.o.untouched(0, 0, 0, 0));
  };
  refused(&tessera_problem::q, 1, -128, "q");
  refused(&tessera_problem::k, 1, -128, "k");
  refused(&tessera_problem::v, 2, -64, "v");
  refused(&tessera_problem::o, 0, -640, "o");
  refused(&tessera_problem::o, 0, 0, "o");   // two sequences write the same rows
  refused(&tessera_problem::o, 1, 64, "o");  // rows overlap the next row's heads
  refused(&tessera_problem::o, 2, 63, "o");
  run_on(c);
}

// Inputs may overlap as they like: one k row for all heads and sequences (stride 0) is a broadcast.
TESSERA_SITUATION(BugStrides, BroadcastInputs) {
  for (const int32_t dtype : offered(kAllTypes)) {
    SCOPED_TRACE(name_of(dtype));
    Case plain = Case::dense(dtype, {.batch = 3, .seqlen_q = 7, .seqlen_k = 20, .heads_q = 4, .heads_kv = 4});
    plain.randomize(78);
    Case c = plain.twin();
    const Placement shared{.stride = {0, 64, 0, 1}};
    c.k = Tensor(dtype, plain.k.dims(), shared), c.v = Tensor(dtype, plain.v.dims(), shared);
    c.k.fill_random(79), c.v.fill_random(80);
    plain.k = Tensor(dtype, plain.k.dims()), plain.v = Tensor(dtype, plain.v.dims());
    plain.k.copy_values(c.k), plain.v.copy_values(c.v);
    expect_same_o(plain, c);
  }
}

// ModelTC/LightX2V#1031: an output over an input either works or is refused by name; it is never silently wrong.
TESSERA_SITUATION(BugAliasing, OutputOverQuery) {
  for (const int64_t seqlen_q : {1, 70})
    for (const int32_t splits : {1, 3}) {
      Case plain =
          Case::dense(offered(TESSERA_F32), {.seqlen_q = seqlen_q, .seqlen_k = 200, .heads_q = 4, .heads_kv = 2});
      plain.randomize(81);
      plain.problem.num_splits = splits;
      on_every_row(
          plain,
          [&] {
            Case c = plain.twin();
            c.q = plain.q.clone();
            tessera_tensors tensors = c.bind();
            tensors.o = const_cast<void*>(tensors.q);
            std::snprintf(c.problem.kernel, sizeof c.problem.kernel, "%s", plain.kernel.c_str());
            tessera_status status{};
            const int code = run_raw(c.problem, tensors, &status);
            if (code == TESSERA_OK) {
              EXPECT_TRUE(c.q.same_bits(plain.o));
            } else {
              EXPECT_EQ(code, TESSERA_INVALID_ARGUMENT) << status.message;
              EXPECT_TRUE(c.q.same_bits(plain.q));
            }
          },
          Rows::library);
    }
}

}  // namespace
}  // namespace tessera::test

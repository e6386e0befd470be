// Every kernel row on the operands of trained models in tests/data, against the float64 answers stored beside them.
#include <cmath>
#include <cstring>
#include <map>
#include <string>

#include "baselines/elements.hpp"
#include "cli/file_io.hpp"
#include "cli/safetensors.hpp"
#include "sanitized.hpp"
#include "support.hpp"

namespace tessera::test {
namespace {

struct TrainedModel {
  const char* file;
  bool causal;
  double scale;
  friend void PrintTo(const TrainedModel& model, std::ostream* out) { *out << model.file; }
};

constexpr TrainedModel kModels[] = {
    {"sample_gqa_causal", true, 0.125},          {"smollm2_gqa_causal_sink", true, 0.125},
    {"smollm2_gqa_packed_serving", true, 0.125}, {"minilm_packed_full", false, 0.1767766952966369},
    {"whisper_encoder_full", false, 0.125},      {"whisper_decoder_causal", true, 0.125},
    {"whisper_cross_full", false, 1.0},
};

struct Loaded {
  Case c;
  Judge judged;  // exact: the file's own o_f64 and lse; naive: the yardstick on its inputs
};

std::vector<int32_t> integers(const cli::TensorView& view) {
  std::vector<int32_t> values(view.bytes / sizeof(int32_t));
  std::memcpy(values.data(), view.data, view.bytes);
  return values;
}

// A contiguous tensor's elements in order.
void fill(const Tensor& t, const cli::TensorView& view, int32_t stored_dtype) {
  const int64_t count = t.dims()[0] * t.dims()[1] * t.dims()[2] * t.dims()[3];
  for (int64_t e = 0; e < count; ++e)
    baselines::store_element(t.dtype(), t.data(), e, baselines::load_element(stored_dtype, view.data, e));
}

Loaded load(const TrainedModel& model) {
  const std::string path = data_file(std::string(model.file) + ".safetensors");
  const cli::InputFile file(path, path);
  std::map<std::string, cli::TensorView> views;
  for (const cli::TensorView& view : cli::read_safetensors(file.bytes(), path)) views.emplace(view.name, view);
  const cli::TensorView &q = views.at("q"), &k = views.at("k");
  const auto from_end = [](const cli::TensorView& view, size_t n) { return view.shape[view.shape.size() - n]; };
  Shape shape{.seqlen_q = from_end(q, 3),
              .seqlen_k = from_end(k, 3),
              .heads_q = static_cast<int32_t>(from_end(q, 2)),
              .heads_kv = static_cast<int32_t>(from_end(k, 2)),
              .head_dim_qk = static_cast<int32_t>(from_end(q, 1))};
  const int32_t stored_dtype = cli::tessera_dtype(q.dtype), dtype = offered(stored_dtype);
  const bool packed = views.count("cu_seqlens_q") != 0;
  Loaded loaded{packed
                    ? Case::packed(dtype, integers(views.at("cu_seqlens_q")), integers(views.at("cu_seqlens_k")), shape)
                    : Case::dense(dtype, shape),
                {}};
  Case& c = loaded.c;
  fill(c.q, q, stored_dtype), fill(c.k, k, stored_dtype), fill(c.v, views.at("v"), stored_dtype);
  c.problem.scale = model.scale;
  if (model.causal) c.set_causal();
  loaded.judged = judge(c);
  if (dtype != stored_dtype) return loaded;  // rounded to what the target takes: the file's answers are others
  const cli::TensorView &o = views.at("o_f64"), &lse = views.at("lse");
  EXPECT_EQ(o.bytes, loaded.judged.exact.o.size() * sizeof(double));
  EXPECT_EQ(lse.bytes, loaded.judged.exact.lse.size() * sizeof(float));
  for (size_t e = 0; e < o.bytes / sizeof(double); ++e) {
    double stored;
    std::memcpy(&stored, o.data + e * sizeof stored, sizeof stored);
    EXPECT_NEAR(loaded.judged.exact.o[e], stored, 1e-12) << "the reference and the file differ";
    loaded.judged.exact.o[e] = stored;
  }
  for (size_t e = 0; e < lse.bytes / sizeof(float); ++e) {
    float stored;
    std::memcpy(&stored, lse.data + e * sizeof stored, sizeof stored);
    EXPECT_NEAR(loaded.judged.exact.lse[e], stored, 1e-5) << "the reference and the file differ";
    loaded.judged.exact.lse[e] = stored;
  }
  return loaded;
}

class TrainedModels : public ::testing::TestWithParam<TrainedModel> {};

TEST_P(TrainedModels, EveryRowIsWithinTolerance) {
  Loaded loaded = load(GetParam());
  on_every_row(loaded.c, [&] { expect_close(loaded.c, loaded.judged); });
}

TEST_P(TrainedModels, SplitKeysAreWithinTolerance) {
  Loaded loaded = load(GetParam());
  loaded.c.problem.num_splits = 3;
  on_every_row(
      loaded.c, [&] { expect_close(loaded.c, loaded.judged); }, Rows::library);
}

TEST_P(TrainedModels, ThreadCountChangesNoBit) {
  Loaded loaded = load(GetParam());
  for (const int32_t splits : {0, 3}) {
    loaded.c.problem.num_splits = splits;
    loaded.c.problem.threads = 1;
    on_every_row(
        loaded.c,
        [&] {
          for (const int32_t threads : {2, 3, 8}) {
            if (tests::kSanitized && threads != 3) continue;
            Case other = loaded.c.twin();
            other.problem.threads = threads;
            run_on(other, loaded.c.kernel);
            EXPECT_TRUE(other.o.same_bits(loaded.c.o)) << threads << " threads, " << splits << " splits";
            EXPECT_TRUE(other.lse.same_bits(loaded.c.lse)) << threads << " threads, " << splits << " splits";
          }
        },
        Rows::library);
  }
}

#if TESSERA_HAS_CUDA
class GpuTrainedModels : public ::testing::TestWithParam<TrainedModel> {};

TEST_P(GpuTrainedModels, EveryRowIsWithinTolerance) {
  if (const char* reason = no_gpu()) GTEST_SKIP() << "no GPU test here: " << reason;
  const OnGpu target;
  Loaded loaded = load(GetParam());
  for (const int32_t splits : {0, 3}) {
    loaded.c.problem.num_splits = splits;
    on_every_row(loaded.c, [&] { expect_close(loaded.c, loaded.judged); });
  }
}

INSTANTIATE_TEST_SUITE_P(Data, GpuTrainedModels, ::testing::ValuesIn(kModels),
                         [](const auto& model) { return std::string(model.param.file); });
#endif

INSTANTIATE_TEST_SUITE_P(Data, TrainedModels, ::testing::ValuesIn(kModels),
                         [](const auto& model) { return std::string(model.param.file); });

}  // namespace
}  // namespace tessera::test

#include "decoder_cpu.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

namespace {

constexpr int64_t kDim = Weights::kDim;
constexpr int32_t kHeadDim = Weights::kHeadDim;

// k and v of [rows, 2, heads, head_dim] in one buffer, as the projection leaves them: no copy, only strides.
tessera::AppendArgs rows_of(const std::vector<float>& kv, int64_t seqlen) {
  tessera::AppendArgs rows;
  rows.seqlen_new = seqlen;
  rows.k_new = rows.v_new = {TESSERA_F32, sizeof(float), {seqlen * 2 * kDim, 2 * kDim, kHeadDim, 1}};
  rows.k_new_data = kv.data(), rows.v_new_data = kv.data() + kDim;
  return rows;
}

// A cache of NaN: whatever a kernel read beside the used slots would be seen in the tokens.
std::vector<float> make_storage(Cache& cache) {
  std::vector<float> storage(cache.bytes() / sizeof(float), NAN);
  cache.set_storage(storage.data());
  return storage;
}

}  // namespace

CpuDecoder::CpuDecoder(const Weights& weights, const DecoderOptions& options)
    : Decoder(weights, options, TESSERA_F32), self_storage_(make_storage(self_)), audio_storage_(make_storage(audio_)) {
  const auto prepare = [&](tessera::Problem& problem) {
    problem.threads = options.threads;
    problem.q.align = problem.k.align = problem.v.align = problem.o.align = sizeof(float);  // std::vector's promise
  };
  self_plans_ = make_plans(self_, options.sequences, prepare);
  audio_plans_ = make_plans(audio_, options.sequences, prepare);
  size_t bytes = 0;
  for (const auto* plans : {&self_plans_, &audio_plans_})
    for (const tessera::Plan& plan : *plans) bytes = std::max(bytes, plan.workspace_bytes());
  auto workspace = tessera::Workspace::allocate(bytes);
  require(workspace.status());
  workspace_ = *std::move(workspace);
  store_audio();
}

// The recording's keys and values, once for all sequences: they share its pages, or its row of the dense cache.
void CpuDecoder::store_audio() {
  tessera::Problem problem;
  audio_.describe(problem, 1);
  problem.heads_q = Weights::kHeads;
  problem.k.align = problem.v.align = sizeof(float);
  kv_.resize(static_cast<size_t>(weights_.frames * 2 * kDim));
  const int32_t before = 0;
  const std::vector<int32_t> places = audio_.places({audio_owner_});
  for (size_t n = 0; n < weights_.layers.size(); ++n) {
    const auto layer = static_cast<int64_t>(n);
    weights_.layers[n].cross_kv.apply(weights_.audio.data(), weights_.frames, kv_.data());
    tessera::Tensors tensors{.seqused_k = &before};
    audio_.bind(layer, places.data(), tensors);
    tessera::AppendArgs rows = rows_of(kv_, weights_.frames);
    rows.k_cache = audio_.k(layer), rows.v_cache = audio_.v(layer);
    require(tessera::append(problem, tensors, rows));
  }
}

void CpuDecoder::run(const tessera::Plan& plan, const tessera::Tensors& tensors) {
  const auto begin = std::chrono::steady_clock::now();
  require(plan.run(tensors, workspace_));
  attention_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The new key and value of each sequence go into its cache in the call that attends to them and all before.
void CpuDecoder::attend_to_self(int64_t layer, int64_t count) {
  const Layer& weights = weights_.layers[static_cast<size_t>(layer)];
  weights.self_norm.apply(x_.data(), count, y_.data());
  weights.self_q.apply(y_.data(), count, q_.data());
  weights.self_kv.apply(y_.data(), count, kv_.data());
  tessera::AppendArgs rows = rows_of(kv_, 1);
  rows.k_cache = self_.k(layer), rows.v_cache = self_.v(layer);
  const tessera_append_args append = rows.raw();
  tessera::Tensors tensors{.q = q_.data(), .o = o_.data(), .seqused_k = before_.data(), .append = &append};
  self_.bind(layer, self_places_.data(), tensors);
  run(self_plans_[static_cast<size_t>(count - 1)], tensors);
  weights.self_out.apply(o_.data(), count, y_.data());
}

void CpuDecoder::attend_to_audio(int64_t layer, int64_t count) {
  const Layer& weights = weights_.layers[static_cast<size_t>(layer)];
  weights.cross_norm.apply(x_.data(), count, y_.data());
  weights.cross_q.apply(y_.data(), count, q_.data());
  tessera::Tensors tensors{.q = q_.data(), .o = o_.data(), .seqused_k = frames_.data()};
  audio_.bind(layer, audio_places_.data(), tensors);
  run(audio_plans_[static_cast<size_t>(count - 1)], tensors);
  weights.cross_out.apply(o_.data(), count, y_.data());
}

std::vector<int32_t> CpuDecoder::step(const std::vector<Slot>& batch) {
  const auto count = static_cast<int64_t>(batch.size());
  const size_t size = batch.size() * static_cast<size_t>(kDim);
  for (std::vector<float>* rows : {&x_, &y_, &q_, &o_}) rows->resize(size);
  kv_.resize(2 * size), wide_.resize(4 * size);
  before_.clear(), frames_.clear();
  std::vector<int64_t> sequences;
  for (size_t n = 0; n < batch.size(); ++n) {
    const Slot& slot = batch[n];
    sequences.push_back(slot.sequence);
    before_.push_back(static_cast<int32_t>(slot.position)), frames_.push_back(static_cast<int32_t>(slot.frames));
    const float* token = weights_.embed.data() + slot.token * kDim;
    const float* position = weights_.position.data() + slot.position * kDim;
    for (int64_t c = 0; c < kDim; ++c)
      x_[n * static_cast<size_t>(kDim) + static_cast<size_t>(c)] = token[c] + position[c];
  }
  self_places_ = self_.places(sequences), audio_places_ = audio_.places(sequences);
  const auto add = [&] {
    for (size_t n = 0; n < size; ++n) x_[n] += y_[n];
  };
  for (size_t layer = 0; layer < weights_.layers.size(); ++layer) {
    attend_to_self(static_cast<int64_t>(layer), count), add();
    attend_to_audio(static_cast<int64_t>(layer), count), add();
    const Layer& weights = weights_.layers[layer];
    weights.mlp_norm.apply(x_.data(), count, y_.data());
    weights.up.apply(y_.data(), count, wide_.data());
    gelu(wide_);
    weights.down.apply(wide_.data(), count, y_.data()), add();
  }
  weights_.norm.apply(x_.data(), count, y_.data());
  const int64_t tokens = weights_.to_logits.outputs;
  logits_.resize(static_cast<size_t>(count * tokens));
  weights_.to_logits.apply(y_.data(), count, logits_.data());
  std::vector<int32_t> best;
  for (int64_t n = 0; n < count; ++n) {
    float* logits = logits_.data() + n * tokens;
    for (const int32_t control : weights_.prompt) logits[control] = -INFINITY;  // never spoken
    best.push_back(static_cast<int32_t>(std::max_element(logits, logits + tokens) - logits));
  }
  return best;
}

std::string CpuDecoder::summary() const {
  char text[128];
  std::snprintf(text, sizeof text, "attention by %s took %.2f s", self_plans_.front().kernel(), attention_seconds_);
  return text;
}

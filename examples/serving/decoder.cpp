#include "decoder.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>

namespace {

constexpr int64_t kDim = Weights::kDim;
constexpr int32_t kHeads = Weights::kHeads, kHeadDim = Weights::kHeadDim;

void require(const tessera::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

// k and v of [rows, 2, heads, head_dim] in one buffer, as the projection leaves them: no copy, only strides.
tessera::AppendArgs rows_of(const std::vector<float>& kv, int64_t seqlen) {
  tessera::AppendArgs rows;
  rows.seqlen_new = seqlen;
  rows.k_new = rows.v_new = {TESSERA_F32, sizeof(float), {seqlen * 2 * kDim, 2 * kDim, kHeadDim, 1}};
  rows.k_new_data = kv.data(), rows.v_new_data = kv.data() + kDim;
  return rows;
}

}  // namespace

Decoder::Decoder(const Weights& weights, int64_t most, int64_t longest, int32_t page_size, int32_t threads)
    : weights_(weights),
      audio_owner_(most),
      self_(static_cast<int64_t>(weights.layers.size()), most, most, longest, kHeads, kHeadDim, page_size),
      audio_(static_cast<int64_t>(weights.layers.size()), most + 1, 1, weights.frames, kHeads, kHeadDim, page_size) {
  self_plans_ = make_plans(self_, most, threads);
  audio_plans_ = make_plans(audio_, most, threads);
  size_t bytes = 0;
  for (const auto* plans : {&self_plans_, &audio_plans_})
    for (const tessera::Plan& plan : *plans) bytes = std::max(bytes, plan.workspace_bytes());
  auto workspace = tessera::Workspace::allocate(bytes);
  require(workspace.status());
  workspace_ = *std::move(workspace);
  store_audio();
}

// A plan depends on sizes alone, so one for each number of sequences serves every step; planning takes microseconds.
std::vector<tessera::Plan> Decoder::make_plans(const Cache& cache, int64_t most, int32_t threads) {
  std::vector<tessera::Plan> plans;
  for (int64_t n = 1; n <= most; ++n) {
    tessera::Problem problem;
    cache.describe(problem, n);
    problem.heads_q = kHeads, problem.seqlen_q = 1, problem.threads = threads;
    problem.q.align = problem.k.align = problem.v.align = problem.o.align = sizeof(float);  // std::vector's promise
    auto plan = tessera::plan(problem);
    require(plan.status());
    plans.push_back(*std::move(plan));
  }
  return plans;
}

// The recording's keys and values, once for all sequences: they share its pages, or its row of the dense cache.
void Decoder::store_audio() {
  tessera::Problem problem;
  audio_.describe(problem, 1);
  problem.heads_q = kHeads;
  problem.k.align = problem.v.align = sizeof(float);
  audio_.reserve(audio_owner_, weights_.frames);
  kv_.resize(static_cast<size_t>(weights_.frames * 2 * kDim));
  const int32_t before = 0;
  for (size_t layer = 0; layer < weights_.layers.size(); ++layer) {
    weights_.layers[layer].cross_kv.apply(weights_.audio.data(), weights_.frames, kv_.data());
    tessera::Tensors tensors{.seqused_k = &before};
    audio_.bind(static_cast<int64_t>(layer), {audio_owner_}, tensors);
    tessera::AppendArgs rows = rows_of(kv_, weights_.frames);
    rows.k_cache = audio_.k(static_cast<int64_t>(layer)), rows.v_cache = audio_.v(static_cast<int64_t>(layer));
    require(tessera::append(problem, tensors, rows));
  }
}

bool Decoder::reserve(const Slot& slot) {
  audio_.share(slot.row, audio_owner_);
  return self_.reserve(slot.row, slot.position + 1);
}

void Decoder::release(int64_t row) { self_.release(row); }

void Decoder::run(const tessera::Plan& plan, const tessera::Tensors& tensors) {
  const auto begin = std::chrono::steady_clock::now();
  require(plan.run(tensors, workspace_));
  attention_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The new key and value of each sequence go into its cache in the call that attends to them and all before.
void Decoder::attend_to_self(int64_t layer, const std::vector<Slot>& batch) {
  const auto count = static_cast<int64_t>(batch.size());
  const Layer& weights = weights_.layers[static_cast<size_t>(layer)];
  weights.self_norm.apply(x_.data(), count, y_.data());
  weights.self_q.apply(y_.data(), count, q_.data());
  weights.self_kv.apply(y_.data(), count, kv_.data());
  tessera::AppendArgs rows = rows_of(kv_, 1);
  rows.k_cache = self_.k(layer), rows.v_cache = self_.v(layer);
  const tessera_append_args append = rows.raw();
  tessera::Tensors tensors{.q = q_.data(), .o = o_.data(), .seqused_k = before_.data(), .append = &append};
  self_.bind(layer, rows_, tensors);
  run(self_plans_[batch.size() - 1], tensors);
  weights.self_out.apply(o_.data(), count, y_.data());
}

void Decoder::attend_to_audio(int64_t layer, const std::vector<Slot>& batch) {
  const auto count = static_cast<int64_t>(batch.size());
  const Layer& weights = weights_.layers[static_cast<size_t>(layer)];
  weights.cross_norm.apply(x_.data(), count, y_.data());
  weights.cross_q.apply(y_.data(), count, q_.data());
  tessera::Tensors tensors{.q = q_.data(), .o = o_.data(), .seqused_k = frames_.data()};
  audio_.bind(layer, rows_, tensors);
  run(audio_plans_[batch.size() - 1], tensors);
  weights.cross_out.apply(o_.data(), count, y_.data());
}

std::vector<int32_t> Decoder::step(const std::vector<Slot>& batch) {
  const auto count = static_cast<int64_t>(batch.size());
  const size_t size = batch.size() * static_cast<size_t>(kDim);
  for (std::vector<float>* rows : {&x_, &y_, &q_, &o_}) rows->resize(size);
  kv_.resize(2 * size), wide_.resize(4 * size);
  rows_.clear(), before_.clear(), frames_.clear();
  for (size_t n = 0; n < batch.size(); ++n) {
    const Slot& slot = batch[n];
    rows_.push_back(slot.row);
    before_.push_back(static_cast<int32_t>(slot.position)), frames_.push_back(static_cast<int32_t>(slot.frames));
    const float* token = weights_.embed.data() + slot.token * kDim;
    const float* position = weights_.position.data() + slot.position * kDim;
    for (int64_t c = 0; c < kDim; ++c)
      x_[n * static_cast<size_t>(kDim) + static_cast<size_t>(c)] = token[c] + position[c];
  }
  const auto add = [&] {
    for (size_t n = 0; n < size; ++n) x_[n] += y_[n];
  };
  for (size_t layer = 0; layer < weights_.layers.size(); ++layer) {
    attend_to_self(static_cast<int64_t>(layer), batch), add();
    attend_to_audio(static_cast<int64_t>(layer), batch), add();
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

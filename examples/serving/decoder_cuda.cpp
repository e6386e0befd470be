#include "decoder_cuda.hpp"

#include <algorithm>
#include <cstdio>

#include "layers.hpp"

namespace {

constexpr int64_t kDim = Weights::kDim, kWide = 4 * kDim;
constexpr int32_t kHeadDim = Weights::kHeadDim;

// New rows of k and v that lie side by side in rows of `row` elements: no copy, only strides.
tessera::AppendArgs rows_of(const __half* k, int64_t row, int64_t seqlen) {
  tessera::AppendArgs rows;
  rows.seqlen_new = seqlen;
  rows.k_new = rows.v_new = {TESSERA_F16, 0, {seqlen * row, row, kHeadDim, 1}};
  rows.k_new_data = k, rows.v_new_data = k + kDim;
  return rows;
}

}  // namespace

template <class Launches>
void Graph::capture(cudaStream_t stream, Launches launches) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  launches();
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  const cudaError_t error = cudaGraphInstantiate(&executable_, graph, 0);
  cudaGraphDestroy(graph);
  check(error, "cudaGraphInstantiate");
}

CudaDecoder::CudaDecoder(const Weights& weights, const DecoderOptions& options)
    : Decoder(weights, options, TESSERA_F16),
      most_(options.sequences),
      self_plans_(make_plans(self_, most_,
                             [](tessera::Problem& problem) {
                               // q lies beside the new k and v.
                               problem.device = 0, problem.q.stride[0] = problem.q.stride[1] = 3 * kDim;
                               problem.q.stride[2] = kHeadDim, problem.q.stride[3] = 1;
                             })),
      audio_plans_(make_plans(audio_, most_, [](tessera::Problem& problem) { problem.device = 0; })),
      products_(stream_),
      self_storage_(self_.bytes() / sizeof(__half)),
      audio_storage_(audio_.bytes() / sizeof(__half)),
      warm_(static_cast<size_t>(most_)),
      graphs_(static_cast<size_t>(most_)) {
  self_.set_storage(self_storage_.data()), audio_.set_storage(audio_storage_.data());
  upload_weights();
  allocate_rows();
  store_audio();
}

void CudaDecoder::upload_weights() {
  for (const Layer& layer : weights_.layers) {
    layers_.push_back({upload(layer.self_norm), upload(layer.cross_norm), upload(layer.mlp_norm),
                       upload({&layer.self_q, &layer.self_kv}), upload({&layer.self_out}), upload({&layer.cross_q}),
                       upload({&layer.cross_kv}), upload({&layer.cross_out}), upload({&layer.up}),
                       upload({&layer.down})});
  }
  norm_ = upload(weights_.norm);
  embed_ = upload_half(weights_.embed), position_ = upload_half(weights_.position);
  controls_ = DeviceArray<int32_t>(weights_.prompt);
}

void CudaDecoder::allocate_rows() {
  size_t bytes = 0;
  for (const auto* plans : {&self_plans_, &audio_plans_})
    for (const tessera::Plan& plan : *plans) bytes = std::max(bytes, plan.workspace_bytes());
  workspace_ = DeviceArray<char>(bytes);
  const auto most = static_cast<size_t>(most_);
  sent_.assign(most * static_cast<size_t>(3 + self_.places_each() + audio_.places_each()), -1);
  numbers_ = DeviceArray<int32_t>(sent_);
  x_ = DeviceArray<float>(most * kDim), o_ = DeviceArray<__half>(most * kDim);
  qkv_ = DeviceArray<__half>(most * 3 * kDim), y_ = DeviceArray<__half>(most * kWide);
  const auto vocabulary = static_cast<size_t>(weights_.to_logits.outputs);
  product_ = DeviceArray<float>(most * std::max<size_t>(kWide, vocabulary));
}

// The recording's keys and values, once for all sequences: they share its pages, or its row of the dense cache.
void CudaDecoder::store_audio() {
  const int64_t frames = weights_.frames;
  tessera::Problem problem;
  audio_.describe(problem, 1);
  problem.device = 0, problem.heads_q = Weights::kHeads;
  const DeviceArray<__half> audio = upload_half(weights_.audio);
  const DeviceArray<float> product(static_cast<size_t>(frames * 2 * kDim));
  const DeviceArray<__half> kv(product.size());
  const DeviceArray<int32_t> before(std::vector<int32_t>{0}), places(audio_.places({audio_owner_}));
  for (size_t n = 0; n < layers_.size(); ++n) {
    const auto layer = static_cast<int64_t>(n);
    const DeviceLinear& linear = layers_[n].cross_kv;
    products_.apply(linear, audio.data(), frames, product.data());
    round_to_half(product.data(), linear.bias.data(), false, frames, linear.outputs, kv.data(), stream_);
    tessera::Tensors tensors{.seqused_k = before.data()};
    audio_.bind(layer, places.data(), tensors);
    tessera::AppendArgs rows = rows_of(kv.data(), 2 * kDim, frames);
    rows.k_cache = audio_.k(layer), rows.v_cache = audio_.v(layer);
    require(tessera::append(problem, tensors, rows, static_cast<cudaStream_t>(stream_)));
  }
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");  // before the rows above go
}

CudaDecoder::Numbers CudaDecoder::numbers(int32_t* all) const {
  int32_t* const places = all + 3 * most_;
  return {all, all + most_, all + 2 * most_, places, places + most_ * self_.places_each()};
}

// The device has moved tokens and lengths on by itself; what a sequence that came or went or a new page changes is
// sent. Nothing else goes to the device in a step.
void CudaDecoder::send(const std::vector<Slot>& batch) {
  std::vector<int32_t> wanted(sent_.size(), -1);
  const Numbers host = numbers(wanted.data());
  std::vector<int64_t> sequences;
  for (size_t n = 0; n < batch.size(); ++n) {
    host.tokens[n] = batch[n].token, host.lengths[n] = static_cast<int32_t>(batch[n].position);
    host.frames[n] = static_cast<int32_t>(batch[n].frames);
    sequences.push_back(batch[n].sequence);
  }
  std::ranges::copy(self_.places(sequences), host.self_places);
  std::ranges::copy(audio_.places(sequences), host.audio_places);
  if (wanted == sent_) return;
  sent_ = std::move(wanted);
  check(cudaMemcpyAsync(numbers_.data(), sent_.data(), numbers_.bytes(), cudaMemcpyHostToDevice, stream_),
        "cudaMemcpyAsync");
}

void CudaDecoder::run(const tessera::Plan& plan, const tessera::Tensors& tensors) {
  require(plan.run(tensors, {workspace_.data(), workspace_.bytes()}, static_cast<cudaStream_t>(stream_)));
}

// The new key and value of each sequence go into its cache in the call that attends to them and all before.
void CudaDecoder::attend_to_self(int64_t layer, int64_t count) {
  const DeviceLayer& weights = layers_[static_cast<size_t>(layer)];
  const Numbers device = numbers(numbers_.data());
  products_.apply(weights.self_qkv, y_.data(), count, product_.data());
  round_to_half(product_.data(), weights.self_qkv.bias.data(), false, count, 3 * kDim, qkv_.data(), stream_);
  tessera::AppendArgs rows = rows_of(qkv_.data() + kDim, 3 * kDim, 1);
  rows.k_cache = self_.k(layer), rows.v_cache = self_.v(layer);
  const tessera_append_args append = rows.raw();
  tessera::Tensors tensors{.q = qkv_.data(), .o = o_.data(), .seqused_k = device.lengths, .append = &append};
  self_.bind(layer, device.self_places, tensors);
  run(self_plans_[static_cast<size_t>(count - 1)], tensors);
}

void CudaDecoder::attend_to_audio(int64_t layer, int64_t count) {
  const DeviceLayer& weights = layers_[static_cast<size_t>(layer)];
  const Numbers device = numbers(numbers_.data());
  products_.apply(weights.cross_q, y_.data(), count, product_.data());
  round_to_half(product_.data(), weights.cross_q.bias.data(), false, count, kDim, qkv_.data(), stream_);
  tessera::Tensors tensors{.q = qkv_.data(), .o = o_.data(), .seqused_k = device.frames};
  audio_.bind(layer, device.audio_places, tensors);
  run(audio_plans_[static_cast<size_t>(count - 1)], tensors);
}

// Only launches: no allocation, no copy to or from the host, no number of the batch but how many sequences it has.
void CudaDecoder::launch_step(int64_t count) {
  const Numbers device = numbers(numbers_.data());
  const auto norm = [&](const DeviceNorm& weights) {
    normalize(x_.data(), weights.gain.data(), weights.bias.data(), count, kDim, y_.data(), stream_);
  };
  const auto add_product = [&](const DeviceLinear& linear, const __half* rows) {
    products_.apply(linear, rows, count, product_.data());
    add(product_.data(), linear.bias.data(), count, kDim, x_.data(), stream_);
  };
  embed(device.tokens, device.lengths, embed_.data(), position_.data(), count, kDim, x_.data(), stream_);
  for (size_t n = 0; n < layers_.size(); ++n) {
    const DeviceLayer& layer = layers_[n];
    norm(layer.self_norm);
    attend_to_self(static_cast<int64_t>(n), count);
    add_product(layer.self_out, o_.data());
    norm(layer.cross_norm);
    attend_to_audio(static_cast<int64_t>(n), count);
    add_product(layer.cross_out, o_.data());
    norm(layer.mlp_norm);
    products_.apply(layer.up, y_.data(), count, product_.data());
    round_to_half(product_.data(), layer.up.bias.data(), true, count, kWide, y_.data(), stream_);
    add_product(layer.down, y_.data());
  }
  norm(norm_);
  const int64_t vocabulary = weights_.to_logits.outputs;
  products_.apply(embed_.data(), kDim, vocabulary, y_.data(), count, product_.data());
  choose(product_.data(), controls_.data(), static_cast<int64_t>(controls_.size()), count, vocabulary, device.tokens,
         device.lengths, stream_);
}

std::vector<int32_t> CudaDecoder::step(const std::vector<Slot>& batch) {
  const auto count = static_cast<int64_t>(batch.size());
  const size_t which = batch.size() - 1;
  send(batch);
  // The first step of a size loads kernels, which a capture need not allow; the second is captured.
  if (warm_[which] && graphs_[which].empty()) graphs_[which].capture(stream_, [&] { launch_step(count); });
  if (graphs_[which].empty()) {
    launch_step(count);
    warm_[which] = true;
  } else {
    graphs_[which].replay(stream_);
    ++replays_;
  }
  ++steps_;
  std::vector<int32_t> next(batch.size());
  check(cudaMemcpyAsync(next.data(), numbers(numbers_.data()).tokens, next.size() * sizeof(int32_t),
                        cudaMemcpyDeviceToHost, stream_),
        "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  const Numbers host = numbers(sent_.data());  // as the device has moved them on
  std::ranges::copy(next, host.tokens);
  for (size_t n = 0; n < batch.size(); ++n) ++host.lengths[n];
  return next;
}

std::string CudaDecoder::summary() const {
  const auto graphs = std::ranges::count_if(graphs_, [](const Graph& graph) { return !graph.empty(); });
  char text[160];
  std::snprintf(text, sizeof text, "attention by %s; %d of %d steps replayed, from %d graphs",
                self_plans_.front().kernel(), static_cast<int>(replays_), static_cast<int>(steps_),
                static_cast<int>(graphs));
  return text;
}

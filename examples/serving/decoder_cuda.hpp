// The decoder on a CUDA device: caches and weights in f16, sums and the residual in float32. Tokens, lengths and
// tables lie on the device. A step reads them there and moves tokens and lengths on by itself, so it is one CUDA graph
// for each number of sequences, replayed while the caches grow.
#pragma once

#include "cuda_support.hpp"
#include "decoder.hpp"

struct DeviceLayer {
  DeviceNorm self_norm, cross_norm, mlp_norm;
  DeviceLinear self_qkv, self_out, cross_q, cross_kv, cross_out, up, down;
};

class Stream {
 public:
  Stream() { check(cudaStreamCreate(&stream_), "cudaStreamCreate"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// The launches of a step, recorded once.
class Graph {
 public:
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
  }
  bool empty() const { return executable_ == nullptr; }
  template <class Launches>
  void capture(cudaStream_t stream, Launches launches);
  void replay(cudaStream_t stream) const { check(cudaGraphLaunch(executable_, stream), "cudaGraphLaunch"); }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

class CudaDecoder : public Decoder {
 public:
  CudaDecoder(const Weights& weights, const DecoderOptions& options);
  std::vector<int32_t> step(const std::vector<Slot>& batch) override;
  std::string summary() const override;

 private:
  // What a step reads beside weights and caches; int32 each, for as many sequences as there may be.
  struct Numbers {
    int32_t *tokens, *lengths, *frames, *self_places, *audio_places;
  };
  Numbers numbers(int32_t* all) const;
  void upload_weights();
  void allocate_rows();
  void store_audio();
  void send(const std::vector<Slot>& batch);
  void launch_step(int64_t count);
  void attend_to_self(int64_t layer, int64_t count);
  void attend_to_audio(int64_t layer, int64_t count);
  void run(const tessera::Plan& plan, const tessera::Tensors& tensors);

  int64_t most_;                                         // sequences
  std::vector<tessera::Plan> self_plans_, audio_plans_;  // [n - 1]: for n sequences
  Stream stream_;
  Products products_;
  std::vector<DeviceLayer> layers_;
  DeviceNorm norm_;
  DeviceArray<__half> embed_, position_;  // embed_ is also the last product
  DeviceArray<int32_t> controls_;         // tokens that are never spoken
  DeviceArray<__half> self_storage_, audio_storage_;
  DeviceArray<char> workspace_;
  DeviceArray<int32_t> numbers_;
  std::vector<int32_t> sent_;        // what numbers_ holds
  DeviceArray<float> x_, product_;   // the residual; a product before its bias
  DeviceArray<__half> y_, qkv_, o_;  // rows of a layer
  std::vector<bool> warm_;           // [n - 1]: a step of n sequences has run
  std::vector<Graph> graphs_;        // [n - 1]: that step
  int64_t steps_ = 0, replays_ = 0;
};

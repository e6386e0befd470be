// The decoder on the CPU, in float32.
#pragma once

#include "decoder.hpp"

class CpuDecoder : public Decoder {
 public:
  CpuDecoder(const Weights& weights, const DecoderOptions& options);
  std::vector<int32_t> step(const std::vector<Slot>& batch) override;
  std::string summary() const override;

 private:
  void store_audio();
  void attend_to_self(int64_t layer, int64_t count);
  void attend_to_audio(int64_t layer, int64_t count);
  void run(const tessera::Plan& plan, const tessera::Tensors& tensors);

  std::vector<float> self_storage_, audio_storage_;
  std::vector<tessera::Plan> self_plans_, audio_plans_;  // [n - 1]: for n sequences
  tessera::Workspace workspace_;
  std::vector<int32_t> before_, frames_, self_places_, audio_places_;
  std::vector<float> x_, y_, q_, kv_, o_, wide_, logits_;
  double attention_seconds_ = 0;
};

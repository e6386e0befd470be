// One step of the decoder for any number of sequences at once: where Tessera's plans, caches and appends meet a model.
#pragma once

#include <cstdint>
#include <vector>

#include "cache.hpp"
#include "tessera/tessera.hpp"
#include "weights.hpp"

// What a step is to do for one sequence.
struct Slot {
  int64_t row;       // of the caches
  int32_t token;     // the latest
  int64_t position;  // of that token: how many keys the cache holds before the step
  int64_t frames;    // of the recording that the sequence hears
};

class Decoder {
 public:
  // Up to `most` sequences of `longest` tokens. page_size 0: dense caches. Throws std::runtime_error.
  Decoder(const Weights& weights, int64_t most, int64_t longest, int32_t page_size, int32_t threads);

  // False where the cache has no room for one more token.
  bool reserve(const Slot& slot);
  void release(int64_t row);
  // The likeliest next token of each sequence. reserve() was true for each.
  std::vector<int32_t> step(const std::vector<Slot>& batch);

  double attention_seconds() const { return attention_seconds_; }
  const char* kernel() const { return self_plans_.front().kernel(); }

 private:
  std::vector<tessera::Plan> make_plans(const Cache& cache, int64_t most, int32_t threads);
  void store_audio();
  void attend_to_self(int64_t layer, const std::vector<Slot>& batch);
  void attend_to_audio(int64_t layer, const std::vector<Slot>& batch);
  void run(const tessera::Plan& plan, const tessera::Tensors& tensors);

  const Weights& weights_;
  int64_t audio_owner_;                                  // the row of audio_ that every sequence shares
  Cache self_, audio_;                                   // grows by a token a step; keys of the recording, written once
  std::vector<tessera::Plan> self_plans_, audio_plans_;  // [n - 1]: for n sequences
  tessera::Workspace workspace_;
  std::vector<int64_t> rows_;
  std::vector<int32_t> before_, frames_;
  std::vector<float> x_, y_, q_, kv_, o_, wide_, logits_;
  double attention_seconds_ = 0;
};

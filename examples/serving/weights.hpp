// The decoder's weights: an int8 .safetensors file read into float32, and the few operations beside attention. Plain
// loops on one thread: they are here so that the example is whole, not fast.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

// rows [count, inputs] -> [count, outputs]. weight [inputs, outputs], so that the inner loop runs along memory.
struct Linear {
  int64_t inputs = 0, outputs = 0;
  std::vector<float> weight, bias;
  void apply(const float* rows, int64_t count, float* result) const;
};

struct Norm {
  std::vector<float> gain, bias;
  void apply(const float* rows, int64_t count, float* result) const;
};

struct Layer {
  Norm self_norm, cross_norm, mlp_norm;
  Linear self_q, self_kv, self_out, cross_q, cross_kv, cross_out, up, down;
};

struct Weights {
  static constexpr int64_t kDim = 384;
  static constexpr int32_t kHeads = 6, kHeadDim = 64;
  std::vector<Layer> layers;
  Norm norm;
  Linear to_logits;             // the token embedding again, transposed
  std::vector<float> embed;     // [tokens, kDim]
  std::vector<float> position;  // [positions, kDim]
  std::vector<float> audio;     // [frames, kDim]: what the encoder made of a recording
  int64_t positions = 0, frames = 0;
  std::vector<int32_t> prompt;
  int32_t end = 0;
};

// Throws std::runtime_error naming the file and what is wrong with it.
Weights load_weights(const std::string& path);
void gelu(std::vector<float>& rows);

#include "weights.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

void Linear::apply(const float* rows, int64_t count, float* result) const {
  for (int64_t r = 0; r < count; ++r) {
    float* y = result + r * outputs;
    if (bias.empty()) {
      std::fill_n(y, outputs, 0.0f);
    } else {
      std::copy(bias.begin(), bias.end(), y);
    }
  }
  constexpr int64_t kInputs = 8;  // weight rows that a pass over the result takes in
  for (int64_t i = 0; i < inputs; i += kInputs) {
    for (int64_t r = 0; r < count; ++r) {
      const float* x = rows + r * inputs + i;
      const float* w = weight.data() + i * outputs;
      float* y = result + r * outputs;
      for (int64_t o = 0; o < outputs; ++o) {
        float sum = y[o];
        for (int64_t n = 0; n < kInputs; ++n) sum += x[n] * w[n * outputs + o];
        y[o] = sum;
      }
    }
  }
}

void Norm::apply(const float* rows, int64_t count, float* result) const {
  const auto dim = static_cast<int64_t>(gain.size());
  for (int64_t r = 0; r < count; ++r) {
    const float* x = rows + r * dim;
    double sum = 0, squares = 0;
    for (int64_t c = 0; c < dim; ++c) sum += double{x[c]};
    const double mean = sum / static_cast<double>(dim);
    for (int64_t c = 0; c < dim; ++c) squares += (double{x[c]} - mean) * (double{x[c]} - mean);
    const double factor = 1 / std::sqrt(squares / static_cast<double>(dim) + 1e-5);
    for (int64_t c = 0; c < dim; ++c) {
      const auto at = static_cast<size_t>(c);
      result[r * dim + c] = static_cast<float>((double{x[c]} - mean) * factor) * gain[at] + bias[at];
    }
  }
}

void gelu(std::vector<float>& rows) {
  for (float& x : rows) x = 0.5f * x * (1 + std::erf(x * 0.70710678f));
}

namespace {

float from_half(uint16_t stored) {
  const int exponent = stored >> 10 & 31, fraction = stored & 1023;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                        : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  return (stored & 0x8000) != 0 ? -magnitude : magnitude;  // the file holds neither infinity nor NaN
}

// A .safetensors file: eight bytes of the header's length, the header in JSON, the tensors.
class File {
 public:
  explicit File(const std::string& path) : path_(path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw std::runtime_error(path + ": cannot be opened");
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
    uint64_t length = 0;
    if (bytes_.size() >= 8) std::memcpy(&length, bytes_.data(), 8);
    if (bytes_.size() < 8 || length > bytes_.size() - 8) throw std::runtime_error(path + ": not a .safetensors file");
    header_ =
        nlohmann::json::parse(bytes_.begin() + 8, bytes_.begin() + 8 + static_cast<int64_t>(length), nullptr, false);
    begin_ = 8 + length;
    if (!header_.is_object()) throw std::runtime_error(path + ": its header is not JSON");
  }
  bool has(const std::string& name) const { return header_.contains(name); }
  int64_t extent(const std::string& name, size_t dim) const {
    const auto shape = field<std::vector<int64_t>>(name, "shape");
    if (dim >= shape.size()) throw std::runtime_error(path_ + ": " + name + " has too few dimensions");
    return shape[dim];
  }

  // Any of the file's types as float32.
  std::vector<float> floats(const std::string& name) const {
    const auto dtype = field<std::string>(name, "dtype");
    std::vector<float> values;
    if (dtype == "F32") each<float>(name, [&](float x) { values.push_back(x); });
    if (dtype == "F16") each<uint16_t>(name, [&](uint16_t x) { values.push_back(from_half(x)); });
    if (dtype == "I8") each<int8_t>(name, [&](int8_t x) { values.push_back(x); });
    if (values.empty()) throw std::runtime_error(path_ + ": " + name + " is " + dtype + ", expected F32, F16 or I8");
    return values;
  }
  std::vector<int32_t> integers(const std::string& name) const {
    std::vector<int32_t> values;
    each<int32_t>(name, [&](int32_t x) { values.push_back(x); });
    if (values.empty()) throw std::runtime_error(path_ + ": " + name + " is empty, expected tokens");
    return values;
  }
  // The int8 rows of `name`.w times their scales: [outputs, inputs].
  std::vector<float> matrix(const std::string& name) const {
    std::vector<float> weight = floats(name + ".w"), scale = floats(name + ".scale");
    const size_t inputs = weight.size() / scale.size();
    for (size_t n = 0; n < weight.size(); ++n) weight[n] *= scale[n / inputs];
    return weight;
  }
  Linear linear(const std::string& name) const {
    const std::vector<float> rows = matrix(name);
    Linear made;
    made.outputs = extent(name + ".w", 0), made.inputs = extent(name + ".w", 1);
    made.weight.resize(rows.size());
    for (int64_t o = 0; o < made.outputs; ++o)
      for (int64_t i = 0; i < made.inputs; ++i)
        made.weight[static_cast<size_t>(i * made.outputs + o)] = rows[static_cast<size_t>(o * made.inputs + i)];
    if (has(name + ".b")) made.bias = floats(name + ".b");
    return made;
  }
  Norm norm(const std::string& name) const { return {floats(name + ".g"), floats(name + ".b")}; }

 private:
  // What the header says of a tensor.
  template <class T>
  T field(const std::string& name, const char* key) const {
    if (!has(name)) throw std::runtime_error(path_ + ": has no tensor " + name);
    try {
      return header_.at(name).at(key).get<T>();
    } catch (const nlohmann::json::exception&) {
      throw std::runtime_error(path_ + ": " + key + " of " + name + " is missing or not as .safetensors has it");
    }
  }
  template <class T, class Take>
  void each(const std::string& name, Take take) const {
    const auto offsets = field<std::array<size_t, 2>>(name, "data_offsets");
    const size_t first = begin_ + offsets[0], last = begin_ + offsets[1];
    if (first > last || last > bytes_.size()) throw std::runtime_error(path_ + ": " + name + " lies outside of it");
    for (size_t at = first; at + sizeof(T) <= last; at += sizeof(T)) {
      T value;
      std::memcpy(&value, bytes_.data() + at, sizeof value);
      take(value);
    }
  }

  std::string path_;
  std::vector<char> bytes_;
  nlohmann::json header_;
  size_t begin_ = 0;
};

}  // namespace

Weights load_weights(const std::string& path) {
  const File file(path);
  Weights made;
  for (int n = 0; file.has(std::to_string(n) + ".self.q.w"); ++n) {
    const std::string layer = std::to_string(n) + ".";
    made.layers.push_back({file.norm(layer + "self.norm"), file.norm(layer + "cross.norm"),
                           file.norm(layer + "mlp.norm"), file.linear(layer + "self.q"), file.linear(layer + "self.kv"),
                           file.linear(layer + "self.out"), file.linear(layer + "cross.q"),
                           file.linear(layer + "cross.kv"), file.linear(layer + "cross.out"),
                           file.linear(layer + "mlp.up"), file.linear(layer + "mlp.down")});
  }
  made.norm = file.norm("norm");
  made.to_logits = file.linear("embed"), made.embed = file.matrix("embed");
  made.position = file.floats("pos"), made.positions = file.extent("pos", 0);
  made.audio = file.floats("audio_states"), made.frames = file.extent("audio_states", 0);
  made.prompt = file.integers("prompt"), made.end = file.integers("end").at(0);
  return made;
}

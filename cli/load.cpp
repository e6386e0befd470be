// Tensors from the files that the options of `run` and `check` name.
#include <algorithm>
#include <cstring>

#include "cli/bind.hpp"
#include "cli/failure.hpp"
#include "cli/file_io.hpp"
#include "cli/json_text.hpp"
#include "cli/npy.hpp"
#include "cli/safetensors.hpp"

namespace tessera::cli {
namespace {

constexpr const char* kNames[] = {"q",         "k",          "v",       "cu_seqlens_q", "cu_seqlens_k", "seqused_q",
                                  "seqused_k", "page_table", "leftpad", "batch_idx",    "bias",         "alibi_slopes",
                                  "sinks",     "q_scale",    "k_scale", "v_scale",      "v_mean",       "d_o",
                                  "d_lse"};
constexpr const char* kIgnored[] = {"o", "lse", "o_f64"};  // answers that a file may carry beside the operands

template <size_t N>
bool contains(const char* const (&names)[N], const std::string& name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Tensor copy(const TensorView& view) {
  Tensor tensor{view.dtype, view.shape, AlignedBytes(view.bytes, false)};
  if (view.bytes > 0) std::memcpy(tensor.data.data(), view.data, view.bytes);
  return tensor;
}

}  // namespace

std::map<std::string, Tensor> load_tensors(const FileOptions& options) {
  std::map<std::string, Tensor> tensors;
  if (!options.input.empty()) {
    if (!options.q.empty() || !options.k.empty() || !options.v.empty())
      bad_input("--input {}: given beside --q, --k or --v, expected one or the other", options.input);
    const std::string label = "--input " + options.input;
    const InputFile file(options.input, label, safetensors_size);
    for (const TensorView& view : read_safetensors(file.bytes(), label)) {
      if (contains(kIgnored, view.name)) continue;
      if (!contains(kNames, view.name))
        bad_input("{}: unknown tensor {}, expected names of the C interface (q, k, v, cu_seqlens_q, ...)", label,
                  quoted_name(view.name));
      tensors[view.name] = copy(view);
    }
    return tensors;
  }
  const struct {
    const char* name;
    const std::string& path;
  } arrays[] = {{"q", options.q}, {"k", options.k}, {"v", options.v}};
  for (const auto& array : arrays) {
    if (array.path.empty()) bad_input("--{}: absent, expected --q, --k and --v, or --input", array.name);
    const std::string label = fmt::format("--{} {}", array.name, array.path);
    const InputFile file(array.path, label, npy_size);
    tensors[array.name] = copy(read_npy(file.bytes(), label));
  }
  return tensors;
}

}  // namespace tessera::cli

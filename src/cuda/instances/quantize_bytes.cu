// The kernels of a quantisation.
#include <algorithm>

#include "../launch.hpp"
#include "../quantize.cuh"
#include "../quantize_held.cuh"
#include "../quantize_held_means.cuh"
#include "../quantize_rotated.cuh"

namespace tessera::cuda {
namespace {

using Kernel = void (*)(QuantizeParams);

// A kernel as rows of a head_dim launch it.
struct Form {
  Kernel kernel;
  int threads;
  size_t shared_bytes;
};
// Of rows that are held: `means` stores too, `shared` finds or stores.
struct HeldForms {
  Form means, own, shared;
};

template <int32_t kFrom>
Form means_of(const QuantizeParams& p) {
  const int threads = p.dim / kHeldChannels * (kQuantizeRows / kHeldRows<Held::kLessMean>);
  const int bytes = threads * (threads * kDeepMeanBytes <= kMostMeanBytes ? kDeepMeanBytes : kFlatMeanBytes);
  return {quantize_held_means_kernel<kFrom>, threads, static_cast<size_t>(std::max(bytes, p.dim * kQuantizeRows))};
}
template <class Tile>
HeldForms forms(int threads, size_t shared_bytes, const Form& means) {
  return {means,
          {quantize_held_own_kernel<Tile>, threads, shared_bytes},
          {quantize_held_shared_kernel<Tile>, threads, shared_bytes}};
}
template <int32_t kFrom, Held kHow>
HeldForms held(const QuantizeParams& p) {
  return forms<HeldTile<kFrom, kHow>>(p.dim / kHeldChannels * (kQuantizeRows / kHeldRows<kHow>),
                                      p.ordered ? static_cast<size_t>(p.dim) * kQuantizeRows : 0, means_of<kFrom>(p));
}
template <int32_t kFrom>
HeldForms held(const QuantizeParams& p) {
  if (p.rotation > 0) return held<kFrom, Held::kRotated>(p);
  return p.mean != nullptr ? held<kFrom, Held::kLessMean>(p) : held<kFrom, Held::kAsGiven>(p);
}
HeldForms held_of(const QuantizeParams& p) {
  if (p.x_dtype == TESSERA_F32) return held<TESSERA_F32>(p);
  return p.x_dtype == TESSERA_F16 ? held<TESSERA_F16>(p) : held<TESSERA_BF16>(p);
}

// Of rotated rows that threads have whole, and how many blocks of them a multiprocessor holds; null: of no others.
struct RotatedForms {
  Form own, shared;
  int blocks;
};
template <int32_t kFrom, int kDim, int kShare>
RotatedForms rotated() {
  using Tile = RotatedTile<kFrom, kDim, kShare>;
  return {{quantize_rotated_own_kernel<Tile>, Tile::kThreads, Tile::kSharedBytes},
          {quantize_rotated_shared_kernel<Tile>, Tile::kThreads, Tile::kSharedBytes},
          Tile::kBlocks};
}
template <int32_t kFrom>
RotatedForms rotated(const QuantizeParams& p) {
  if (p.dim == 64) return rotated<kFrom, 64, 1>();
  return p.dim == 128 ? rotated<kFrom, 128, 1>() : rotated<kFrom, 256, 2>();
}
RotatedForms rotated_of(const QuantizeParams& p, const QuantizeCut& cut) {
  const bool whole = p.held && p.rotation == p.dim && (p.dim == 64 || p.dim == 128 || p.dim == 256);
  if (!whole || p.mean != nullptr || p.ordered || p.x_dtype == TESSERA_F32) return {};
  RotatedForms forms = p.x_dtype == TESSERA_F16 ? rotated<TESSERA_F16>(p) : rotated<TESSERA_BF16>(p);
  // A kilobyte of each block is the system's.
  const auto fit = (cut.shared_bytes + 1024) / (static_cast<int64_t>(forms.own.shared_bytes) + 1024);
  forms.blocks = static_cast<int>(std::min<int64_t>(forms.blocks, fit));
  return forms.blocks > 0 ? forms : RotatedForms{};
}

// The launches of a call, one behind the other; nothing after one that failed.
class Launches {
 public:
  Launches(bool overlaps, cudaStream_t stream) : overlaps_(overlaps), stream_(stream) {}

  cudaError_t error() const { return error_; }
  void add(const Form& form, uint64_t blocks, const QuantizeParams& params) {
    if (error_ != cudaSuccess || blocks == 0) return;
    if (form.shared_bytes > 48 * 1024) {
      error_ = cudaFuncSetAttribute(form.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(form.shared_bytes));
      if (error_ != cudaSuccess) return;
    }
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<uint32_t>(blocks));
    config.blockDim = dim3(static_cast<uint32_t>(form.threads));
    config.dynamicSmemBytes = form.shared_bytes;
    config.stream = stream_;
    config.attrs = &attribute;
    config.numAttrs = overlaps_ && !first_ ? 1 : 0;  // the first one waits for what the caller put on the stream
    error_ = cudaLaunchKernelEx(&config, form.kernel, params);
    first_ = false;
  }

 private:
  bool overlaps_, first_ = true;
  cudaStream_t stream_;
  cudaError_t error_ = cudaSuccess;
};

// Group n of a call; past the last one: nothing.
struct Groups {
  const QuantizeParams& p;
  int32_t batches, heads;  // of a group

  int64_t in_a_batch() const { return (int64_t{p.heads} + heads - 1) / heads; }
  int64_t count() const { return in_a_batch() * ((int64_t{p.batch} + batches - 1) / batches); }
  // The heads of its sequences.
  uint32_t take(int64_t n, QuantizeGroup* group) const {
    if (n < 0 || n >= count()) return 0;
    const auto batch = static_cast<int32_t>(n / in_a_batch() * batches),
               head = static_cast<int32_t>(n % in_a_batch() * heads);
    const auto wide = static_cast<uint32_t>(std::min(heads, p.heads - head)),
               deep = static_cast<uint32_t>(std::min(batches, p.batch - batch));
    *group = {batch, head, Divisor(wide), Divisor(deep)};
    return wide * deep;
  }
};

// Launch n finds in group n what launch n + 1 stores it by. `finds`, `stores`: blocks a head that do.
void add_groups(Launches* launches, const Form& form, const Groups& groups, uint32_t finds, uint32_t stores,
                QuantizeParams p) {
  for (int64_t n = 0; n <= groups.count(); ++n) {
    p.find_blocks = groups.take(n, &p.find) * finds;
    p.store_blocks = groups.take(n - 1, &p.store) * stores;
    p.reversed = groups.count() == 1 && n == 1;  // from the end of what was read, which the cache may still hold
    launches->add(form, uint64_t{p.find_blocks} + p.store_blocks, p);
  }
}

void add_held(Launches* launches, const QuantizeParams& p, const QuantizeCut& cut, bool finds) {
  const HeldForms forms = held_of(p);
  const Groups all{p, p.batch, p.heads}, groups{p, cut.batches, cut.heads};
  const auto tiles = static_cast<uint32_t>(p.tiles), chunks = p.by_held.value;
  QuantizeParams with_means = p;
  with_means.means_find = finds && p.mean != nullptr && p.rotation == 0 && p.cells[1] <= 1;
  // In one group: beside blocks that store, those of the means take longer than a second reading of x.
  if (with_means.means_find) return add_groups(launches, forms.means, all, chunks, tiles, with_means);
  QuantizeParams whole = p;
  const uint32_t heads = all.take(0, &whole.store);
  if (p.mean != nullptr) {
    whole.find = whole.store, whole.find_blocks = heads * chunks;
    launches->add(forms.means, whole.find_blocks, whole);
    whole.find_blocks = 0, whole.reversed = true;
  }
  if (finds) return add_groups(launches, forms.shared, groups, tiles, tiles, p);
  whole.store_blocks = heads * tiles;
  launches->add(cut.own_scales ? forms.own : forms.shared, whole.store_blocks, whole);
}

void add_rotated(Launches* launches, const RotatedForms& forms, QuantizeParams p, const QuantizeCut& cut, bool finds) {
  const uint32_t blocks = Groups{p, p.batch, p.heads}.take(0, &p.find) * static_cast<uint32_t>(p.tiles);
  const uint32_t grid = std::min(blocks, static_cast<uint32_t>(cut.multiprocessors * forms.blocks));
  p.store = p.find;
  if (finds) {
    p.find_blocks = blocks;
    launches->add(forms.shared, grid, p);
    p.find_blocks = 0, p.reversed = true;  // from the end of what was read, which the cache may still hold
  }
  p.store_blocks = blocks;
  launches->add(cut.own_scales ? forms.own : forms.shared, grid, p);
}

void add_any(Launches* launches, QuantizeParams p, bool own_scales, bool finds) {
  const uint32_t heads = Groups{p, p.batch, p.heads}.take(0, &p.find);
  const auto tiles = static_cast<uint32_t>(p.tiles);
  p.store = p.find;
  if (p.mean != nullptr) {
    const auto chunks = static_cast<uint64_t>((p.dim + kQuantizeMeanChannels - 1) / kQuantizeMeanChannels);
    launches->add({quantize_means_kernel, kQuantizeMeanThreads, 0}, chunks * heads, p);
    p.reversed = true;
  }
  if (finds) {
    p.find_blocks = heads * tiles;
    launches->add({quantize_largest_kernel, kQuantizeThreads, 0}, p.find_blocks, p);
    p.find_blocks = 0, p.reversed = !p.reversed;
  }
  p.store_blocks = heads * tiles;
  launches->add({own_scales ? quantize_store_kernel<true> : quantize_store_kernel<false>, kQuantizeThreads,
                 p.ordered ? static_cast<size_t>(p.dim) * kQuantizePitch : 0},
                p.store_blocks, p);
}

}  // namespace

cudaError_t launch_quantize(const QuantizeParams& params, const QuantizeCut& cut, cudaStream_t stream) {
  QuantizeParams p = params;
  Launches launches(cut.overlaps && p.held, stream);
  const bool some = p.batch > 0 && p.tiles > 0, finds = p.scale != nullptr && !cut.own_scales;
  if (p.scale != nullptr && (finds || !some)) {
    constexpr int64_t kMostBlocks = 1 << 20;  // the kernel strides over the rest
    const int64_t cells = p.cells[0] * p.cells[1] * p.cells[2];
    const int64_t wanted = (cells + kQuantizeThreads - 1) / kQuantizeThreads;
    p.cell_value = some ? -0.0f : 1.0f;  // no magnitude yet, or the scale of nothing
    launches.add({quantize_cells_kernel, kQuantizeThreads, 0}, static_cast<uint64_t>(std::min(wanted, kMostBlocks)), p);
  }
  if (p.batch == 0) return launches.error();
  if (const RotatedForms forms = rotated_of(p, cut); forms.blocks > 0)
    add_rotated(&launches, forms, p, cut, finds);
  else if (p.held)
    add_held(&launches, p, cut, finds);
  else
    add_any(&launches, p, cut.own_scales, finds);
  return launches.error();
}

}  // namespace tessera::cuda

// Quantisation on the CPU. Means, the largest magnitudes and the bytes are a walk over the rows each, shared among
// the threads by tiles of 128 rows of one head: a mean is one task's sum in the order of the rows, a maximum does not
// depend on order, so results do not depend on the thread count. Arithmetic as cuda/quantize.cuh's, step by step.
#include "quantize.hpp"

#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "cpu/thread_pool.hpp"
#include "element.hpp"

namespace tessera::core {
namespace {

template <class Element>
void load_row(const void* data, int64_t at, int64_t dim, float* row) {
  const auto* from = static_cast<const typename Element::Storage*>(data) + at;
  for (int64_t c = 0; c < dim; ++c) row[c] = Element::load(from[c]);
}

// Memory of one task, made before any runs: an exception may not leave a thread.
struct Scratch {
  explicit Scratch(int64_t dim)
      : row(static_cast<size_t>(dim)), sum(static_cast<size_t>(dim)), bytes(static_cast<size_t>(kKeyGroup * dim)) {}
  std::vector<float> row;
  std::vector<double> sum;
  std::vector<uint8_t> bytes;
};

struct Rows {
  int64_t batch, first, count;  // first row in x, dense: 0
  int64_t slot;                 // first in y, order 1
};

class Body {
 public:
  explicit Body(const Quantize& quantize) : q_(quantize), args_(*quantize.args), negates_(args_.head_dim, 0) {
    unit_ = rotation_unit(q_.rotation);
    for (int32_t c = 0; c < args_.head_dim && q_.rotation > 0; ++c) negates_[c] = rotation_negates(args_.seed, c);
  }

  int64_t units() const { return args_.batch * args_.heads * q_.tiles(); }

  void find_mean(int64_t unit, Scratch* scratch) const {
    const int64_t batch = unit / args_.heads, head = unit % args_.heads;
    const Rows rows = rows_of(batch);
    float* row = scratch->row.data();
    std::vector<double>& sum = scratch->sum;
    std::fill(sum.begin(), sum.end(), 0.0);
    for (int64_t r = 0; r < rows.count; ++r) {
      load(rows, r, head, row);
      for (int64_t c = 0; c < args_.head_dim; ++c) sum[c] += std::isfinite(row[c]) ? static_cast<double>(row[c]) : 0.0;
    }
    float* mean = args_.mean + unit * args_.head_dim;
    for (int64_t c = 0; c < args_.head_dim; ++c)
      mean[c] = rows.count > 0 ? static_cast<float>(sum[c] / static_cast<double>(rows.count)) : 0.0f;
  }

  // Of every cell: the largest magnitude so far.
  void find_largest(int64_t unit, Scratch* scratch) const {
    std::vector<float>& row = scratch->row;
    visit(unit, [&](const Rows& rows, int64_t head, const Range& tile) {
      for (int64_t r = tile.begin; r < tile.end; ++r) {
        transform(rows, r, head, row.data());
        float largest = 0;
        for (const float value : row) {
          const float magnitude = std::fabs(value);
          if (magnitude > largest && magnitude <= kLargestFloat) largest = magnitude;
        }
        std::atomic_ref<float> cell(args_.scale_data[q_.cell(rows.batch, r, head)]);
        float seen = cell.load(std::memory_order_relaxed);
        while (largest > seen && !cell.compare_exchange_weak(seen, largest, std::memory_order_relaxed)) {
        }
      }
    });
  }

  void store(int64_t unit, Scratch* scratch) const {
    const int64_t dim = args_.head_dim;
    std::vector<float>& row = scratch->row;
    std::vector<uint8_t>& bytes = scratch->bytes;
    visit(unit, [&](const Rows& rows, int64_t head, const Range& tile) {
      auto* y = static_cast<uint8_t*>(args_.y_data) + head * q_.y.head_stride;
      for (int64_t group = tile.begin; group < tile.end; group += kKeyGroup) {
        const int64_t count = std::min(kKeyGroup, tile.end - group);
        if (q_.ordered()) std::memset(bytes.data(), 0, bytes.size());
        for (int64_t r = group; r < group + count; ++r) {
          transform(rows, r, head, row.data());
          encode(row.data(), args_.scale_data != nullptr ? args_.scale_data[q_.cell(rows.batch, r, head)] : 1.0f,
                 bytes.data() + key_slot(r - group) * dim);
          if (q_.ordered()) continue;
          const int64_t at =
              q_.packed() ? (rows.first + r) * q_.y.row_stride : rows.batch * q_.y.batch_stride + r * q_.y.row_stride;
          std::memcpy(y + at, bytes.data() + key_slot(r - group) * dim, static_cast<size_t>(dim));
        }
        if (!q_.ordered()) continue;
        for (int64_t c = 0; c < dim; ++c) {
          uint8_t* to = y + rows.batch * q_.y.batch_stride + c * q_.y.row_stride + rows.slot + group;
          for (int64_t s = 0; s < kKeyGroup; ++s) to[s] = bytes[s * dim + c];
        }
      }
    });
  }

 private:
  static constexpr float kLargestFloat = 0x1.fffffep127f;

  Rows rows_of(int64_t batch) const {
    if (!q_.packed()) return {batch, 0, args_.seqlen, 0};
    const int64_t first = args_.cu_seqlens[batch];
    return {batch, first, args_.cu_seqlens[batch + 1] - first, packed_first_slot(first, batch)};
  }

  // Calls f(rows, head, tile) for a unit with rows.
  template <class F>
  void visit(int64_t unit, const F& f) const {
    const int64_t tiles = q_.tiles(), tile = unit % tiles, head = unit / tiles % args_.heads;
    const Rows rows = rows_of(unit / tiles / args_.heads);
    const Range own{tile * kQuantizeTile, std::min((tile + 1) * kQuantizeTile, rows.count)};
    if (!own.empty()) f(rows, head, own);
  }

  void load(const Rows& rows, int64_t r, int64_t head, float* row) const {
    const int64_t at = (q_.packed() ? 0 : rows.batch * q_.x.batch_stride) + (rows.first + r) * q_.x.row_stride +
                       head * q_.x.head_stride;
    if (q_.x.dtype == TESSERA_F32) return load_row<ElementF32>(args_.x_data, at, args_.head_dim, row);
    if (q_.x.dtype == TESSERA_F16) return load_row<ElementF16>(args_.x_data, at, args_.head_dim, row);
    load_row<ElementBF16>(args_.x_data, at, args_.head_dim, row);
  }

  void transform(const Rows& rows, int64_t r, int64_t head, float* row) const {
    const int64_t dim = args_.head_dim;
    load(rows, r, head, row);
    if (args_.subtract_mean == 1) {
      const float* mean = args_.mean + (rows.batch * args_.heads + head) * dim;
      for (int64_t c = 0; c < dim; ++c) row[c] -= mean[c];
    }
    if (q_.rotation == 0) return;
    for (int64_t c = 0; c < dim; ++c) row[c] = negates_[c] != 0 ? -row[c] : row[c];
    for (int64_t half = 1; half < q_.rotation; half *= 2) {
      for (int64_t c = 0; c < dim; c += 2 * half) {
        for (int64_t i = c; i < c + half; ++i) {
          const float low = row[i], high = row[i + half];
          row[i] = low + high;
          row[i + half] = low - high;
        }
      }
    }
    for (int64_t c = 0; c < dim; ++c) row[c] *= unit_;
  }

  void encode(const float* row, float scale, uint8_t* bytes) const {
    const float unit = 1.0f / scale;
    if (q_.y.dtype == TESSERA_INT8) {
      for (int64_t c = 0; c < args_.head_dim; ++c) bytes[c] = static_cast<uint8_t>(float_to_int8(row[c] * unit));
    } else {
      for (int64_t c = 0; c < args_.head_dim; ++c) bytes[c] = float_bits_to_e4m3(float_bits(row[c] * unit));
    }
  }

  const Quantize& q_;
  const tessera_quantize_args& args_;
  std::vector<uint8_t> negates_;
  float unit_;
};

// Calls step(n, scratch) for every n below `count`, which the tasks claim one by one.
template <class Step>
void for_each(const tessera_executor& executor, int64_t count, std::vector<Scratch>* scratch, const Step& step) {
  std::atomic<int64_t> next{0};
  const auto claim = [&](int64_t task) {
    for (int64_t n; (n = next.fetch_add(1, std::memory_order_relaxed)) < count;)
      step(n, &(*scratch)[static_cast<size_t>(task)]);
  };
  cpu::parallel_tasks(executor, std::min(static_cast<int64_t>(scratch->size()), count), claim);
}

// Calls f with each distinct scale.
template <class F>
void for_each_cell(const Quantize& quantize, const F& f) {
  float* scale = quantize.args->scale_data;
  for (int64_t b = 0; b < quantize.cells[0]; ++b) {
    for (int64_t r = 0; r < quantize.cells[1]; ++r) {
      for (int64_t h = 0; h < quantize.cells[2]; ++h)
        f(&scale[b * quantize.scale_stride[0] + r * quantize.scale_stride[1] + h * quantize.scale_stride[2]]);
    }
  }
}

}  // namespace

void run_quantize(const Quantize& quantize, const tessera_executor& executor) {
  const tessera_quantize_args& args = *quantize.args;
  const Body body(quantize);
  constexpr double kElementsPerTask = 32768;  // tens of microseconds, worth waking a thread for
  const double elements =
      static_cast<double>(args.batch) * static_cast<double>(args.seqlen) * args.heads * args.head_dim;
  const int64_t tasks =
      std::clamp<int64_t>(static_cast<int64_t>(std::min(elements / kElementsPerTask, 1e6)), 1, executor.threads);
  std::vector<Scratch> scratch(static_cast<size_t>(tasks), Scratch(args.head_dim));
  if (args.subtract_mean == 1)
    for_each(executor, args.batch * args.heads, &scratch, [&](int64_t n, Scratch* own) { body.find_mean(n, own); });
  if (args.scale_data != nullptr) {
    for_each_cell(quantize, [](float* cell) { *cell = 0; });
    for_each(executor, body.units(), &scratch, [&](int64_t n, Scratch* own) { body.find_largest(n, own); });
    for_each_cell(quantize, [&](float* cell) { *cell = scale_of_largest(*cell, quantize.limit()); });
  }
  for_each(executor, body.units(), &scratch, [&](int64_t n, Scratch* own) { body.store(n, own); });
}

}  // namespace tessera::core

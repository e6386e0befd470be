// The gradient of a bias: dX of every (sequence, head) that shares an element, summed in rising order of sequence,
// head, row, key. A task owns a rectangle of d_bias, up to a block of rows x a chunk of keys (all rows or keys where
// one element serves them), and recomputes scores for it: two products beside backward's five, in exchange for no
// copies of d_bias and no order among tasks. Invariant: every element of the rectangle is written, 0 where nothing is
// kept.
#pragma once

#include "backward_scores.hpp"
#include "convert.hpp"

namespace tessera::cpu::TESSERA_CPU_ISA {

template <class V>
class BiasRun {
  using T = typename V::Scalar;
  static constexpr int64_t kRows = V::kRows, kLanes = V::kLanes;

 public:
  BiasRun(const BackwardCall& call, const BiasTask& task, std::byte* workspace)
      : task_(task),
        problem_(*call.problem),
        tiles_(call.tiles),
        scores_(call, workspace),
        sums_(ScoreGradients<V>::template piece<T>(workspace, tiles_.d_bias_at)),
        shares_rows_(problem_.d_bias.stride[2] == 0),
        shares_keys_(problem_.d_bias.stride[3] == 0) {}

  void run() {
    const int64_t rows = shares_rows_ ? 1 : task_.row_end - task_.row_begin;
    std::memset(sums_, 0, static_cast<size_t>(rows * kScoreStride) * sizeof(T));
    for (int64_t b = task_.batch_begin; b < task_.batch_end; ++b) {
      const core::Sequence sequence = core::locate_sequence(problem_, scores_.tensors, b);
      for (int32_t h = task_.head_begin; h < task_.head_end; ++h) {
        scores_.begin_heads(sequence, b, h, h + 1);
        const int64_t row_end = at_most(task_.row_end, sequence.seqlen_q);
        for (int64_t row = task_.row_begin; row < row_end; row += tiles_.rows) {
          add_block(row, at_most(row_end - row, tiles_.rows), h / problem_.group);
        }
      }
    }
    const int64_t keys = shares_keys_ ? 1 : task_.key_end - task_.key_begin;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < keys; ++j) store(task_.row_begin + r, task_.key_begin + j, sums_[r * kScoreStride + j]);
    }
  }

 private:
  void add_block(int64_t first, int64_t count, int32_t kv_head) {
    const Range seen = scores_.visible(first, count, {task_.key_begin, task_.key_end});
    if (seen.empty()) return;
    scores_.prepare_rows(first, first + count, nullptr);
    scores_.load_rows(first, count);
    const int64_t key_end = at_most(task_.key_end, scores_.sequence.seqlen_k);
    for (int64_t key = task_.key_begin; key < key_end; key += tiles_.chunk) {
      const Range keys = {key, at_most(key + tiles_.chunk, key_end)};
      if (scores_.visible(first, count, keys).empty()) continue;
      scores_.load_keys(keys, kv_head, nullptr);
      for (int64_t row = 0; row < count; row += kRows) {
        const int64_t strip = at_most(count - row, kRows);
        const Range mine = scores_.visible(first + row, strip, keys);
        if (mine.empty()) continue;
        const Range columns = {mine.begin - key, mine.end - key};
        scores_.differentiate(row, strip, keys, columns, columns, false);
        for (int64_t r = row; r < row + strip; ++r) add_row(first + r, r, columns);
      }
    }
  }

  void add_row(int64_t position, int64_t r, Range columns) {
    const T* from = scores_.grads + r * kScoreStride;
    T* to = sums_ + (shares_rows_ ? 0 : position - task_.row_begin) * kScoreStride;
    const Range whole = {round_down(columns.begin, kLanes), round_up(columns.end, kLanes)};
    if (shares_keys_) {
      V sum = V::zero();
      for (int64_t j = whole.begin; j < whole.end; j += kLanes) sum = sum + V::load(from + j);
      to[0] += V::reduce_sum(sum);
    } else {
      for (int64_t j = whole.begin; j < whole.end; j += kLanes) (V::load(to + j) + V::load(from + j)).store(to + j);
    }
  }

  void store(int64_t row, int64_t key, T value) const {
    const core::BiasOperand& out = problem_.d_bias;
    const int64_t at = task_.batch_begin * out.stride[0] + task_.head_begin * out.stride[1] + row * out.stride[2] +
                       key * out.stride[3];
    const auto put = [&](auto stored) {
      std::memcpy(static_cast<std::byte*>(scores_.tensors.d_bias) + at * int64_t{sizeof stored}, &stored,
                  sizeof stored);
    };
    if (out.dtype == TESSERA_F64) {
      put(double(value));
    } else if (out.dtype == TESSERA_F32) {
      put(float(value));
    } else if (out.dtype == TESSERA_F16) {
      put(f16_from_float(float(value)));
    } else {
      put(bf16_from_float(float(value)));
    }
  }

  const BiasTask& task_;
  const core::Problem& problem_;
  const BackwardTiles& tiles_;
  ScoreGradients<V> scores_;
  T* sums_;
  const bool shares_rows_, shares_keys_;
};

template <class V>
void bias_task(const BackwardCall& call, const BiasTask& task, std::byte* workspace) {
  BiasRun<V>(call, task, workspace).run();
}

}  // namespace tessera::cpu::TESSERA_CPU_ISA

#include "cache.hpp"

#include <algorithm>

Cache::Cache(const CacheShape& shape) : shape_(shape), owned_(static_cast<size_t>(shape.sequences)) {
  max_pages_ = paged() ? (shape.seqlen + shape.page_size - 1) / shape.page_size : 1;
  units_ = shape.owners * max_pages_;
  const int64_t slots = units_ * (paged() ? shape.page_size : shape.seqlen);
  layer_bytes_ = slots * shape.heads * shape.head_dim * (shape.dtype == TESSERA_F32 ? 4 : 2);
  // Given out in an order that jumps about, as after a while of serving.
  for (int64_t n = 0; n < units_; ++n) free_.push_back(static_cast<int32_t>(n % 2 == 0 ? n / 2 : units_ - 1 - n / 2));
}

bool Cache::reserve(int64_t sequence, int64_t length) {
  std::vector<int32_t>& mine = owned_[static_cast<size_t>(sequence)];
  const int64_t needed = paged() ? (length + shape_.page_size - 1) / shape_.page_size : 1;
  while (static_cast<int64_t>(mine.size()) < needed) {
    if (free_.empty() || length > shape_.seqlen) return false;
    mine.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

void Cache::release(int64_t sequence) {
  std::vector<int32_t>& mine = owned_[static_cast<size_t>(sequence)];
  free_.insert(free_.end(), mine.begin(), mine.end());
  mine.clear();
}

void Cache::share(int64_t sequence, int64_t owner) {
  owned_[static_cast<size_t>(sequence)] = owned_[static_cast<size_t>(owner)];
}

std::vector<int32_t> Cache::places(const std::vector<int64_t>& sequences) const {
  const auto each = static_cast<size_t>(max_pages_);
  std::vector<int32_t> table(sequences.size() * each, -1);  // places past a sequence's pages may hold anything
  for (size_t n = 0; n < sequences.size(); ++n) {
    const std::vector<int32_t>& mine = owned_[static_cast<size_t>(sequences[n])];
    std::copy(mine.begin(), mine.end(), table.begin() + static_cast<int64_t>(n * each));
  }
  return table;
}

void Cache::describe(tessera::Problem& problem, int64_t batch) const {
  problem.set_dtype(shape_.dtype).set_batch(batch).set_head_dim(shape_.head_dim).set_flags(TESSERA_FLAG_SEQUSED_K);
  problem.heads_kv = shape_.heads, problem.seqlen_k = shape_.seqlen;
  if (paged()) {
    problem.layout_kv = TESSERA_PAGED;
    problem.page_size = shape_.page_size, problem.num_pages = units_, problem.max_pages = max_pages_;
  } else {
    problem.batch_kv = units_;
    problem.set_flags(TESSERA_FLAG_BATCH_IDX);
  }
}

void Cache::bind(int64_t layer, const int32_t* places, tessera::Tensors& tensors) const {
  tensors.k = k(layer), tensors.v = v(layer);
  (paged() ? tensors.page_table : tensors.batch_idx) = places;
}

size_t Cache::bytes() const { return static_cast<size_t>(2 * shape_.layers * layer_bytes_); }

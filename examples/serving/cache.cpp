#include "cache.hpp"

#include <algorithm>

Cache::Cache(int64_t layers, int64_t rows, int64_t owners, int64_t seqlen, int32_t heads, int32_t head_dim,
             int32_t page_size)
    : seqlen_(seqlen), heads_(heads), head_dim_(head_dim), page_size_(page_size), owned_(static_cast<size_t>(rows)) {
  max_pages_ = page_size > 0 ? (seqlen + page_size - 1) / page_size : 1;
  units_ = owners * max_pages_;
  layer_elements_ = units_ * (page_size > 0 ? page_size : seqlen) * heads * head_dim;
  data_.assign(static_cast<size_t>(2 * layers * layer_elements_), __builtin_nanf(""));
  // Given out in an order that jumps about, as after a while of serving.
  for (int64_t n = 0; n < units_; ++n) free_.push_back(static_cast<int32_t>(n % 2 == 0 ? n / 2 : units_ - 1 - n / 2));
}

bool Cache::reserve(int64_t row, int64_t length) {
  std::vector<int32_t>& mine = owned_[static_cast<size_t>(row)];
  const int64_t needed = paged() ? (length + page_size_ - 1) / page_size_ : 1;
  while (static_cast<int64_t>(mine.size()) < needed) {
    if (free_.empty() || length > seqlen_) return false;
    mine.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

void Cache::release(int64_t row) {
  std::vector<int32_t>& mine = owned_[static_cast<size_t>(row)];
  free_.insert(free_.end(), mine.begin(), mine.end());
  mine.clear();
}

void Cache::share(int64_t row, int64_t owner) { owned_[static_cast<size_t>(row)] = owned_[static_cast<size_t>(owner)]; }

void Cache::describe(tessera::Problem& problem, int64_t batch) const {
  problem.set_batch(batch).set_head_dim(head_dim_).set_flags(TESSERA_FLAG_SEQUSED_K);
  problem.heads_kv = heads_, problem.seqlen_k = seqlen_;
  if (paged()) {
    problem.layout_kv = TESSERA_PAGED;
    problem.page_size = page_size_, problem.num_pages = units_, problem.max_pages = max_pages_;
  } else {
    problem.batch_kv = units_;
    problem.set_flags(TESSERA_FLAG_BATCH_IDX);
  }
}

void Cache::bind(int64_t layer, const std::vector<int64_t>& rows, tessera::Tensors& tensors) {
  tensors.k = k(layer), tensors.v = v(layer);
  table_.assign(rows.size() * static_cast<size_t>(max_pages_), -1);  // slots past a sequence's pages may hold anything
  for (size_t n = 0; n < rows.size(); ++n) {
    const std::vector<int32_t>& mine = owned_[static_cast<size_t>(rows[n])];
    std::copy(mine.begin(), mine.end(), table_.begin() + static_cast<int64_t>(n) * max_pages_);
  }
  (paged() ? tensors.page_table : tensors.batch_idx) = table_.data();
}

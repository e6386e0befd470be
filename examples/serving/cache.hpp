// Key/value caches of every layer, dense or in pages, in the arrays that a tessera_problem describes: the part of an
// engine that Tessera does not own. Storage is never cleared: what lies beside the used slots reaches no result.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/tessera.hpp"

class Cache {
 public:
  // Room for `rows` sequences of `seqlen` keys. page_size 0: dense. `owners` rows of the dense cache, or as many
  // sequences' worth of pages, are there to be given out; sequences may share them.
  Cache(int64_t layers, int64_t rows, int64_t owners, int64_t seqlen, int32_t heads, int32_t head_dim,
        int32_t page_size);

  bool paged() const { return page_size_ > 0; }
  // Makes room for `length` keys of sequence `row`, one page after another; dense: takes a row of the cache. False
  // where none is left.
  bool reserve(int64_t row, int64_t length);
  void release(int64_t row);
  // Sequence `row` reads what `owner` holds; a shared prefix is stored once.
  void share(int64_t row, int64_t owner);

  // Sizes and layout of the cache, for `batch` sequences: the problem of attention over it and of appends to it.
  void describe(tessera::Problem& problem, int64_t batch) const;
  // Keys and values of one layer and the places of the sequences `rows`, in the batch's order.
  void bind(int64_t layer, const std::vector<int64_t>& rows, tessera::Tensors& tensors);
  float* k(int64_t layer) { return data_.data() + 2 * layer * layer_elements_; }
  float* v(int64_t layer) { return data_.data() + (2 * layer + 1) * layer_elements_; }

 private:
  int64_t seqlen_, max_pages_, layer_elements_;
  int32_t heads_, head_dim_, page_size_;
  int64_t units_;                            // pages, or rows of the dense cache
  std::vector<float> data_;                  // [layer, k or v, page or row, slot, head, dim]
  std::vector<int32_t> free_;                // units that nobody owns
  std::vector<std::vector<int32_t>> owned_;  // by sequence: its pages in order, or its row
  std::vector<int32_t> table_;               // of the batch at hand: [batch, max_pages], or batch_idx
};

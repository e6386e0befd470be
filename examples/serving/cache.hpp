// Key/value caches of every layer, dense or in pages, in the arrays that a tessera_problem describes: the part of an
// engine that Tessera does not own. Which sequence has which row or pages is kept on the host; keys and values lie in
// one allocation of the caller's, on the host or on a device. It is never cleared: what lies beside the used slots
// reaches no result.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/tessera.hpp"

struct CacheShape {
  int64_t layers, sequences;
  int64_t owners;  // rows of the dense cache, or as many sequences' worth of pages, that can be given out
  int64_t seqlen;  // room of a sequence, in keys
  int32_t heads, head_dim;
  int32_t page_size;  // 0: dense
  int32_t dtype;      // TESSERA_F32 or TESSERA_F16
};

class Cache {
 public:
  explicit Cache(const CacheShape& shape);

  bool paged() const { return shape_.page_size > 0; }
  // Makes room for `length` keys of a sequence, one page after another; dense: takes a row of the cache. False where
  // none is left.
  bool reserve(int64_t sequence, int64_t length);
  void release(int64_t sequence);
  // `sequence` reads what `owner` holds; a shared prefix is stored once.
  void share(int64_t sequence, int64_t owner);

  // Where the sequences lie, in the batch's order: [sequences, places_each()], ids of pages or of rows.
  std::vector<int32_t> places(const std::vector<int64_t>& sequences) const;
  int64_t places_each() const { return max_pages_; }

  // Sizes, type and layout of the cache, for `batch` sequences: the problem of attention over it and of appends to it.
  void describe(tessera::Problem& problem, int64_t batch) const;
  // Keys and values of one layer, and the places, where the kernels read them.
  void bind(int64_t layer, const int32_t* places, tessera::Tensors& tensors) const;

  size_t bytes() const;
  void set_storage(void* data) { data_ = static_cast<char*>(data); }  // bytes() of them
  void* k(int64_t layer) const { return data_ + 2 * layer * layer_bytes_; }
  void* v(int64_t layer) const { return data_ + (2 * layer + 1) * layer_bytes_; }

 private:
  CacheShape shape_;
  int64_t max_pages_, units_;  // units: pages, or rows of the dense cache
  int64_t layer_bytes_;
  char* data_ = nullptr;                     // [layer, k or v, page or row, slot, head, dim]
  std::vector<int32_t> free_;                // units that nobody owns
  std::vector<std::vector<int32_t>> owned_;  // by sequence: its pages in order, or its row
};

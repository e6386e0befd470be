// A random call of the C interface: a problem of small sizes with any layout, strides, flags and options, and for each
// operand a buffer of exactly the bytes that its sizes and strides reach, so that AddressSanitizer sees one too many.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "fuzz.hpp"
#include "tessera/tessera.h"

namespace tessera::fuzz {

// A heap block of exactly `bytes`, whose address is a multiple of `align` and of nothing larger.
class Block {
 public:
  Block(size_t bytes, size_t align);
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> storage_;
  std::byte* data_;
  size_t bytes_;
};

struct Call {
  tessera_problem problem;
  tessera_tensors tensors;
  tessera_append_args append;  // tensors.append points here where the call appends
  std::vector<Block> blocks;
  std::vector<size_t> outputs;  // which blocks the call may write
  bool too_large = false;       // not worth running
};

// Problem from `bytes`, and nothing else yet.
void make_problem(Bytes& bytes, tessera_problem* problem);
// Buffers and metadata for a problem that could be planned.
void make_tensors(Bytes& bytes, Call* call);

}  // namespace tessera::fuzz

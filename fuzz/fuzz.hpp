// What the fuzz targets share: a reader that turns bytes into small numbers, and a check that ends a failing run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace tessera::fuzz {

// Aborts with the sentence, so that libFuzzer keeps the input.
inline void require(bool condition, const char* sentence) {
  if (condition) return;
  std::fprintf(stderr, "fuzz: %s\n", sentence);
  std::abort();
}

// Bytes consumed from the front; zeros after the last.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  uint8_t byte() { return at_ < size_ ? data_[at_++] : 0; }
  // A number in [low, high].
  int64_t number(int64_t low, int64_t high) { return low + word() % (high - low + 1); }
  // True once in n.
  bool once_in(int n) { return byte() % n == n - 1; }
  int64_t word() { return byte() | byte() << 8; }

 private:
  const uint8_t* data_;
  size_t size_, at_ = 0;
};

}  // namespace tessera::fuzz

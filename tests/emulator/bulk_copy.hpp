// Bulk copies and TMA: they land in any order, at once, later, or when nothing else can go on, as the seed has it, and
// read their source when they land.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensor_map.hpp"
#include "where.hpp"

namespace tessera::emulator {

struct BulkCopy {
  enum class Kind { box, bytes, to_global, add_to_global };
  Kind kind;
  char* to;
  const char* from;    // null for a box
  uint32_t bytes = 0;  // of a box: all of it, whatever lies outside of the tensor
  TensorMap map{};
  int32_t at[5]{};
  uint64_t* barrier = nullptr;  // of a copy to shared memory
  uint64_t phase = 0;
  int thread = 0;  // of a copy to global memory: whose, and in which of its groups
  uint32_t group = 0;
  Where where{};
};

class BulkCopies {
 public:
  // `land`: 0 at once, 1 when drawn, 2 as late as can be.
  void begin(int land, size_t threads);
  // By the running thread.
  void copy_box(void* to, const void* map, const int32_t* at, int rank, uint64_t* barrier, Where where);
  void copy(void* to, const void* from, uint32_t bytes, uint64_t* barrier, Where where);
  void copy_to_global(void* to, const void* from, uint32_t bytes, bool add, Where where);
  void commit_group();
  void wait_group(uint32_t open);

  // Lands one that is under way; false: there is none.
  bool land_one();
  // The same, now and then.
  void progress();
  // After the block: nothing is under way.
  void end() const;

 private:
  void start(const BulkCopy& copy);
  void land(const BulkCopy& copy);

  int land_ = 0;
  std::vector<BulkCopy> under_way_;
  std::vector<uint32_t> groups_;  // that each thread has committed
};

}  // namespace tessera::emulator

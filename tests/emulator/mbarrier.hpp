// The mbarriers of a block: phases that complete when all arrivals and all announced bytes have come.
// Invariant: what a phase was promised comes in that phase, or the run ends; the word in shared memory shows when
// something else wrote over a barrier.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "where.hpp"

namespace tessera::emulator {

struct Thread;

class Mbarriers {
 public:
  void clear() { barriers_.clear(); }
  void init(uint64_t* at, uint32_t count, Where where);
  void arrive(uint64_t* at, uint32_t count, Where where);
  // Announces bytes to the current phase.
  void expect_bytes(uint64_t* at, uint32_t bytes, Where where);
  // Whether the phase of this parity has completed. Where it has not, other threads go first, until one does.
  bool try_wait(uint64_t* at, uint32_t parity, Where where);
  // The same at once.
  bool test(uint64_t* at, uint32_t parity, Where where);

  // The phase that a copy issued now belongs to, and its end.
  uint64_t phase(uint64_t* at, Where where);
  void complete_bytes(uint64_t* at, uint64_t phase, uint32_t bytes, Where where);

  // Which barrier, what its phase lacks.
  std::string describe(const void* at) const;

 private:
  struct Barrier {
    uint64_t* at;
    uint32_t count, missing;
    int64_t bytes;  // announced and not yet there
    uint64_t phase;
    std::vector<Thread*> waiting;
  };
  Barrier& find(uint64_t* at, const char* what, Where where);
  void end_phase(Barrier& barrier, Where where);

  std::vector<Barrier> barriers_;
};

}  // namespace tessera::emulator

#include "mbarrier.hpp"

#include "block.hpp"
#include "failure.hpp"
#include "shared_memory.hpp"

namespace tessera::emulator {
namespace {

// PTX ISA, "mbarrier object contents": counts and bytes at most.
constexpr uint32_t kMostArrivals = (1u << 20) - 1;
constexpr int64_t kMostBytes = (1 << 20) - 1;
// What the word of a barrier holds, by the parity of its phase.
constexpr uint64_t kWord = 0x6d62617272696572;
uint64_t word(uint64_t phase) { return kWord ^ (phase & 1) << 63; }

std::string name_of(const void* at) {
  const int64_t offset = shared_offset(at);
  char text[60];
  if (offset < 0) {
    std::snprintf(text, sizeof text, "the mbarrier at %p", at);
  } else {
    std::snprintf(text, sizeof text, "the mbarrier at byte %lld of shared memory", static_cast<long long>(offset));
  }
  return text;
}

}  // namespace

Mbarriers::Barrier& Mbarriers::find(uint64_t* at, const char* what, Where where) {
  for (Barrier& barrier : barriers_) {
    if (barrier.at != at) continue;
    if (*at != word(barrier.phase)) fail(where, "%s on %s, which was written over", what, name_of(at).c_str());
    return barrier;
  }
  fail(where, "%s on %s, which was never initialised", what, name_of(at).c_str());
}

void Mbarriers::init(uint64_t* at, uint32_t count, Where where) {
  if (reinterpret_cast<uintptr_t>(at) % 8 != 0)
    fail(where, "mbarrier.init of %s, no multiple of 8", name_of(at).c_str());
  if (count == 0 || count > kMostArrivals) fail(where, "mbarrier.init for %u arrivals; expected 1 to 2^20 - 1", count);
  for (const Barrier& barrier : barriers_) {
    if (barrier.at == at && *at == word(barrier.phase))
      fail(where, "mbarrier.init of %s, which is one already", name_of(at).c_str());
  }
  std::erase_if(barriers_, [at](const Barrier& barrier) { return barrier.at == at; });
  *at = word(0);
  barriers_.push_back({at, count, count, 0, 0, {}});
}

void Mbarriers::arrive(uint64_t* at, uint32_t count, Where where) {
  Block::running()->pause();
  Barrier& barrier = find(at, "mbarrier.arrive", where);
  if (count == 0 || count > barrier.missing) {
    fail(where, "%u arrivals at %s, whose phase %llu lacks %u arrivals and %lld bytes", count, name_of(at).c_str(),
         static_cast<unsigned long long>(barrier.phase), barrier.missing, static_cast<long long>(barrier.bytes));
  }
  barrier.missing -= count;
  end_phase(barrier, where);
}

void Mbarriers::expect_bytes(uint64_t* at, uint32_t bytes, Where where) {
  Barrier& barrier = find(at, "mbarrier.expect_tx", where);
  barrier.bytes += bytes;
  if (barrier.bytes > kMostBytes)
    fail(where, "%s expects %lld bytes; it counts to 2^20 - 1", name_of(at).c_str(),
         static_cast<long long>(barrier.bytes));
}

uint64_t Mbarriers::phase(uint64_t* at, Where where) { return find(at, "a bulk copy", where).phase; }

void Mbarriers::complete_bytes(uint64_t* at, uint64_t phase, uint32_t bytes, Where where) {
  Barrier& barrier = find(at, "the end of a bulk copy", where);
  if (barrier.phase != phase) {
    fail(where,
         "%u bytes of a bulk copy come to phase %llu of %s, but were issued in phase %llu, which ended without them: "
         "it expected too few bytes",
         bytes, static_cast<unsigned long long>(barrier.phase), name_of(at).c_str(),
         static_cast<unsigned long long>(phase));
  }
  barrier.bytes -= bytes;
  end_phase(barrier, where);
}

void Mbarriers::end_phase(Barrier& barrier, Where where) {
  if (barrier.missing != 0 || barrier.bytes > 0) return;
  if (barrier.bytes < 0) {
    fail(where, "%lld bytes more than phase %llu of %s expected", -static_cast<long long>(barrier.bytes),
         static_cast<unsigned long long>(barrier.phase), name_of(barrier.at).c_str());
  }
  ++barrier.phase;
  barrier.missing = barrier.count;
  *barrier.at = word(barrier.phase);
  Block& block = *Block::running();
  for (const Thread* thread : barrier.waiting) block.wake(thread->warp, 1u << thread->lane);
  barrier.waiting.clear();
  block.note_progress();
}

bool Mbarriers::try_wait(uint64_t* at, uint32_t parity, Where where) {
  if (parity > 1) fail(where, "mbarrier.try_wait for parity %u; expected 0 or 1", parity);
  Barrier& barrier = find(at, "mbarrier.try_wait", where);
  if ((barrier.phase & 1) != parity) return true;
  Block& block = *Block::running();
  barrier.waiting.push_back(&block.thread());
  block.wait_on(at, "mbarrier.try_wait", where);
  return (find(at, "mbarrier.try_wait", where).phase & 1) != parity;
}

bool Mbarriers::test(uint64_t* at, uint32_t parity, Where where) {
  if (parity > 1) fail(where, "mbarrier.test_wait for parity %u; expected 0 or 1", parity);
  return (find(at, "mbarrier.test_wait", where).phase & 1) != parity;
}

std::string Mbarriers::describe(const void* at) const {
  for (const Barrier& barrier : barriers_) {
    if (barrier.at != at) continue;
    char text[120];
    std::snprintf(text, sizeof text, " (phase %llu lacks %u of %u arrivals, %lld bytes)",
                  static_cast<unsigned long long>(barrier.phase), barrier.missing, barrier.count,
                  static_cast<long long>(barrier.bytes));
    return name_of(at) + text;
  }
  return name_of(at);
}

}  // namespace tessera::emulator

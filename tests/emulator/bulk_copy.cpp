#include "bulk_copy.hpp"

#include <cstring>
#include <utility>

#include "block.hpp"
#include "failure.hpp"
#include "shared_memory.hpp"

namespace tessera::emulator {
namespace {

int number(const Thread& thread) { return thread.warp * kLanes + thread.lane; }

void check(const void* pointer, const char* what, uint32_t alignment, Where where) {
  if (reinterpret_cast<uintptr_t>(pointer) % alignment != 0)
    fail(where, "a bulk copy %s %p, no multiple of %u", what, pointer, alignment);
}

// The box's rows one behind the other, 16-byte chunks swizzled by the bits of their shared addresses, zeros for what is
// outside of the tensor.
void copy_rows(const BulkCopy& copy) {
  const TensorMap& map = copy.map;
  const uint32_t row_bytes = uint32_t{map.box[0]} * map.element_bytes, rows = copy.bytes / row_bytes;
  const uint32_t shared = shared_address(copy.to, copy.where);
  const uint32_t swizzle = map.span == 0 ? 0 : map.span / 16u - 1;
  for (uint32_t row = 0; row < rows; ++row) {
    const char* from = map.data;
    bool inside = true;
    uint32_t rest = row;
    for (int i = 1; i < map.rank; ++i) {
      const int64_t at = int64_t{copy.at[i]} + rest % map.box[i];
      rest /= map.box[i];
      inside = inside && at >= 0 && at <= int64_t{map.extent[i]};
      if (inside) from += static_cast<uint64_t>(at) * map.stride[i - 1];
    }
    for (uint32_t byte = 0; byte < row_bytes; byte += 16) {
      const uint32_t address = shared + row * row_bytes + byte;
      char* const to = copy.to + ((address ^ (address >> 7 & swizzle) << 4) - shared);
      const int64_t first = int64_t{copy.at[0]} + byte / map.element_bytes, count = 16 / map.element_bytes;
      if (inside && first >= 0 && first + count - 1 <= int64_t{map.extent[0]}) {
        std::memcpy(to, from + first * map.element_bytes, 16);
        continue;
      }
      std::memset(to, 0, 16);
      for (int64_t e = 0; inside && e < count; ++e) {
        if (first + e >= 0 && first + e <= int64_t{map.extent[0]})
          std::memcpy(to + e * map.element_bytes, from + (first + e) * map.element_bytes, map.element_bytes);
      }
    }
  }
}

}  // namespace

void BulkCopies::begin(int land, size_t threads) {
  land_ = land;
  under_way_.clear();
  groups_.assign(threads, 0);
}

void BulkCopies::copy_box(void* to, const void* map, const int32_t* at, int rank, uint64_t* barrier, Where where) {
  BulkCopy copy{.kind = BulkCopy::Kind::box, .to = static_cast<char*>(to), .from = nullptr};
  copy.map = read_tensor_map(map, where);
  if (copy.map.rank != rank) fail(where, "a bulk copy with %d coordinates by a map of rank %d", rank, copy.map.rank);
  copy.bytes = copy.map.element_bytes;
  for (int i = 0; i < rank; ++i) {
    copy.at[i] = at[i];
    copy.bytes *= copy.map.box[i];
  }
  shared_pointer(shared_address(to, where), copy.bytes, 128, "cp.async.bulk.tensor", where);
  copy.barrier = barrier;
  copy.where = where;
  start(copy);
}

void BulkCopies::copy(void* to, const void* from, uint32_t bytes, uint64_t* barrier, Where where) {
  if (bytes == 0 || bytes % 16 != 0) fail(where, "cp.async.bulk of %u bytes; expected a multiple of 16", bytes);
  check(from, "from", 16, where);
  shared_pointer(shared_address(to, where), bytes, 16, "cp.async.bulk", where);
  start({.kind = BulkCopy::Kind::bytes,
         .to = static_cast<char*>(to),
         .from = static_cast<const char*>(from),
         .bytes = bytes,
         .barrier = barrier,
         .where = where});
}

void BulkCopies::copy_to_global(void* to, const void* from, uint32_t bytes, bool add, Where where) {
  if (bytes == 0 || bytes % 16 != 0) fail(where, "cp.async.bulk of %u bytes; expected a multiple of 16", bytes);
  check(to, "to", 16, where);
  shared_pointer(shared_address(from, where), bytes, 16, "cp.async.bulk", where);
  const int thread = number(Block::running()->thread());
  start({.kind = add ? BulkCopy::Kind::add_to_global : BulkCopy::Kind::to_global,
         .to = static_cast<char*>(to),
         .from = static_cast<const char*>(from),
         .bytes = bytes,
         .thread = thread,
         .group = groups_[static_cast<size_t>(thread)],
         .where = where});
}

void BulkCopies::start(const BulkCopy& given) {
  BulkCopy copy = given;
  if (copy.barrier != nullptr) copy.phase = Block::running()->mbarriers().phase(copy.barrier, copy.where);
  if (land_ == 0) {
    land(copy);
  } else {
    under_way_.push_back(copy);
  }
}

void BulkCopies::land(const BulkCopy& copy) {
  switch (copy.kind) {
    case BulkCopy::Kind::box:
      copy_rows(copy);
      break;
    case BulkCopy::Kind::bytes:
    case BulkCopy::Kind::to_global:
      std::memcpy(copy.to, copy.from, copy.bytes);
      break;
    case BulkCopy::Kind::add_to_global:
      for (uint32_t byte = 0; byte < copy.bytes; byte += sizeof(float)) {
        float value;
        std::memcpy(&value, copy.from + byte, sizeof value);
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        auto* const to = reinterpret_cast<uint32_t*>(copy.to + byte);
        uint32_t before = __atomic_load_n(to, __ATOMIC_RELAXED), after;
        do {
          float sum;
          std::memcpy(&sum, &before, sizeof sum);
          sum += value;
          std::memcpy(&after, &sum, sizeof sum);
        } while (!__atomic_compare_exchange_n(to, &before, after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
      }
      break;
  }
  if (copy.barrier != nullptr)
    Block::running()->mbarriers().complete_bytes(copy.barrier, copy.phase, copy.bytes, copy.where);
}

void BulkCopies::commit_group() { ++groups_[static_cast<size_t>(number(Block::running()->thread()))]; }

void BulkCopies::wait_group(uint32_t open) {
  const int thread = number(Block::running()->thread());
  for (size_t i = 0; i < under_way_.size();) {
    const BulkCopy copy = under_way_[i];
    const bool waited =
        copy.barrier == nullptr && copy.thread == thread && copy.group + open < groups_[static_cast<size_t>(thread)];
    if (!waited) {
      ++i;
      continue;
    }
    under_way_.erase(under_way_.begin() + static_cast<ptrdiff_t>(i));
    land(copy);
  }
}

bool BulkCopies::land_one() {
  if (under_way_.empty()) return false;
  const size_t i = Block::running()->random() % under_way_.size();
  std::swap(under_way_[i], under_way_.back());
  const BulkCopy copy = under_way_.back();
  under_way_.pop_back();
  land(copy);
  return true;
}

void BulkCopies::progress() {
  if (under_way_.empty()) return;
  const uint64_t draw = Block::running()->random();
  // Where threads poll memory that other blocks write, some thread can always go on: even then copies land.
  if (draw % (land_ == 1 ? 16 : 4096) == 0) land_one();
}

void BulkCopies::end() const {
  if (!under_way_.empty())
    fail(under_way_[0].where, "a block ended while a bulk copy of %u bytes was under way", under_way_[0].bytes);
}

}  // namespace tessera::emulator

#include "block.hpp"

#include <sys/mman.h>

#include <bit>
#include <boost/context/detail/fcontext.hpp>
#include <cstdio>
#include <cstring>
#include <thread>

#include "builtins.hpp"
#include "failure.hpp"
#include "shared_memory.hpp"

namespace tessera::emulator {
namespace {

namespace context = boost::context::detail;

constexpr size_t kStackBytes = 256 * 1024, kGuardBytes = 4096;
// How often threads may poll memory while nothing else happens in their block. Where blocks follow one another, all
// that a thread may wait for has happened, or does within a step of the block's own threads; where they run beside one
// another, the others need time.
constexpr int64_t kMostSpins = 1'000'000, kMostSpinsBesideOthers = 10'000'000;

thread_local Block* running_block = nullptr;

char* make_stack() {
  void* map = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) fail({}, "no memory for the stacks of a block's threads");
  mprotect(map, kGuardBytes, PROT_NONE);
  return static_cast<char*>(map);
}

}  // namespace

Block::Block() = default;
Block::~Block() {
  for (char* stack : stacks_) munmap(stack, kStackBytes);
}
Block* Block::running() { return running_block; }

uint64_t Block::random() {
  state_ ^= state_ << 13;
  state_ ^= state_ >> 7;
  state_ ^= state_ << 17;
  return state_ >> 16;
}

void Block::run(const Launch& launch, uint3 block_index, uint64_t seed) {
  launch_ = &launch;
  index_ = block_index;
  seed_ = seed;
  const uint64_t number =
      block_index.x + uint64_t{launch.grid.x} * (block_index.y + uint64_t{launch.grid.y} * block_index.z);
  state_ = (seed * 0x9e3779b97f4a7c15u) ^ ((number + 1) * 0xbf58476d1ce4e5b9u);
  if (state_ == 0) state_ = 1;
  for (int i = 0; i < 4; ++i) random();
  // How long a warp runs before another may: until it waits, or some 64, 16 or 4 instructions that lanes do together.
  constexpr uint32_t kStay[] = {0, 2047, 511, 127};
  stay_ = kStay[random() % 4];
  copies_land_ = static_cast<int>(random() % 3);
  const size_t count = size_t{launch.block.x} * launch.block.y * launch.block.z;
  mbarriers_.clear();
  bulk_copies_.begin(static_cast<int>(random() % 3), count);
  warpgroups_.begin(static_cast<int>(random() % 3), count);
  ended_ = 0;
  spins_ = 0;
  warps_ = {};
  barriers_ = {};
  runnable_warps_ = 0;

  blockIdx = block_index;
  gridDim = launch.grid;
  blockDim = launch.block;
  open_shared_memory(launch.shared_bytes);
  threads_.resize(count);
  while (stacks_.size() < count) stacks_.push_back(make_stack());
  for (size_t i = 0; i < count; ++i) start_thread(i, launch.block);
  running_block = this;
  thread_ = &host_;
  switch_to(pick());
  bulk_copies_.end();
  warpgroups_.end();
  running_block = nullptr;
  check_shared_memory();
}

void Block::start_thread(size_t number, dim3 block) {
  Thread& thread = threads_[number];
  const auto flat = static_cast<unsigned>(number);
  thread.index = {flat % block.x, flat / block.x % block.y, flat / block.x / block.y};
  thread.warp = static_cast<int>(flat / kLanes);
  thread.lane = static_cast<int>(flat % kLanes);
  thread.ended = false;
  thread.waits_for = nullptr;
  thread.waits_on = nullptr;
  thread.copies.clear();
  thread.groups = 0;
  thread.context =
      context::make_fcontext(stacks_[number] + kStackBytes, kStackBytes - kGuardBytes, [](context::transfer_t from) {
        static_cast<Thread*>(from.data)->context = from.fctx;
        Block& self = *running_block;
        threadIdx = self.thread_->index;
        self.launch_->kernel();
        self.thread_->ended = true;
        self.thread_->waits_for = "the others: it has ended";
        ++self.ended_;
        Warp& warp = self.warps_[static_cast<size_t>(self.thread_->warp)];
        warp.ended |= 1u << self.thread_->lane;
        self.wait("the end of the block", {});
      });
  warps_[static_cast<size_t>(thread.warp)].existing |= 1u << thread.lane;
  wake(thread.warp, 1u << thread.lane);
}

void Block::wake(int warp, uint32_t lanes) {
  warps_[static_cast<size_t>(warp)].runnable |= lanes;
  runnable_warps_ |= 1u << warp;
}

void Block::wait(const char* what, Where where) {
  Thread& self = *thread_;
  self.waits_for = what;
  self.where = where;
  Warp& warp = warps_[static_cast<size_t>(self.warp)];
  warp.runnable &= ~(1u << self.lane);
  if (warp.runnable == 0) runnable_warps_ &= ~(1u << self.warp);
  land_copies();
  Thread* next = pick();
  if (next == nullptr && ended_ == threads()) next = &host_;
  while (next == nullptr && land_one()) next = pick();
  if (next == nullptr) fail_stuck();
  if (next == thread_) {
    self.waits_for = nullptr;
  } else {
    switch_to(next);
  }
}

void Block::wait_on(const void* on, const char* what, Where where) {
  thread_->waits_on = on;
  wait(what, where);
  thread_->waits_on = nullptr;
}

bool Block::land_one() {
  if (random() % 2 == 0) return bulk_copies_.land_one() || warpgroups_.carry_out_one();
  return warpgroups_.carry_out_one() || bulk_copies_.land_one();
}

// What is asynchronous goes on while threads do.
void Block::land_copies() {
  bulk_copies_.progress();
  warpgroups_.progress();
}

void Block::switch_to(Thread* next) {
  Thread* const self = thread_;
  thread_ = next;
  next->waits_for = nullptr;
  const context::transfer_t from = context::jump_fcontext(next->context, self);
  static_cast<Thread*>(from.data)->context = from.fctx;
  threadIdx = self->index;
}

// A thread that can go on, or null.
Thread* Block::pick(bool leave_warp) {
  if (runnable_warps_ == 0) return nullptr;
  const uint64_t draw = random();
  const bool leaves = leave_warp || (stay_ != 0 && (draw >> 16 & stay_) == 0);
  if (leaves || (runnable_warps_ >> warp_ & 1) == 0) {
    const int turn = static_cast<int>(draw >> 8) & 31;
    warp_ = (std::countr_zero(std::rotr(runnable_warps_, turn)) + turn) & 31;
  }
  const int turn = static_cast<int>(draw) & 31;
  const int lane = (std::countr_zero(std::rotr(warps_[static_cast<size_t>(warp_)].runnable, turn)) + turn) & 31;
  return &threads_[static_cast<size_t>(warp_ * kLanes + lane)];
}

void Block::pause() {
  if (random() % 4 != 0) return;
  Thread* const next = pick();
  if (next != thread_) switch_to(next);
}

void Block::spin(Where where) {
  const bool alone = multiprocessors() == 1;
  if (++spins_ > (alone ? kMostSpins : kMostSpinsBesideOthers))
    fail(where, "a thread polls memory that nothing changes");
  if (!alone && spins_ % 64 == 0) std::this_thread::yield();
  land_copies();
  Thread* const next = pick(true);
  if (next != thread_) switch_to(next);
}

void Block::arrive(int id, int threads, bool waits, Where where) {
  Thread& self = *thread_;
  if (id < 0 || id >= kBarriers) fail(where, "barrier %d; expected 0 to %d", id, kBarriers - 1);
  if (threads <= 0 || threads % kLanes != 0 || threads > this->threads())
    fail(where, "barrier %d for %d threads; expected a multiple of 32 of at most %d", id, threads, this->threads());
  Barrier& barrier = barriers_[static_cast<size_t>(id)];
  const auto warp = static_cast<size_t>(self.warp);
  if (barrier.arrived == 0) {
    barrier.expected = threads;
  } else if (barrier.expected != threads) {
    fail(where, "barrier %d for %d threads, where others came to it for %d", id, threads, barrier.expected);
  }
  if (barrier.waiting[warp] != 0 && waits && barrier.line[warp] != where.line)
    fail(where, "barrier %d by lanes of a warp whose others came to it at line %u", id, barrier.line[warp]);
  ++barrier.arrived;
  spins_ = 0;
  if (barrier.arrived < barrier.expected) {
    if (!waits) return;
    barrier.waiting[warp] |= 1u << self.lane;
    barrier.line[warp] = where.line;
    static constexpr const char* kNames[kBarriers] = {"__syncthreads", "barrier 1",  "barrier 2",  "barrier 3",
                                                      "barrier 4",     "barrier 5",  "barrier 6",  "barrier 7",
                                                      "barrier 8",     "barrier 9",  "barrier 10", "barrier 11",
                                                      "barrier 12",    "barrier 13", "barrier 14", "barrier 15"};
    wait(kNames[id], where);
    return;
  }
  for (size_t w = 0; w < kMostWarps; ++w) {
    if (barrier.waiting[w] != 0) wake(static_cast<int>(w), barrier.waiting[w]);
  }
  barrier = {};
}

Block::Meeting& Block::meeting_of(Warp& warp, uint32_t mask, Where where) {
  Meeting* free = nullptr;
  for (Meeting& meeting : warp.meetings) {
    if (meeting.arrived == 0) {
      free = &meeting;
    } else if (meeting.mask == mask) {
      return meeting;
    } else if ((meeting.mask & mask) != 0) {
      fail(where, "an instruction of lanes %08x, some of which wait in %s of lanes %08x (%s:%u)", mask,
           meeting.operation->name, meeting.mask, meeting.where.file, meeting.where.line);
    }
  }
  return free != nullptr ? *free : warp.meetings.emplace_back();
}

void Block::meet(uint32_t mask, const WarpOperation& operation, void* operand, Where where) {
  Thread& self = *thread_;
  Warp& warp = warps_[static_cast<size_t>(self.warp)];
  const uint32_t lane = 1u << self.lane;
  if ((mask & lane) == 0) fail(where, "%s of lanes %08x by lane %d", operation.name, mask, self.lane);
  if ((mask & ~warp.existing) != 0 || (mask & warp.ended) != 0)
    fail(where, "%s of lanes %08x, of which %08x have ended or do not exist", operation.name, mask,
         (mask & ~warp.existing) | (mask & warp.ended));
  Meeting& meeting = meeting_of(warp, mask, where);
  if (meeting.arrived == 0) {
    meeting.operation = &operation;
    meeting.mask = mask;
    meeting.where = where;
  } else if (meeting.operation != &operation || (operation.aligned && meeting.where.line != where.line)) {
    fail(where, "%s by lane %d, while lanes %08x of its warp wait in %s (%s:%u)", operation.name, self.lane,
         meeting.arrived, meeting.operation->name, meeting.where.file, meeting.where.line);
  }
  meeting.operands[static_cast<size_t>(self.lane)] = operand;
  meeting.arrived |= lane;
  if (meeting.arrived != mask) {
    wait(operation.name, where);
    return;
  }
  spins_ = 0;
  operation.execute(meeting.operands.data(), mask);
  meeting.arrived = 0;
  wake(self.warp, mask);
}

void Block::start_copy(char* to, const void* from, uint32_t bytes) {
  const Copy copy{to, from, bytes, thread_->groups};
  if (copies_land_ == 0 || (copies_land_ == 1 && random() % 2 == 0)) {
    std::memset(copy.to, 0, 16);
    if (bytes != 0) std::memcpy(copy.to, copy.from, bytes);
  } else {
    thread_->copies.push_back(copy);
  }
}

void Block::commit_copies() { ++thread_->groups; }

void Block::wait_copies(uint32_t open_groups) {
  std::vector<Copy>& copies = thread_->copies;
  size_t kept = 0;
  for (const Copy& copy : copies) {
    if (copy.group + open_groups < thread_->groups) {
      std::memset(copy.to, 0, 16);
      if (copy.bytes != 0) std::memcpy(copy.to, copy.from, copy.bytes);
    } else {
      copies[kept++] = copy;
    }
  }
  copies.resize(kept);
}

std::string Block::description() const {
  char text[200];
  std::snprintf(text, sizeof text, "block (%u, %u, %u), thread (%u, %u, %u), seed %llu", index_.x, index_.y, index_.z,
                thread_->index.x, thread_->index.y, thread_->index.z, static_cast<unsigned long long>(seed_));
  return text;
}

void Block::fail_stuck() {
  std::string text;
  for (size_t first = 0; first < threads_.size();) {
    size_t last = first;
    const auto same = [&](const Thread& a, const Thread& b) {
      return a.ended == b.ended && a.waits_for == b.waits_for && a.where.line == b.where.line &&
             a.waits_on == b.waits_on;
    };
    while (last + 1 < threads_.size() && same(threads_[first], threads_[last + 1])) ++last;
    const Thread& thread = threads_[first];
    char line[300];
    if (thread.ended) {
      std::snprintf(line, sizeof line, "\n  threads %zu to %zu have ended", first, last);
    } else {
      std::snprintf(line, sizeof line, "\n  threads %zu to %zu wait in %s (%s:%u)", first, last, thread.waits_for,
                    thread.where.file, thread.where.line);
    }
    text += line;
    if (!thread.ended && thread.waits_on != nullptr) text += " for " + mbarriers_.describe(thread.waits_on);
    first = last + 1;
  }
  fail({}, "deadlock: no thread of the block can go on%s", text.c_str());
}

}  // namespace tessera::emulator

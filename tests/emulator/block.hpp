// One block of threads on one host thread: every thread is a fiber that runs until it waits, and which one goes on is
// drawn at random from the seed. Invariant: a thread that waits is woken by nothing but what it waits for; where no
// thread can go on and not all have ended, the run fails and says what each waits for.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bulk_copy.hpp"
#include "launch.hpp"
#include "mbarrier.hpp"
#include "warpgroup.hpp"
#include "where.hpp"

namespace tessera::emulator {

inline constexpr int kSlowRelease = 300000;  // pauses of a thread
inline constexpr int kLanes = 32, kMostWarps = 32, kBarriers = 16;
inline constexpr uint32_t kAllLanes = 0xffffffffu;

// What the lanes of a warp do together. The last lane that arrives executes it for all of them.
struct WarpOperation {
  const char* name;
  bool aligned;                                           // all lanes execute the same instruction of the source
  void (*execute)(void* const* operands, uint32_t mask);  // operands[l]: what lane l gave
};

// A copy that is under way: it lands when it is issued or when its thread waits for it, as the seed has it.
struct Copy {
  char* to;
  const void* from;
  uint32_t bytes;  // 0: zeros
  uint32_t group;  // of the thread
};

struct Thread {
  void* context = nullptr;  // of the fiber while it does not run
  uint3 index{};            // threadIdx
  int warp = 0, lane = 0;
  bool ended = false;
  const char* waits_for = nullptr;  // null: it can go on
  Where where{};                    // of the instruction that it waits in
  const void* waits_on = nullptr;   // the mbarrier, if it waits for one
  std::vector<Copy> copies;
  uint32_t groups = 0;  // closed so far
};

class Block {
 public:
  Block();
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // Runs a block of the launch from its start to its end.
  void run(const Launch& launch, uint3 block_index, uint64_t seed);

  // The block whose thread runs on this host thread, or null.
  static Block* running();
  Thread& thread() { return *thread_; }

  // For the running thread. Barrier 0 is __syncthreads.
  void sync(int barrier, int threads, Where where) { arrive(barrier, threads, true, where); }
  void arrive(int barrier, int threads, bool waits, Where where);
  // Waits until every lane of `mask` came to the same operation, which then is done.
  void meet(uint32_t mask, const WarpOperation& operation, void* operand, Where where);
  // Lets other threads go first, now and then.
  void pause();
  // The running thread found that it has to wait for memory to change.
  void spin(Where where);
  void start_copy(char* to, const void* from, uint32_t bytes);
  void commit_copies();
  void wait_copies(uint32_t open_groups);

  // What only sm_90 has.
  Mbarriers& mbarriers() { return mbarriers_; }
  BulkCopies& bulk_copies() { return bulk_copies_; }
  Warpgroups& warpgroups() { return warpgroups_; }

  // For them: the running thread waits until another one wakes it; `on` is an mbarrier or null.
  void wait_on(const void* on, const char* what, Where where);
  void wake(int warp, uint32_t lanes);
  void note_progress() { spins_ = 0; }  // memory that threads may poll has changed
  uint64_t random();

  int threads() const { return static_cast<int>(threads_.size()); }
  std::string description() const;  // block, thread and seed, for messages

 private:
  struct Barrier {
    int expected = 0, arrived = 0;
    std::array<uint32_t, kMostWarps> waiting{};
    std::array<unsigned, kMostWarps> line{};  // where the warp's first lane arrived
  };
  struct Meeting {
    const WarpOperation* operation = nullptr;
    uint32_t mask = 0, arrived = 0;
    Where where{};
    std::array<void*, kLanes> operands{};
  };
  struct Warp {
    uint32_t existing = 0, runnable = 0, ended = 0;
    std::vector<Meeting> meetings;
  };

  void start_thread(size_t number, dim3 block);
  void wait(const char* what, Where where);
  bool land_one();
  void land_copies();
  void switch_to(Thread* next);
  Thread* pick(bool leave_warp = false);
  Meeting& meeting_of(Warp& warp, uint32_t mask, Where where);
  [[noreturn]] void fail_stuck();

  const Launch* launch_ = nullptr;
  uint64_t seed_ = 0, state_ = 1;
  uint3 index_{};
  std::vector<Thread> threads_;
  std::vector<char*> stacks_;
  std::array<Warp, kMostWarps> warps_;
  std::array<Barrier, kBarriers> barriers_;
  uint32_t runnable_warps_ = 0, stay_ = 0;
  int warp_ = 0, copies_land_ = 0, ended_ = 0;
  int64_t spins_ = 0;
  Mbarriers mbarriers_;
  BulkCopies bulk_copies_;
  Warpgroups warpgroups_;
  Thread host_;
  Thread* thread_ = nullptr;
};

}  // namespace tessera::emulator

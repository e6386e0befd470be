// wgmma and setmaxnreg: what the 128 threads of a warpgroup do together. A product is asynchronous: it reads shared
// memory and is carried out when all have issued it or later, at the latest when a thread waits for it, as the seed has
// it. Invariant: from issue to wait the accumulators in the kernel are NaN, kept here, and no one writes to them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "where.hpp"

namespace tessera::emulator {

struct Thread;

inline constexpr int kGroupThreads = 128, kMostColumns = 256;

enum class ProductType { f16, bf16, e4m3 };

// d [64, columns] (+)= a [64, depth] b [depth, columns] of 32 bytes' depth; the same for all threads.
struct Product {
  ProductType type;
  bool a_in_registers, transpose_a, transpose_b, accumulates;
  int columns;
  uint64_t a, b;  // descriptors
  bool operator==(const Product&) const = default;
};

class Warpgroups {
 public:
  // `land`: 0 as soon as all have issued it, 1 when drawn, 2 when nothing else can go on.
  void begin(int land, size_t threads);
  // By the running thread. `a`: registers, where they hold it.
  void fence(Where where);
  void issue(const Product& product, float* d, const uint32_t* a, Where where);
  void commit(Where where);
  void wait(uint32_t open, Where where);
  void set_registers(int registers, bool more, Where where);

  // Carries out a product that all have issued; false: there is none.
  bool carry_out_one();
  // The same, now and then.
  void progress();
  // After the block: nothing is under way, and all have as many registers as there are.
  void end();

 private:
  // Accumulators that products under way write to.
  struct Tile {
    int columns, holders = 0;
    std::array<float*, kGroupThreads> d{};           // null: not, or no longer, in use by the thread
    std::array<uint64_t, kGroupThreads> products{};  // one behind the last that the thread issued
    std::unique_ptr<float[]> values;
  };
  struct UnderWay {
    Product product;
    Where where;
    Tile* tile;
    int issued = 0;  // by so many threads
    std::vector<std::array<uint32_t, 4>> a;
  };
  struct Group {
    std::deque<UnderWay> products;
    uint64_t done = 0;  // products before the first one under way
    std::vector<std::unique_ptr<Tile>> tiles;
    std::vector<Thread*> waiting;
    int registers = 0, changes = 0;
    Where changed{};
  };
  struct Lane {
    uint64_t issued = 0, committed = 0;
    std::deque<uint64_t> groups;  // products at the end of each that is open
    bool fenced = false;
    int changes = 0;  // of registers
  };

  Tile& tile_of(Group& group, int lane, float* d, int columns);
  void hold(Tile& tile, Group& group, int lane, float* d, const UnderWay& product);
  bool give_back(Group& group, int lane, uint64_t done, Where where);
  void carry_out(Group& group);
  void wake_waiting(Group& group);

  int land_ = 0;
  std::vector<Group> groups_;
  std::vector<Lane> lanes_;
};

}  // namespace tessera::emulator

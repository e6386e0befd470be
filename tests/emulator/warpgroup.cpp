#include "warpgroup.hpp"

#include <algorithm>
#include <cstring>

#include "block.hpp"
#include "failure.hpp"
#include "half.hpp"
#include "shared_memory.hpp"
#include "warp.hpp"

namespace tessera::emulator {
namespace {

constexpr int kRows = 64, kMostDepth = 32;
constexpr uint32_t kGarbage = 0xffffffffu;  // a NaN that no arithmetic gives

const WarpOperation kFence{"wgmma.fence", true, [](void* const*, uint32_t) {}};
const WarpOperation kWait{"wgmma.wait_group", true, [](void* const*, uint32_t) {}};
const WarpOperation kSetRegisters{"setmaxnreg", true, [](void* const*, uint32_t) {}};

size_t number(const Thread& thread) { return static_cast<size_t>(thread.warp * kLanes + thread.lane); }

// Where element e of block n of a thread's accumulators lies in the tile.
size_t place(int lane, int n, int e, int columns) {
  const int row = lane / 32 * 16 + lane % 32 / 4 + e / 2 * 8, column = 8 * n + lane % 4 * 2 + e % 2;
  return static_cast<size_t>(row * columns + column);
}

// An operand in shared memory (PTX ISA, "Matrix Descriptor Format" and "Canonical layouts").
struct Operand {
  uint32_t start, leading, stride, span;
  Operand(uint64_t descriptor, Where where)
      : start(static_cast<uint32_t>(descriptor & 0x3fff) << 4),
        leading(static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4),
        stride(static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4),
        span(256u >> (descriptor >> 62)) {
    if (span == 256) fail(where, "wgmma of operands that are not swizzled is not emulated");
    if (descriptor >> 49 & 7) fail(where, "wgmma of operands with a base offset is not emulated");
  }
  // 16 bytes from (row, k) on: along k, or along the rows where the operand, of 16-bit elements, is transposed.
  const char* chunk(uint32_t row, uint32_t k, uint32_t bytes, bool transposed, Where where) const {
    uint32_t address = start;
    if (transposed) {
      address += row / (span / 2) * leading + row % (span / 2) * 2 + k / 8 * stride + k % 8 * span;
    } else {
      address += row / 8 * stride + row % 8 * span + k * bytes;
    }
    return shared_pointer(address ^ (address >> 7 & (span / 16 - 1)) << 4, 16, 16, "wgmma", where);
  }
};

// values[k][row] of `rows` rows.
template <class Bits, float (*kValue)(Bits)>
void load(const Operand& operand, int rows, bool transposed, Where where, float* values) {
  constexpr size_t kChunk = 16 / sizeof(Bits);
  const auto width = static_cast<size_t>(rows);
  Bits bits[kChunk];
  for (size_t row = 0; row < width; row += transposed ? kChunk : 1) {
    for (size_t k = 0; k < 2 * kChunk; k += transposed ? 1 : kChunk) {
      std::memcpy(bits,
                  operand.chunk(static_cast<uint32_t>(row), static_cast<uint32_t>(k), sizeof(Bits), transposed, where),
                  16);
      for (size_t e = 0; e < kChunk; ++e)
        values[transposed ? k * width + row + e : (k + e) * width + row] = kValue(bits[e]);
    }
  }
}

// A register holds 4 bytes of a row, the next but one what lies 16 bytes further.
template <class Bits, float (*kValue)(Bits)>
void load_fragments(const std::vector<std::array<uint32_t, 4>>& fragments, float* values) {
  constexpr int kElements = 4 / sizeof(Bits);
  for (int lane = 0; lane < kGroupThreads; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 32 * 16 + lane % 32 / 4 + i % 2 * 8, k = (lane % 4 + i / 2 * 4) * kElements;
      Bits bits[kElements];
      std::memcpy(bits, &fragments[static_cast<size_t>(lane)][static_cast<size_t>(i)], 4);
      for (int e = 0; e < kElements; ++e) values[(k + e) * kRows + row] = kValue(bits[e]);
    }
  }
}

// Sums are f32, from the lowest k to the highest: what the tensor cores lose of e4m3's products is not shown.
void multiply(const float* a, const float* b, size_t depth, size_t columns, float* d) {
  for (size_t row = 0; row < kRows; ++row) {
    float* const to = d + row * columns;
    for (size_t k = 0; k < depth; ++k) {
      const float factor = a[k * kRows + row];
      const float* const from = b + k * columns;
      for (size_t n = 0; n < columns; ++n) to[n] += factor * from[n];
    }
  }
}

bool is_garbage(const float* d, int columns) {
  uint32_t bits;
  for (int i = 0; i < columns / 2; ++i) {
    std::memcpy(&bits, d + i, sizeof bits);
    if (bits != kGarbage) return false;
  }
  return true;
}

}  // namespace

void Warpgroups::begin(int land, size_t threads) {
  land_ = land;
  groups_ = std::vector<Group>(threads / kGroupThreads + 1);
  lanes_.assign(threads, {});
}

void Warpgroups::fence(Where where) {
  lanes_[number(Block::running()->thread())].fenced = true;
  meet(kAllLanes, kFence, nullptr, where);
}

Warpgroups::Tile& Warpgroups::tile_of(Group& group, int lane, float* d, int columns) {
  const auto i = static_cast<size_t>(lane);
  for (const auto& tile : group.tiles) {
    if (tile->d[i] == d && tile->columns == columns) return *tile;
  }
  group.tiles.push_back(std::make_unique<Tile>());
  Tile& tile = *group.tiles.back();
  tile.columns = columns;
  tile.values = std::make_unique<float[]>(static_cast<size_t>(kRows * columns));
  return tile;
}

void Warpgroups::hold(Tile& tile, Group& group, int lane, float* d, const UnderWay& product) {
  const auto i = static_cast<size_t>(lane);
  if (tile.d[i] == d) {
    if (!is_garbage(d, tile.columns))
      fail(product.where, "accumulators were written to while a wgmma on them was under way");
    return;
  }
  const bool busy = std::any_of(group.tiles.begin(), group.tiles.end(), [&](const auto& t) { return t->d[i] == d; });
  if (tile.d[i] != nullptr || busy)
    fail(product.where, "wgmma on accumulators that are not those of the warpgroup's other threads");
  tile.d[i] = d;
  ++tile.holders;
  for (int n = 0; n < tile.columns / 8; ++n) {
    for (int e = 0; e < 4; ++e) tile.values[place(lane, n, e, tile.columns)] = d[4 * n + e];
  }
  std::memset(d, 0xff, sizeof(float) * static_cast<size_t>(tile.columns) / 2);
}

void Warpgroups::issue(const Product& product, float* d, const uint32_t* a, Where where) {
  Block& block = *Block::running();
  const size_t thread = number(block.thread());
  Lane& self = lanes_[thread];
  Group& group = groups_[thread / kGroupThreads];
  const auto lane = static_cast<int>(thread % kGroupThreads);
  const uint64_t index = self.issued++ - group.done;
  if (index == group.products.size())
    group.products.push_back({product, where, &tile_of(group, lane, d, product.columns), 0, {}});
  UnderWay& shared = group.products[index];
  if (shared.product != product || shared.where.line != where.line || shared.where.file != where.file) {
    fail(where, "wgmma by a thread of a warpgroup whose others issue another one, or on other operands (%s:%u)",
         shared.where.file, shared.where.line);
  }
  const bool holds = shared.tile->d[static_cast<size_t>(lane)] == d;
  if (!self.fenced && (!holds || product.a_in_registers))
    fail(where, "wgmma on registers that no wgmma.fence is between the last wait and it");
  hold(*shared.tile, group, lane, d, shared);
  shared.tile->products[static_cast<size_t>(lane)] = self.issued;
  if (product.a_in_registers) {
    shared.a.resize(kGroupThreads);
    std::memcpy(shared.a[static_cast<size_t>(lane)].data(), a, 16);
  }
  if (++shared.issued < kGroupThreads) return;
  block.note_progress();
  if (land_ != 2) wake_waiting(group);
  // Products are issued in order, so those before it are there too.
  if (land_ == 0) {
    while (!group.products.empty() && group.products.front().issued == kGroupThreads) carry_out(group);
  }
}

void Warpgroups::commit(Where) {
  Lane& self = lanes_[number(Block::running()->thread())];
  self.groups.push_back(self.issued);
  self.committed = self.issued;
}

void Warpgroups::wait(uint32_t open, Where where) {
  Block& block = *Block::running();
  meet(kAllLanes, kWait, nullptr, where);
  const size_t thread = number(block.thread());
  Lane& self = lanes_[thread];
  Group& group = groups_[thread / kGroupThreads];
  uint64_t end = 0;
  for (; self.groups.size() > open; self.groups.pop_front()) end = self.groups.front();
  while (group.done < end) {
    if (land_ != 2 && group.products.front().issued == kGroupThreads) {
      carry_out(group);
    } else {
      group.waiting.push_back(&block.thread());
      block.wait_on(nullptr, "wgmma.wait_group", where);
    }
  }
  if (give_back(group, static_cast<int>(thread % kGroupThreads), end, where)) self.fenced = false;
}

// Whether any were.
bool Warpgroups::give_back(Group& group, int lane, uint64_t done, Where where) {
  bool any = false;
  const auto i = static_cast<size_t>(lane);
  for (const auto& tile : group.tiles) {
    float* const d = tile->d[i];
    if (d == nullptr || tile->products[i] > done) continue;
    if (!is_garbage(d, tile->columns)) fail(where, "accumulators were written to while a wgmma on them was under way");
    for (int n = 0; n < tile->columns / 8; ++n) {
      for (int e = 0; e < 4; ++e) d[4 * n + e] = tile->values[place(lane, n, e, tile->columns)];
    }
    tile->d[i] = nullptr;
    --tile->holders;
    any = true;
  }
  std::erase_if(group.tiles, [&](const auto& tile) {
    const auto uses = [&](const UnderWay& product) { return product.tile == tile.get(); };
    return tile->holders == 0 && std::none_of(group.products.begin(), group.products.end(), uses);
  });
  return any;
}

void Warpgroups::carry_out(Group& group) {
  const UnderWay work = std::move(group.products.front());
  group.products.pop_front();
  ++group.done;
  const Product& p = work.product;
  const auto columns = static_cast<size_t>(p.columns);
  float a[kMostDepth * kRows], b[kMostDepth * kMostColumns];
  const auto load_operand = p.type == ProductType::e4m3   ? load<uint8_t, from_e4m3>
                            : p.type == ProductType::bf16 ? load<uint16_t, from_bf16>
                                                          : load<uint16_t, from_f16>;
  const auto load_a = p.type == ProductType::e4m3   ? load_fragments<uint8_t, from_e4m3>
                      : p.type == ProductType::bf16 ? load_fragments<uint16_t, from_bf16>
                                                    : load_fragments<uint16_t, from_f16>;
  load_operand(Operand(p.b, work.where), p.columns, p.transpose_b, work.where, b);
  if (p.a_in_registers) {
    load_a(work.a, a);
  } else {
    load_operand(Operand(p.a, work.where), kRows, p.transpose_a, work.where, a);
  }
  float* const d = work.tile->values.get();
  if (!p.accumulates) std::fill_n(d, kRows * columns, 0.0f);
  multiply(a, b, p.type == ProductType::e4m3 ? 32 : 16, columns, d);
  wake_waiting(group);
}

void Warpgroups::wake_waiting(Group& group) {
  for (const Thread* waiting : group.waiting) Block::running()->wake(waiting->warp, 1u << waiting->lane);
  group.waiting.clear();
}

bool Warpgroups::carry_out_one() {
  const size_t first = Block::running()->random() % groups_.size();
  for (size_t i = 0; i < groups_.size(); ++i) {
    Group& group = groups_[(first + i) % groups_.size()];
    if (group.products.empty() || group.products.front().issued < kGroupThreads) continue;
    carry_out(group);
    return true;
  }
  return false;
}

void Warpgroups::progress() {
  // Where threads poll memory that other blocks write, some thread can always go on: even then products come.
  if (land_ != 0 && Block::running()->random() % (land_ == 1 ? 16 : 4096) == 0) carry_out_one();
}

void Warpgroups::set_registers(int registers, bool more, Where where) {
  if (registers < 24 || registers > 256 || registers % 8 != 0)
    fail(where, "setmaxnreg of %d registers; expected a multiple of 8 from 24 to 256", registers);
  Block& block = *Block::running();
  const size_t thread = number(block.thread());
  Group& group = groups_[thread / kGroupThreads];
  Lane& self = lanes_[thread];
  const int launched = 65536 / static_cast<int>(lanes_.size()) / 8 * 8;
  const int before = group.registers == 0 ? launched : group.registers;
  if (self.changes == group.changes) {
    if (more ? registers < before : registers > before)
      fail(where, "setmaxnreg.%s to %d registers from %d", more ? "inc" : "dec", registers, before);
    ++group.changes;
    group.registers = registers;
    group.changed = where;
  } else if (registers != group.registers) {
    fail(where, "setmaxnreg to %d registers by a warp whose warpgroup takes %d", registers, group.registers);
  }
  ++self.changes;
  meet(kAllLanes, kSetRegisters, nullptr, where);
}

void Warpgroups::end() {
  const int launched = 65536 / static_cast<int>(lanes_.size()) / 8 * 8, count = static_cast<int>(groups_.size()) - 1;
  int registers = 0;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    if (!group.products.empty() || !group.tiles.empty())
      fail({}, "warpgroup %zu ended with a wgmma that it never waited for", g);
    for (size_t i = g * kGroupThreads; i < std::min(lanes_.size(), (g + 1) * kGroupThreads); ++i) {
      if (lanes_[i].changes != group.changes)
        fail(group.changed, "setmaxnreg that not all warps of warpgroup %zu executed", g);
    }
    registers += group.registers == 0 ? launched : group.registers;
  }
  registers -= launched;  // the group behind the last
  if (lanes_.size() % kGroupThreads == 0 && registers > launched * count)
    fail({}, "setmaxnreg hands out %d registers a thread of each warpgroup, of %d that the launch took", registers,
         launched * count);
}

}  // namespace tessera::emulator

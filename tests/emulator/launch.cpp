#include "launch.hpp"

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "block.hpp"
#include "device.hpp"
#include "failure.hpp"
#include "shared_memory.hpp"

namespace tessera::emulator {
namespace {

uint64_t setting(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != '\0' ? std::strtoull(text, nullptr, 10) : otherwise;
}

std::atomic<uint64_t>& next_seed() {
  static std::atomic<uint64_t> seed{setting("TESSERA_EMULATED_SEED", 1)};
  return seed;
}

// The blocks of a launch from the first to the last, or by steps that visit each once.
struct Order {
  uint64_t count, step, begin;
  Order(uint64_t blocks, uint64_t seed) : count(blocks), step(1), begin(0) {
    if (seed % 2 == 0 || blocks < 2) return;
    const uint64_t mixed = seed * 0x9e3779b97f4a7c15u >> 20;
    step = mixed % blocks;
    while (std::gcd(step, blocks) != 1) step = (step + 1) % blocks;
    begin = (mixed >> 7) % blocks;
  }
  uint64_t operator[](uint64_t i) const {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(i) * step + begin) % count);
  }
};

void run_blocks(const Launch& launch, const Order& order, uint64_t seed, std::atomic<uint64_t>* next) {
  static thread_local Block block;
  if (Block::running() != nullptr) fail({}, "a kernel launches a kernel");
  watch_faults();
  while (true) {
    const uint64_t i = (*next)++;
    if (i >= order.count) break;
    const uint64_t number = order[i];
    const uint64_t plane = uint64_t{launch.grid.x} * launch.grid.y;
    block.run(launch,
              {static_cast<unsigned>(number % launch.grid.x), static_cast<unsigned>(number % plane / launch.grid.x),
               static_cast<unsigned>(number / plane)},
              seed);
  }
  close_shared_memory();
}

}  // namespace

namespace {
std::mutex before_mutex;
std::function<void()> before;
std::atomic<bool> has_before{false};
}  // namespace

void set_launch_before(std::function<void()> last) {
  const std::lock_guard lock(before_mutex);
  before = std::move(last);
  has_before = true;
}

void end_launch_before() {
  if (!has_before) return;
  const std::lock_guard lock(before_mutex);
  if (has_before.exchange(false)) before();
}

void set_seed(uint64_t seed) { next_seed() = seed; }

int architecture() {
  static const uint64_t chosen = setting("TESSERA_EMULATED_ARCH", 80);
  if (chosen != 80 && chosen != 90)
    fail({}, "TESSERA_EMULATED_ARCH=%llu; expected 80 or 90", static_cast<unsigned long long>(chosen));
  return static_cast<int>(chosen);
}

size_t most_shared_bytes() {
  static const size_t bytes = setting("TESSERA_EMULATED_SHARED_KB", architecture() == 90 ? 227 : 163) * 1024;
  return bytes;
}

uint64_t multiprocessors() {
  static const uint64_t count = setting("TESSERA_EMULATED_SMS", 1);
  return count;
}

void run(const Launch& launch) {
  const uint64_t seed = next_seed()++;
  const Order order(uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z, seed);
  std::atomic<uint64_t> next{0};
  std::vector<std::thread> others;
  for (uint64_t i = 1; i < multiprocessors(); ++i) others.emplace_back([&] { run_blocks(launch, order, seed, &next); });
  run_blocks(launch, order, seed, &next);
  for (std::thread& thread : others) thread.join();
}

}  // namespace tessera::emulator

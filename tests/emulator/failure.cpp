#include "failure.hpp"

#include <signal.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "block.hpp"
#include "device_memory.hpp"
#include "shared_memory.hpp"

namespace tessera::emulator {
namespace {

constexpr size_t kSignalStackBytes = 64 * 1024;

// Runs on a stack of its own: the fault may be the end of a fiber's.
void explain_fault(int number, siginfo_t* info, void*) {
  ::signal(number, SIG_DFL);
  if (Block::running() == nullptr) return;  // not ours: the instruction faults again and ends the process
  const void* address = info->si_addr;
  if (const int64_t offset = shared_offset(address); offset >= 0)
    fail({}, "an access to byte %lld of shared memory; the launch asked for %zu bytes", static_cast<long long>(offset),
         shared_bytes());
  fail({}, "an access to %p, %s", address, describe_device_address(address).c_str());
}

}  // namespace

void fail(Where where, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::fflush(stdout);
  std::fputs("emulator: ", stderr);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  if (where.file != nullptr) std::fprintf(stderr, "\n  at %s:%u", where.file, where.line);
  if (const Block* block = Block::running()) std::fprintf(stderr, "\n  in %s", block->description().c_str());
  std::fputs("\n", stderr);
  std::abort();
}

void watch_faults() {
  static thread_local bool done = false;
  if (done) return;
  done = true;
  stack_t stack{};
  stack.ss_sp = std::malloc(kSignalStackBytes);
  stack.ss_size = kSignalStackBytes;
  sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_sigaction = explain_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace tessera::emulator

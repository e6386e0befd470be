// How the emulator ends a run that did what no kernel may do: one message that names the instruction, the thread, the
// block and the seed, then abort.
#pragma once

#include "where.hpp"

namespace tessera::emulator {

[[noreturn]] [[gnu::format(printf, 2, 3)]] void fail(Where where, const char* format, ...);

// Turns faults on memory that a kernel must not touch into such a message. Once a host thread.
void watch_faults();

}  // namespace tessera::emulator

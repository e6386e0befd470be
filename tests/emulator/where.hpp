// The place in the source that calls an emulated instruction, for messages and to tell instructions apart.
#pragma once

namespace tessera::emulator {

struct Where {
  const char* file;
  unsigned line;
};

}  // namespace tessera::emulator

// The last parameter of an emulated instruction: the caller's place.
#define TESSERA_WHERE ::tessera::emulator::Where where = {__builtin_FILE(), __builtin_LINE()}

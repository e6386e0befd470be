// How a command gives up: an exit code and one line of text. Thrown anywhere in the command line, caught in main alone,
// so bad input always ends as exactly one line on stderr.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

#include "tessera/tessera.h"

namespace tessera::cli {

enum ExitCode { kDone = 0, kCheckFailed = 1, kBadInput = 2, kRefused = 3, kDeviceError = 4 };

struct Failure {
  int exit_code;
  std::string message;
};

template <class... Args>
[[noreturn]] void bad_input(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure{kBadInput, fmt::format(format, std::forward<Args>(args)...)};
}

// Of several outcomes the one that the process reports: bad input, then device trouble, then a failed check, then a
// refusal.
inline int worse_exit(int a, int b) {
  constexpr int kRank[] = {0, 2, 4, 1, 3};  // by exit code
  return kRank[a] >= kRank[b] ? a : b;
}

// The exit code of a library status.
inline int exit_of_status(int status) {
  switch (status) {
    case TESSERA_OK:
      return kDone;
    case TESSERA_INVALID_ARGUMENT:
      return kBadInput;
    case TESSERA_UNSUPPORTED:
    case TESSERA_NO_DEVICE:
      return kRefused;
    default:
      return kDeviceError;
  }
}

// Throws what `status` says unless it is TESSERA_OK.
inline void require_ok(int code, const tessera_status& status) {
  if (code != TESSERA_OK) throw Failure{exit_of_status(code), status.message};
}

}  // namespace tessera::cli

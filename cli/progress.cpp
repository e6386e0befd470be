// The line goes to stderr, so that piped results stay clean.
#include "cli/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace tessera::cli {

Progress::Progress() : terminal_(::isatty(STDERR_FILENO) == 1) {}

void Progress::show(std::string_view what) {
  if (!terminal_) return;
  std::fputs(fmt::format("\r\x1b[K{} ...", what.substr(0, 100)).c_str(), stderr);
  std::fflush(stderr);
  shown_ = true;
}

void Progress::clear() {
  if (!shown_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace tessera::cli

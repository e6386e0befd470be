// One line on a terminal that says what takes so long; nothing at all on a pipe.
#pragma once

#include <string_view>

namespace tessera::cli {

class Progress {
 public:
  Progress();
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void show(std::string_view what);
  void clear();

 private:
  bool terminal_, shown_ = false;
};

}  // namespace tessera::cli

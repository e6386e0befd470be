// Whole files in and out. A reader sees the bytes as they are on disk; a writer leaves the complete file or nothing.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/tensor.hpp"

namespace tessera::cli {

// The bytes of the file that begins with `begin`, as its header says; nullopt as long as the header is not complete.
// Throws Failure (bad input) for what is no such file.
using SizeInHeader = std::optional<size_t> (*)(std::span<const std::byte> begin, std::string_view label);

// The bytes of a file, mapped where the system can and read where it cannot. A pipe is read as far as its header says,
// and only with a function that can tell; a device is no input, since it need not end.
class InputFile {
 public:
  // Throws Failure (bad input) that begins with `label`, e.g. "--q q.npy".
  InputFile(const std::string& path, std::string_view label, SizeInHeader size_in_header = nullptr);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
  std::vector<std::byte> read_;
  void* mapped_ = nullptr;
};

// Whether two names lead to one file: through links and any spelling where it exists, by its path where not yet.
bool same_file(const std::string& a, const std::string& b);

// A file that appears under its name only by commit(): until then it is a temporary one beside it, removed on the way
// out. A name that is a device or a pipe is written through, a symbolic link is followed,
// one that leads nowhere is refused.
class OutputFile {
 public:
  // Throws Failure (bad input) unless the file can be made. `label` is e.g. "--out o.npy".
  OutputFile(const std::string& path, std::string_view label);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  void write(const void* data, size_t bytes);
  void commit();

 private:
  [[noreturn]] void fail(int error) const;
  std::string label_, path_, temporary_;
  int descriptor_ = -1;
};

}  // namespace tessera::cli

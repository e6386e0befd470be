// Files by POSIX calls, which name their errors.
#include "cli/file_io.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "cli/failure.hpp"

namespace tessera::cli {
namespace {

constexpr size_t kMaxTransfer = size_t{1} << 30;  // Linux moves at most 0x7ffff000 bytes a call

struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

void require_memory_for(size_t bytes, std::string_view label) {
  const double present = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  if (static_cast<double>(bytes) > present)
    throw Failure{kDeviceError, fmt::format("{}: out of memory: its header says {} bytes, this machine has {}", label,
                                            bytes, present)};
}

// Up to the end, which is where the header says. `size`: what is known without it.
void read_all(int descriptor, std::string_view label, SizeInHeader size_in_header, std::optional<size_t> size,
              std::vector<std::byte>* bytes) {
  constexpr size_t kStep = 1 << 20;
  for (;;) {
    if (!size) {
      size = size_in_header(*bytes, label);
      if (size) require_memory_for(*size, label);
    }
    const size_t had = bytes->size();
    if (size && had > *size) bad_input("{}: goes on after the {} bytes that its header says", label, *size);
    const size_t step = size ? std::min(kStep, *size - had + 1) : kStep;
    bytes->resize(had + step);
    const ssize_t got = ::read(descriptor, bytes->data() + had, step);
    bytes->resize(had + static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return;
    if (got < 0 && errno != EINTR) bad_input("{}: {}", label, std::strerror(errno));
  }
}

}  // namespace

InputFile::InputFile(const std::string& path, std::string_view label, SizeInHeader size_in_header) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  struct stat info {};
  if (file.number < 0 || ::fstat(file.number, &info) != 0) bad_input("{}: {}", label, std::strerror(errno));
  if (S_ISDIR(info.st_mode)) bad_input("{}: is a directory, expected a file", label);
  const bool regular = S_ISREG(info.st_mode);
  if (!regular && !S_ISFIFO(info.st_mode)) bad_input("{}: is a device, expected a file or a pipe", label);
  if (!regular && size_in_header == nullptr) bad_input("{}: is a pipe, expected a file", label);
  if (regular && info.st_size > 0) {
    const size_t size = static_cast<size_t>(info.st_size);
    void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number, 0);
    if (address != MAP_FAILED) {
      mapped_ = address;
      bytes_ = {static_cast<const std::byte*>(address), size};
      return;
    }
  }
  std::optional<size_t> size;
  if (size_in_header == nullptr || info.st_size > 0) size = static_cast<size_t>(info.st_size);
  read_all(file.number, label, size_in_header, size, &read_);
  bytes_ = read_;
}

InputFile::~InputFile() {
  if (mapped_ != nullptr) ::munmap(mapped_, bytes_.size());
}

bool same_file(const std::string& a, const std::string& b) {
  struct stat first {
  }, second{};
  const bool has_first = ::stat(a.c_str(), &first) == 0, has_second = ::stat(b.c_str(), &second) == 0;
  if (has_first != has_second) return false;
  if (has_first) return first.st_dev == second.st_dev && first.st_ino == second.st_ino;
  const auto resolved = [](const std::string& path) {
    std::error_code error;
    const std::filesystem::path absolute = std::filesystem::absolute(path, error);
    const std::filesystem::path canonical = std::filesystem::weakly_canonical(absolute, error);
    return error ? absolute.lexically_normal() : canonical;
  };
  return resolved(a) == resolved(b);
}

OutputFile::OutputFile(const std::string& path, std::string_view label) : label_(label), path_(path) {
  struct stat info {};
  const bool exists = ::stat(path.c_str(), &info) == 0;
  const int absent = exists ? 0 : errno;
  if (exists && S_ISDIR(info.st_mode)) fail(EISDIR);
  struct stat link {};
  if (!exists && ::lstat(path.c_str(), &link) == 0) {
    if (absent != ENOENT) fail(absent);
    bad_input("{}: cannot be written (a symbolic link to a file that does not exist)", label);
  }
  if (exists && !S_ISREG(info.st_mode)) {
    descriptor_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (descriptor_ < 0) fail(errno);
    return;
  }
  if (exists) {
    if (::access(path.c_str(), W_OK) != 0) fail(errno);
    char resolved[PATH_MAX];
    if (::realpath(path.c_str(), resolved) != nullptr) path_ = resolved;
  }
  temporary_ = path_ + ".XXXXXX";
  descriptor_ = ::mkostemp(temporary_.data(), O_CLOEXEC);
  if (descriptor_ < 0) {
    temporary_.clear();
    fail(errno);
  }
  const mode_t mask = ::umask(0);
  ::umask(mask);
  ::fchmod(descriptor_, exists ? info.st_mode & 07777 : 0666 & ~mask);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::fail(int error) const { bad_input("{}: cannot be written ({})", label_, std::strerror(error)); }

void OutputFile::write(const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, next, std::min(bytes, kMaxTransfer));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(errno);
    next += written;
    bytes -= static_cast<size_t>(written);
  }
}

void OutputFile::commit() {
  const int descriptor = descriptor_;
  descriptor_ = -1;
  if (::close(descriptor) != 0) fail(errno);
  if (temporary_.empty()) return;
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail(errno);
  temporary_.clear();
}

}  // namespace tessera::cli

#include "shared_memory.hpp"

#include <elf.h>
#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "device.hpp"
#include "failure.hpp"

extern "C" {
alignas(4096) thread_local char tessera_emulator_shared[tessera::emulator::kSharedCapacity];
}

// `extern __shared__ char shared[]` in a kernel names a variable of the kernel's namespace: one line for each.
#define TESSERA_SHARED_NAME(mangled) \
  ".globl " mangled "\n.type " mangled ", @tls_object\n.set " mangled ", tessera_emulator_shared\n"
asm(TESSERA_SHARED_NAME("_ZN7tessera4cuda6sharedE")           // tessera::cuda::shared
    TESSERA_SHARED_NAME("_ZN7tessera4cuda4sm806sharedE")      // tessera::cuda::sm80::shared
    TESSERA_SHARED_NAME("_ZN7tessera4cuda4sm906sharedE")      // tessera::cuda::sm90::shared
    TESSERA_SHARED_NAME("_ZN7tessera9baselines3fa16sharedE")  // tessera::baselines::fa1::shared
    TESSERA_SHARED_NAME("_ZN7tessera12test_kernels6sharedE")  // tessera::test_kernels::shared
    // tessera::tests::(anonymous)::shared
    TESSERA_SHARED_NAME("_ZN7tessera5tests12_GLOBAL__N_16sharedE"));

namespace tessera::emulator {
namespace {

constexpr size_t kPage = 4096;
constexpr unsigned char kGarbage = 0xff;  // NaN as f16, bf16 and f32, -1 as an integer
constexpr unsigned char kWatched = 0xa5;

thread_local size_t bytes_of_block = 0, open_bytes = kSharedCapacity;

struct TlsRange {
  size_t offset, bytes;
};

// Static shared variables are thread_local variables of functions of ours; the symbol table knows where they lie.
std::vector<TlsRange> find_static_variables() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const std::vector<char> image{std::istreambuf_iterator<char>(file), {}};
  const auto at = [&](size_t offset) { return image.data() + offset; };
  std::vector<TlsRange> found;
  if (image.size() < sizeof(ElfW(Ehdr))) return found;
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(image.data());
  const auto* sections = reinterpret_cast<const ElfW(Shdr)*>(at(header->e_shoff));
  for (int s = 0; s < header->e_shnum; ++s) {
    if (sections[s].sh_type != SHT_SYMTAB) continue;
    const auto* symbols = reinterpret_cast<const ElfW(Sym)*>(at(sections[s].sh_offset));
    const char* names = at(sections[sections[s].sh_link].sh_offset);
    for (size_t i = 0; i < sections[s].sh_size / sizeof(ElfW(Sym)); ++i) {
      const ElfW(Sym)& symbol = symbols[i];
      const std::string name = names + symbol.st_name;
      const bool ours = name.starts_with("_ZZN7tessera4cuda") || name.starts_with("_ZZN7tessera12test_kernels") ||
                        name.starts_with("_ZZN7tessera5tests12_GLOBAL__N_1");
      if (ELF64_ST_TYPE(symbol.st_info) == STT_TLS && ours) found.push_back({symbol.st_value, symbol.st_size});
    }
  }
  return found;
}

// This host thread's copy of the executable's thread-local variables; the first object listed is the executable.
char* tls_begin() {
  char* begin = nullptr;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        *static_cast<char**>(out) = static_cast<char*>(info->dlpi_tls_data);
        return 1;
      },
      &begin);
  return begin;
}

void protect(size_t begin, size_t end, int protection) {
  if (begin < end) mprotect(tessera_emulator_shared + begin, end - begin, protection);
}

}  // namespace

void open_shared_memory(size_t bytes) {
  static const std::vector<TlsRange> variables = find_static_variables();
  static thread_local char* const tls = tls_begin();
  for (const TlsRange& variable : variables) std::memset(tls + variable.offset, kGarbage, variable.bytes);
  const size_t open = (bytes + kPage - 1) / kPage * kPage;
  if (open > open_bytes) protect(open_bytes, open, PROT_READ | PROT_WRITE);
  if (open < open_bytes) protect(open, open_bytes, PROT_NONE);
  open_bytes = open;
  bytes_of_block = bytes;
  std::memset(tessera_emulator_shared, kGarbage, bytes);
  std::memset(tessera_emulator_shared + bytes, kWatched, open - bytes);
}

void check_shared_memory() {
  const char* const end = tessera_emulator_shared + open_bytes;
  const char* const begin = tessera_emulator_shared;
  const char* const wrong =
      std::find_if(begin + bytes_of_block, end, [](char byte) { return static_cast<unsigned char>(byte) != kWatched; });
  if (wrong != end) {
    fail({}, "a thread of the block wrote byte %td of shared memory; the launch asked for %zu bytes", wrong - begin,
         bytes_of_block);
  }
}

void close_shared_memory() {
  protect(open_bytes, kSharedCapacity, PROT_READ | PROT_WRITE);
  open_bytes = kSharedCapacity;
}

uint32_t shared_window() {
  static const uint32_t window = architecture() >= 90 ? 3 * 1024 : 3 * 128;
  return window;
}

size_t shared_bytes() { return bytes_of_block; }

int64_t shared_offset(const void* pointer) {
  const ptrdiff_t offset = static_cast<const char*>(pointer) - tessera_emulator_shared;
  return offset >= 0 && offset < static_cast<ptrdiff_t>(kSharedCapacity) ? offset : -1;
}

uint32_t shared_address(const void* pointer, Where where) {
  const int64_t offset = shared_offset(pointer);
  if (offset < 0) fail(where, "%p is no address of dynamic shared memory", pointer);
  return shared_window() + static_cast<uint32_t>(offset);
}

char* shared_pointer(uint32_t address, uint32_t bytes, uint32_t alignment, const char* what, Where where) {
  const int64_t offset = int64_t{address} - shared_window();
  if (offset < 0 || offset + bytes > static_cast<int64_t>(bytes_of_block)) {
    fail(where, "%s at byte %lld of shared memory; the launch asked for %zu bytes", what,
         static_cast<long long>(offset), bytes_of_block);
  }
  if (address % alignment != 0) {
    fail(where, "%s at byte %lld of shared memory, which is no multiple of %u", what, static_cast<long long>(offset),
         alignment);
  }
  return tessera_emulator_shared + offset;
}

}  // namespace tessera::emulator

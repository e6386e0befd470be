// Any bytes as a .npy file. Invariant: what the reader returns lies inside the file, as large as dtype and shape say.
#include "cli/npy.hpp"
#include "cli/failure.hpp"
#include "fuzz.hpp"

using tessera::fuzz::require;
namespace cli = tessera::cli;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span file(reinterpret_cast<const std::byte*>(data), size);
  try {
    const cli::TensorView view = cli::read_npy(file, "fuzz.npy");
    size_t bytes = 0;
    require(cli::checked_bytes(view.shape, cli::element_bytes(view.dtype), &bytes),
            "the size of an accepted array is known");
    require(bytes == view.bytes, "bytes agree with dtype and shape");
    require(view.bytes == 0 || (view.data >= file.data() && view.data + view.bytes <= file.data() + size),
            "the data lie inside the file");
  } catch (const cli::Failure& failure) {
    require(failure.exit_code == cli::kBadInput, "a bad file is bad input");
    require(!failure.message.empty() && failure.message.find('\n') == std::string::npos, "the message is one line");
  }
  return 0;
}

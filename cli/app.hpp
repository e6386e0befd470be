// The whole program but the process: arguments in, an exit code out.
#pragma once

namespace tessera::cli {

int run_app(int argc, const char* const* argv);

}  // namespace tessera::cli

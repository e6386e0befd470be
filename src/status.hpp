// How the library reports errors: a status code as return value and one line of text in the caller's struct.
#pragma once

#include "tessera/tessera.h"

namespace tessera::core {

// Fills `status` (may be null) with `code` and the printf-formatted line, and returns `code`.
[[gnu::format(printf, 3, 4)]] int fail(tessera_status* status, int code, const char* format, ...);

// Clears `status` (may be null) and returns TESSERA_OK.
int succeed(tessera_status* status);

}  // namespace tessera::core

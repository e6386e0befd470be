// Status lines: formatted straight into the caller's struct, so reporting an error never allocates.
#include "status.hpp"

#include <cstdarg>
#include <cstdio>

namespace tessera::core {

int fail(tessera_status* status, int code, const char* format, ...) {
  if (status == nullptr) return code;
  status->code = code;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(status->message, sizeof status->message, format, arguments);
  va_end(arguments);
  // A message is one line whatever the caller's words held.
  for (char* c = status->message; *c != '\0'; ++c) {
    if (static_cast<unsigned char>(*c) < 0x20 || *c == 0x7f) *c = '?';
  }
  return code;
}

int succeed(tessera_status* status) {
  if (status != nullptr) {
    status->code = TESSERA_OK;
    status->message[0] = '\0';
  }
  return TESSERA_OK;
}

}  // namespace tessera::core

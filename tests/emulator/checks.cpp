// Where the device sources' own checks end: they are compiled with the compiler's checks of alignment, array bounds and
// integer arithmetic, whose reports come here instead of to the compiler's library. The layouts are those of the UBSan
// runtime's interface (compiler-rt, ubsan_handlers.h).
#include <cstddef>
#include <cstdint>

#include "failure.hpp"

namespace {

struct Location {
  const char* file;
  uint32_t line, column;
};
struct Type {
  uint16_t kind, info;
  char name[1];
};
struct Mismatch {
  Location at;
  const Type* type;
  unsigned char log_alignment, kind;
};
struct OutOfBounds {
  Location at;
  const Type *array, *index;
};
struct Arithmetic {
  Location at;
};

}  // namespace

extern "C" [[gnu::visibility("default")]] void __ubsan_handle_type_mismatch_v1_abort(const Mismatch* what,
                                                                                     uintptr_t pointer) {
  tessera::emulator::fail({what->at.file, what->at.line}, "a misaligned address: %p as %s, which needs %u bytes",
                          reinterpret_cast<void*>(pointer), what->type->name, 1u << what->log_alignment);
}

extern "C" [[gnu::visibility("default")]] void __ubsan_handle_out_of_bounds_abort(const OutOfBounds* what,
                                                                                  uintptr_t index) {
  tessera::emulator::fail({what->at.file, what->at.line}, "index %td of %s", static_cast<ptrdiff_t>(index),
                          what->array->name);
}

#define TESSERA_ARITHMETIC_CHECK(name, what)                                                                         \
  extern "C" [[gnu::visibility("default")]] void __ubsan_handle_##name##_abort(const Arithmetic* check, uintptr_t) { \
    tessera::emulator::fail({check->at.file, check->at.line}, what);                                                 \
  }
TESSERA_ARITHMETIC_CHECK(add_overflow, "a signed sum overflows")
TESSERA_ARITHMETIC_CHECK(sub_overflow, "a signed difference overflows")
TESSERA_ARITHMETIC_CHECK(mul_overflow, "a signed product overflows")
TESSERA_ARITHMETIC_CHECK(negate_overflow, "a signed negation overflows")
TESSERA_ARITHMETIC_CHECK(divrem_overflow, "a division by zero, or one that overflows")
TESSERA_ARITHMETIC_CHECK(shift_out_of_bounds, "a shift by too much, or of a negative number")

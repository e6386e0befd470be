// The portable vector code for the tests, in a namespace apart from the library's.
#define TESSERA_CPU_ISA test_portable
#include "cpu/vec_portable.hpp"

#include "make_functions.hpp"

namespace tessera::test {
const IsaFunctions kPortableFunctions = cpu::test_portable::make_functions("portable");
}  // namespace tessera::test

// The avx2 vector code for the tests, in a namespace apart from the library's.
#define TESSERA_CPU_ISA test_avx2
#include "cpu/vec_avx2.hpp"

#include "make_functions.hpp"

namespace tessera::test {
const IsaFunctions kAvx2Functions = cpu::test_avx2::make_functions("avx2");
}  // namespace tessera::test

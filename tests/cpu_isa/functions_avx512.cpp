// The avx512 vector code for the tests, in a namespace apart from the library's.
#define TESSERA_CPU_ISA test_avx512
#include "cpu/vec_avx512.hpp"

#include "make_functions.hpp"

namespace tessera::test {
const IsaFunctions kAvx512Functions = cpu::test_avx512::make_functions("avx512");
}  // namespace tessera::test

// The rules on one pointer of a call: there where it is needed, aligned as promised. The lists of them are in run.cpp
// and append_rules.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "problem.hpp"
#include "status.hpp"

namespace tessera::core {

inline int check_pointer(tessera_status* status, const char* name, const void* pointer, uintptr_t align) {
  if (pointer == nullptr) return fail(status, TESSERA_INVALID_ARGUMENT, "%s is NULL; expected a pointer", name);
  if (reinterpret_cast<uintptr_t>(pointer) % align == 0) return TESSERA_OK;
  return fail(status, TESSERA_INVALID_ARGUMENT, "%s is %p; expected an address that is a multiple of %d bytes", name,
              pointer, static_cast<int>(align));
}

struct PointerRule {
  const char* name;
  const void* pointer;
  int32_t align;
  bool needed;
};

template <size_t count>
int check_rules(const PointerRule (&rules)[count], tessera_status* status) {
  for (const PointerRule& rule : rules) {
    if (!rule.needed) continue;
    if (const int code = check_pointer(status, rule.name, rule.pointer, static_cast<uintptr_t>(rule.align)))
      return code;
  }
  return TESSERA_OK;
}

// Of lengths, page tables, leftpad and batch_idx; and of scales, which are optional but refused where the operand takes
// none (run.cpp).
int check_metadata_pointers(const Problem& problem, const tessera_tensors& tensors, tessera_status* status);
int check_scales(const Problem& problem, const tessera_tensors& tensors, tessera_status* status);

}  // namespace tessera::core

// The half of validate() that is about operands: dtypes, alignment, strides; append.cpp holds its own operands to them.
#pragma once

#include "problem.hpp"

namespace tessera::core {

// Extents of an operand: [batch or page, row, head, dim], packed [row, head, dim].
struct Dims {
  int64_t extent[4];
  int32_t rank;
};
Dims query_dims(const Problem& problem, int32_t dim);
Dims key_dims(const Problem& problem, int32_t dim);
// Of v: under v_order 1 [batch or page, head, dim, slot], packed [head, dim, slot].
Dims value_dims(const Problem& problem);

// Checks one desc and fills *operand with its dtype, alignment and strides. `written`: no two elements may overlap.
int resolve_operand(tessera_status* status, const char* name, const tessera_desc& desc, int32_t dtype, const Dims& dims,
                    bool written, Operand* operand);
// The rule of written operands for one that was resolved as an input; rank 4.
int check_written(tessera_status* status, const char* name, const Operand& operand, const Dims& dims);

// Signs and reach of the literal strides of written float32 scales, a stride of 0 sharing them; sets those of size-1
// dims to 0.
int check_scale_strides(tessera_status* status, const char* name, const Dims& dims, int64_t* stride);
// A value of a choice of dtypes.
int refuse_dtype(tessera_status* status, const char* name, int32_t dtype, const char* expected);

// Checks every desc of `given` that its pass and flags use, against the numbers already in *problem, and fills
// *problem's operands.
int resolve_operands(const tessera_problem& given, Problem* problem, tessera_status* status);

}  // namespace tessera::core

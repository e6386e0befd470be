// Where the elements of v lie under v_order 1, by the definition in docs/semantics.md, not by the library's helpers.
#pragma once

#include <cstdint>

#include "tessera/tessera.h"

namespace tessera::baselines {

// Slots of a channel: rows rounded up to groups of 16, packed ones with groups of its own for each sequence.
int64_t ordered_slots(const tessera_problem& p);
// v's strides where the caller set none: contiguous [batch or page, head, channel, slot], packed [head, channel, slot].
void set_ordered_strides(tessera_problem* p);
// Elements from v's first to its last.
int64_t ordered_span(const tessera_problem& p, int64_t outer);

// One row of v: `outer` its page or cache row, `row` counted from that, packed from the sequence's first, which is
// packed row `first` of sequence `batch`.
struct OrderedRow {
  int64_t outer, row, first, batch;
};
int64_t ordered_offset(const tessera_problem& p, const OrderedRow& at, int64_t head, int64_t channel);

}  // namespace tessera::baselines

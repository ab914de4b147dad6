#pragma once

#include <vector>

#include "collectives/schedule.hpp"

// reduce_scatter: `input` is one block for each rank, of counts[rank] elements; `output` is this rank's
// block, reduced over all ranks.

namespace rdmatx {

/// Every block straight to its rank, which reduces in the order of the ranks.
RDMATX_API Schedule reduce_scatter_direct(const Place& place, const std::vector<uint64_t>& counts);
/// Blocks around a ring to their ranks.
RDMATX_API Schedule reduce_scatter_ring(const Place& place, const std::vector<uint64_t>& counts);

}  // namespace rdmatx

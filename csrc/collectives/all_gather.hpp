#pragma once

#include <vector>

#include "collectives/schedule.hpp"

// all_gather: `input` is this rank's block, of counts[rank] elements; `output` is the blocks of all ranks.

namespace rdmatx {

/// Every rank sends its block to every other.
RDMATX_API Schedule all_gather_direct(const Place& place, const std::vector<uint64_t>& counts);
/// Twice as many blocks to ranks twice as far away each time: as many steps as the world has bits.
RDMATX_API Schedule all_gather_dissemination(const Place& place, const std::vector<uint64_t>& counts);
/// Blocks around a ring.
RDMATX_API Schedule all_gather_ring(const Place& place, const std::vector<uint64_t>& counts);

}  // namespace rdmatx

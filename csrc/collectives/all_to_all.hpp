#pragma once

#include <vector>

#include "collectives/schedule.hpp"

namespace rdmatx {

/// all_to_all: `input` is a block for each rank, of send_counts[rank] elements; `output` is one from each, of
/// receive_counts[rank]. Every rank begins with another one.
RDMATX_API Schedule all_to_all_direct(const Place& place, const std::vector<uint64_t>& send_counts,
                                      const std::vector<uint64_t>& receive_counts);

/// barrier: a word to ranks twice as far away each time, a byte of scratch each.
RDMATX_API Schedule barrier_dissemination(const Place& place);

}  // namespace rdmatx

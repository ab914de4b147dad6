#pragma once

#include "collectives/schedule.hpp"

// all_reduce of `count` elements in place, in `output`. On every rank each element is the same expression of
// the ranks' elements, or computed by one rank for all: the results are the same, bit by bit.

namespace rdmatx {

/// Every rank sends to every other and reduces all itself, in the order of the ranks: one step of latency.
RDMATX_API Schedule all_reduce_direct(const Place& place, uint64_t count);
/// Whole vectors between pairs, at twice the distance each time: as many steps as the world has bits.
RDMATX_API Schedule all_reduce_recursive_doubling(const Place& place, uint64_t count);
/// Halves between pairs, at half the distance each time, and back: little data in few steps.
RDMATX_API Schedule all_reduce_halving_doubling(const Place& place, uint64_t count);
/// Blocks around a ring, twice: the least data a rank, in most steps.
RDMATX_API Schedule all_reduce_ring(const Place& place, uint64_t count);

}  // namespace rdmatx

#pragma once

#include <vector>

#include "collectives/schedule.hpp"

// Collectives with a root. broadcast works in place, in `output`; reduce takes `input` and gives `output`, on
// the root alone; gather and scatter have a block of counts[rank] elements for each rank, together in the
// root's `output` or `input`.

namespace rdmatx {

/// A tree of as many levels as the world has bits.
RDMATX_API Schedule broadcast_tree(const Place& place, uint64_t count, int root);
/// From rank to rank, as a pipeline.
RDMATX_API Schedule broadcast_chain(const Place& place, uint64_t count, int root);

RDMATX_API Schedule reduce_tree(const Place& place, uint64_t count, int root);
RDMATX_API Schedule reduce_chain(const Place& place, uint64_t count, int root);

/// The root hears from, or speaks to, every rank itself.
RDMATX_API Schedule gather_direct(const Place& place, const std::vector<uint64_t>& counts, int root);
RDMATX_API Schedule scatter_direct(const Place& place, const std::vector<uint64_t>& counts, int root);

}  // namespace rdmatx

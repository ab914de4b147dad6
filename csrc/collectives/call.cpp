#include "collectives/call.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "base/error.hpp"
#include "collectives/all_gather.hpp"
#include "collectives/all_reduce.hpp"
#include "collectives/all_to_all.hpp"
#include "collectives/reduce_scatter.hpp"
#include "collectives/rooted.hpp"

namespace rdmatx {
namespace {

constexpr std::array<const char*, collective_count> collectives{"all_reduce", "reduce_scatter", "all_gather",
                                                                "broadcast",  "reduce",         "gather",
                                                                "scatter",    "all_to_all",     "barrier"};
constexpr std::array<const char*, 8> algorithms{
    "automatic", "direct", "recursive_doubling", "halving_doubling", "ring", "dissemination",
    "tree",      "chain"};

bool has_root(Collective collective) noexcept {
  return collective == Collective::broadcast || collective == Collective::reduce ||
         collective == Collective::gather || collective == Collective::scatter;
}

uint64_t mix(uint64_t hash, uint64_t value) noexcept {
  hash ^= value;
  hash *= 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 29);
}

uint64_t sum(const std::vector<uint64_t>& counts) noexcept {
  uint64_t total = 0;
  for (const uint64_t count : counts) total += count;
  return total;
}

std::vector<uint64_t> blocks_of(const Call& call, int world) {
  return call.counts.empty() ? std::vector<uint64_t>(static_cast<size_t>(world), call.count) : call.counts;
}

std::string text_of(Collective collective, uint64_t count, bool uneven, DataType type,
                    ReduceOperation operation, int root) {
  std::string text = collective_name(collective);
  if (collective == Collective::barrier) return text;
  const bool in_blocks = collective != Collective::all_reduce && collective != Collective::broadcast &&
                         collective != Collective::reduce;
  text += uneven
              ? " of blocks of " + std::to_string(count) + " " + data_type_name(type) + " elements altogether"
              : std::string(" of ") + (in_blocks ? "blocks of " : "") + std::to_string(count) + " " +
                    data_type_name(type) + " elements";
  const bool reduces = collective == Collective::all_reduce || collective == Collective::reduce ||
                       collective == Collective::reduce_scatter;
  if (reduces) text += std::string(", op ") + reduce_operation_name(operation);
  if (has_root(collective)) text += ", root " + std::to_string(root);
  return text;
}

}  // namespace

const char* collective_name(Collective collective) noexcept {
  return collectives[static_cast<size_t>(collective)];
}

const char* algorithm_name(Algorithm algorithm) noexcept {
  return algorithms[static_cast<size_t>(algorithm)];
}

Collective parse_collective(const std::string& name) {
  std::string known;
  for (size_t i = 0; i < collectives.size(); ++i) {
    if (name == collectives[i]) return static_cast<Collective>(i);
    known += (i > 0 ? ", " : "") + std::string(collectives[i]);
  }
  throw UsageError("\"" + name + "\" is no collective: it is one of " + known);
}

Algorithm parse_algorithm(const std::string& name) {
  if (name.empty()) return Algorithm::automatic;
  std::string known;
  for (size_t i = 0; i < algorithms.size(); ++i) {
    if (name == algorithms[i]) return static_cast<Algorithm>(i);
    known += (i > 0 ? ", " : "") + std::string(algorithms[i]);
  }
  throw UsageError("\"" + name + "\" is no algorithm of a collective: it is one of " + known);
}

std::vector<Algorithm> algorithms_of(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
      return {Algorithm::direct, Algorithm::recursive_doubling, Algorithm::halving_doubling, Algorithm::ring};
    case Collective::reduce_scatter:
      return {Algorithm::direct, Algorithm::ring};
    case Collective::all_gather:
      return {Algorithm::direct, Algorithm::dissemination, Algorithm::ring};
    case Collective::broadcast:
    case Collective::reduce:
      return {Algorithm::tree, Algorithm::chain};
    case Collective::barrier:
      return {Algorithm::dissemination};
    case Collective::gather:
    case Collective::scatter:
    case Collective::all_to_all:
      break;
  }
  return {Algorithm::direct};
}

uint64_t Call::input_count(int rank, int world) const noexcept {
  const auto r = static_cast<size_t>(rank);
  const uint64_t all = counts.empty() ? count * static_cast<uint64_t>(world) : sum(counts);
  const uint64_t own = counts.empty() ? count : counts[r];
  switch (collective) {
    case Collective::reduce_scatter:
    case Collective::all_to_all:
      return all;
    case Collective::all_gather:
    case Collective::gather:
      return own;
    case Collective::reduce:
      return count;
    case Collective::scatter:
      return rank == root ? all : 0;
    case Collective::all_reduce:
    case Collective::broadcast:
    case Collective::barrier:
      break;
  }
  return 0;
}

uint64_t Call::output_count(int rank, int world) const noexcept {
  const auto r = static_cast<size_t>(rank);
  const uint64_t all = counts.empty() ? count * static_cast<uint64_t>(world) : sum(counts);
  const uint64_t own = counts.empty() ? count : counts[r];
  switch (collective) {
    case Collective::all_reduce:
    case Collective::broadcast:
      return count;
    case Collective::reduce_scatter:
    case Collective::scatter:
      return own;
    case Collective::all_gather:
      return all;
    case Collective::gather:
      return rank == root ? all : 0;
    case Collective::reduce:
      return rank == root ? count : 0;
    case Collective::all_to_all:
      return receive_counts.empty() ? all : sum(receive_counts);
    case Collective::barrier:
      break;
  }
  return 0;
}

std::string describe(const Call& call) {
  return text_of(call.collective, call.counts.empty() ? call.count : sum(call.counts), !call.counts.empty(),
                 call.type, call.operation, call.root);
}

CallRecord record_of(const Call& call, uint64_t sequence) {
  CallRecord record;
  record.sequence = sequence;
  record.collective = call.collective;
  record.type = call.type;
  record.operation = call.reduces() ? call.operation : ReduceOperation::sum;
  record.root = has_root(call.collective) ? call.root : 0;
  record.algorithm = call.algorithm;
  uint64_t details = mix(1, call.chunk_bytes);
  // What ranks of an all_to_all with blocks of several sizes send differs from rank to rank.
  if (call.collective != Collective::all_to_all || call.counts.empty()) {
    record.count = call.counts.empty() ? call.count : sum(call.counts);
    for (const uint64_t count : call.counts) details = mix(details, count);
  }
  if (!call.counts.empty()) details = mix(details, 2);
  if (call.operation == ReduceOperation::premul_sum)
    details = mix(details, std::bit_cast<uint64_t>(call.factor));
  record.details = details;
  return record;
}

uint64_t CallRecord::tag() const noexcept {
  uint64_t hash = mix(mix(mix(sequence + 1, count), details), static_cast<uint32_t>(root));
  hash = mix(hash, static_cast<uint64_t>(collective) | static_cast<uint64_t>(type) << 8 |
                       static_cast<uint64_t>(operation) << 16 | static_cast<uint64_t>(algorithm) << 24);
  return hash | uint64_t{1} << 63;
}

std::string describe(const CallRecord& record) {
  return "call " + std::to_string(record.sequence) + ", " +
         text_of(record.collective, record.count, false, record.type, record.operation, record.root) +
         " (algorithm " + algorithm_name(record.algorithm) + ")";
}

Schedule make_schedule(const Call& call, int rank, int world) {
  const uint64_t bytes = element_bytes(call.type);
  const Place place{rank, world,
                    call.chunk_bytes == 0 ? UINT64_MAX : std::max<uint64_t>(1, call.chunk_bytes / bytes)};
  switch (call.collective) {
    case Collective::all_reduce:
      if (call.algorithm == Algorithm::direct) return all_reduce_direct(place, call.count);
      if (call.algorithm == Algorithm::recursive_doubling)
        return all_reduce_recursive_doubling(place, call.count);
      if (call.algorithm == Algorithm::halving_doubling)
        return all_reduce_halving_doubling(place, call.count);
      return all_reduce_ring(place, call.count);
    case Collective::reduce_scatter:
      return call.algorithm == Algorithm::direct ? reduce_scatter_direct(place, blocks_of(call, world))
                                                 : reduce_scatter_ring(place, blocks_of(call, world));
    case Collective::all_gather:
      if (call.algorithm == Algorithm::direct) return all_gather_direct(place, blocks_of(call, world));
      if (call.algorithm == Algorithm::dissemination)
        return all_gather_dissemination(place, blocks_of(call, world));
      return all_gather_ring(place, blocks_of(call, world));
    case Collective::broadcast:
      return call.algorithm == Algorithm::tree ? broadcast_tree(place, call.count, call.root)
                                               : broadcast_chain(place, call.count, call.root);
    case Collective::reduce:
      return call.algorithm == Algorithm::tree ? reduce_tree(place, call.count, call.root)
                                               : reduce_chain(place, call.count, call.root);
    case Collective::gather:
      return gather_direct(place, blocks_of(call, world), call.root);
    case Collective::scatter:
      return scatter_direct(place, blocks_of(call, world), call.root);
    case Collective::all_to_all:
      return all_to_all_direct(place, blocks_of(call, world),
                               call.receive_counts.empty() ? blocks_of(call, world) : call.receive_counts);
    case Collective::barrier:
      break;
  }
  return barrier_dissemination(place);
}

}  // namespace rdmatx

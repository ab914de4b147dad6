// Which algorithm serves a call, by size and world: see call.hpp.

#include <algorithm>
#include <cstdlib>
#include <string>

#include "base/error.hpp"
#include "collectives/call.hpp"

namespace rdmatx {
namespace {

constexpr uint64_t kibibyte = 1024;
constexpr uint64_t default_chunk_bytes = 512 * kibibyte;

Algorithm all_reduce_for(uint64_t bytes, int world) noexcept {
  // Whole vectors to everybody are the fewest steps; with many ranks or bytes, that is too much data.
  if (world <= 4 && bytes <= 8 * kibibyte) return Algorithm::direct;
  if (bytes <= 32 * kibibyte) return Algorithm::recursive_doubling;
  if (bytes <= 512 * kibibyte && world > 2) return Algorithm::halving_doubling;
  return Algorithm::ring;
}

Algorithm best_for(const Call& call, uint64_t bytes, int world) noexcept {
  switch (call.collective) {
    case Collective::all_reduce:
      return all_reduce_for(bytes, world);
    case Collective::reduce_scatter:
      return bytes <= 64 * kibibyte ? Algorithm::direct : Algorithm::ring;
    case Collective::all_gather:
      if (world <= 8 || bytes > 64 * kibibyte)
        return bytes <= 256 * kibibyte ? Algorithm::direct : Algorithm::ring;
      return Algorithm::dissemination;
    case Collective::broadcast:
    case Collective::reduce:
      return bytes <= 64 * kibibyte ? Algorithm::tree : Algorithm::chain;
    case Collective::barrier:
      return Algorithm::dissemination;
    case Collective::gather:
    case Collective::scatter:
    case Collective::all_to_all:
      break;
  }
  return Algorithm::direct;
}

bool has(Collective collective, Algorithm algorithm) {
  const auto all = algorithms_of(collective);
  return std::find(all.begin(), all.end(), algorithm) != all.end();
}

std::string list_of(Collective collective) {
  std::string text;
  for (const Algorithm algorithm : algorithms_of(collective))
    text += (text.empty() ? "" : ", ") + std::string(algorithm_name(algorithm));
  return text;
}

// The first line that is large enough, of the largest world that is not too large; null where there is none.
const TuningRule* rule_for(const Call& call, uint64_t bytes, int world, const TuningTable& table) noexcept {
  const TuningRule* found = nullptr;
  for (const TuningRule& rule : table) {
    if (rule.collective != call.collective || rule.world > world || bytes > rule.max_bytes) continue;
    if (!found || rule.world > found->world) found = &rule;
  }
  return found;
}

void check_algorithm(Collective collective, Algorithm algorithm) {
  if (has(collective, algorithm)) return;
  throw UsageError(std::string(collective_name(collective)) + " has no algorithm \"" +
                   algorithm_name(algorithm) + "\": it has " + list_of(collective));
}

}  // namespace

void check_tuning(const TuningTable& table) {
  for (const TuningRule& rule : table) check_algorithm(rule.collective, rule.algorithm);
}

void choose_algorithm(Call& call, int world, const TuningTable& table) {
  const uint64_t elements =
      call.counts.empty() ? call.count : *std::max_element(call.counts.begin(), call.counts.end());
  const uint64_t bytes = elements * element_bytes(call.type);
  const TuningRule* rule = rule_for(call, bytes, world, table);
  if (call.algorithm == Algorithm::automatic) {
    // The environment speaks for all collectives: it holds for those that have such an algorithm.
    const char* text = std::getenv("RDMATX_ALGORITHM");
    const Algorithm wanted = text ? parse_algorithm(text) : Algorithm::automatic;
    call.algorithm = wanted != Algorithm::automatic && has(call.collective, wanted) ? wanted
                     : rule                                                         ? rule->algorithm
                            : best_for(call, bytes, world);
  }
  check_algorithm(call.collective, call.algorithm);
  if (call.chunk_bytes > 0) return;
  const bool measured = rule && rule->algorithm == call.algorithm && rule->chunk_bytes > 0;
  call.chunk_bytes = measured ? rule->chunk_bytes : default_chunk_bytes;
}

}  // namespace rdmatx

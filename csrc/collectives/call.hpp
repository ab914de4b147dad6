#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/export.hpp"
#include "collectives/data_type.hpp"
#include "collectives/schedule.hpp"

namespace rdmatx {

enum class Collective : uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  gather,
  scatter,
  all_to_all,
  barrier,
};
constexpr int collective_count = 9;
RDMATX_API const char* collective_name(Collective collective) noexcept;
/// Throws UsageError that lists the names there are.
RDMATX_API Collective parse_collective(const std::string& name);

enum class Algorithm : uint8_t {
  automatic,
  direct,
  recursive_doubling,
  halving_doubling,
  ring,
  dissemination,
  tree,
  chain,
};
RDMATX_API const char* algorithm_name(Algorithm algorithm) noexcept;
/// "" is automatic. Throws UsageError that lists the names there are.
RDMATX_API Algorithm parse_algorithm(const std::string& name);
/// Those that a collective has; the first is for little, the last for much.
RDMATX_API std::vector<Algorithm> algorithms_of(Collective collective);

/// What a rank asks a group to do. Ranks that take part in one collective ask for the same.
struct Call {
  Collective collective = Collective::barrier;
  DataType type = DataType::uint8;
  ReduceOperation operation = ReduceOperation::sum;
  double factor = 1;  ///< of a premul_sum
  int root = 0;
  uint64_t count = 0;  ///< elements of the vector, or of a block
  /// Of blocks of several sizes: elements by rank; of an all_to_all those sent. Else empty.
  std::vector<uint64_t> counts;
  std::vector<uint64_t> receive_counts;  ///< of an all_to_all
  Algorithm algorithm = Algorithm::automatic;
  uint64_t chunk_bytes = 0;  ///< 0: chosen with the algorithm

  bool reduces() const noexcept {
    return collective == Collective::all_reduce || collective == Collective::reduce_scatter ||
           collective == Collective::reduce;
  }
  /// Elements of the buffers that this rank gives and gets.
  uint64_t input_count(int rank, int world) const noexcept;
  uint64_t output_count(int rank, int world) const noexcept;
};

/// "all_reduce of 1000 float32 elements (op sum)": for messages to people.
RDMATX_API std::string describe(const Call& call);

/// What ranks tell each other of a call, to see that they ask for the same. A plain value, sent as it lies.
struct CallRecord {
  uint64_t sequence = 0;
  uint64_t count = 0;
  uint64_t details = 0;  ///< a hash of everything else that has to be the same
  int32_t root = 0;
  Collective collective = Collective::barrier;
  DataType type = DataType::uint8;
  ReduceOperation operation = ReduceOperation::sum;
  Algorithm algorithm = Algorithm::automatic;

  bool operator==(const CallRecord&) const = default;
  /// Names the messages of this call among all of a connection.
  uint64_t tag() const noexcept;
};
static_assert(sizeof(CallRecord) == 32);
RDMATX_API CallRecord record_of(const Call& call, uint64_t sequence);
RDMATX_API std::string describe(const CallRecord& record);

/// A line of a table that was measured (`rdmatx tune`): what serves a collective of up to so many bytes (of
/// the vector, or of the largest block) in a world of this size.
struct TuningRule {
  Collective collective = Collective::barrier;
  int world = 1;
  uint64_t max_bytes = 0;
  Algorithm algorithm = Algorithm::direct;
  uint64_t chunk_bytes = 0;
};
/// In ascending order of bytes. Lines of the largest world that is not larger than the group's hold for it.
using TuningTable = std::vector<TuningRule>;

/// Fills in the algorithm and the size of chunks where the call leaves them open: RDMATX_ALGORITHM, else the
/// table's, else by size and world. Throws UsageError where the algorithm is none of this collective.
RDMATX_API void choose_algorithm(Call& call, int world, const TuningTable& table = {});
/// Throws UsageError where a line names an algorithm that its collective has not.
RDMATX_API void check_tuning(const TuningTable& table);
/// Of a call whose algorithm was chosen.
RDMATX_API Schedule make_schedule(const Call& call, int rank, int world);

}  // namespace rdmatx

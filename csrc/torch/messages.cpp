// Messages between two ranks, and the barrier that is made of them; see backend.hpp.

#include <utility>

#include "torch/backend.hpp"

namespace rdmatx::distributed {
namespace {

using c10d::OpType;

/// Tags of the backend's own messages begin here; those of users have 32 bits.
constexpr uint64_t own_tags = uint64_t{1} << 62;

OperationMemory memory_of(uint8_t& byte) {
  OperationMemory memory;
  memory.data = &byte;
  memory.bytes = 1;
  return memory;
}

}  // namespace

Backend::WorkPointer Backend::start_message(Tensors& tensors, int peer, int tag, OpType type) {
  const bool sends = type == OpType::SEND;
  const char* name = sends ? "send" : "recv";
  const at::Tensor& tensor = only(tensors, name, "tensors");
  check_tensor(tensor, name);
  TORCH_CHECK_VALUE(tag >= 0, "rdmatx: ", name, ": a tag is a number from 0 up, and was ", tag);
  std::vector<Finish> finishes;
  const at::Tensor dense = sends ? dense_input(tensor) : dense_output(tensor, true, finishes);
  const char* title = sends ? "rdmatx:send" : type == OpType::RECV ? "rdmatx:recv" : "rdmatx:recvAnySource";
  auto work = c10::make_intrusive<Work>(getRank(), type, title, tensors, sequence_.load(),
                                        Outputs{tensors, {}}, std::move(finishes));
  const GroupCallOptions options{seconds_of(c10d::kUnsetTimeout), true};
  const auto user_tag = static_cast<uint64_t>(tag);
  work->stand_for(translated([&] {
    OperationMemory memory = distributed::memory_of(dense);
    if (sends) return group_->send(std::move(memory), peer, user_tag, options);
    const auto source = type == OpType::RECV ? std::optional<int>(peer) : std::nullopt;
    return group_->receive(std::move(memory), source, user_tag, options);
  }));
  return work;
}

Backend::WorkPointer Backend::send(Tensors& tensors, int destination, int tag) {
  return start_message(tensors, destination, tag, OpType::SEND);
}

Backend::WorkPointer Backend::recv(Tensors& tensors, int source, int tag) {
  return start_message(tensors, source, tag, OpType::RECV);
}

Backend::WorkPointer Backend::recvAnysource(Tensors& tensors, int tag) {
  return start_message(tensors, -1, tag, OpType::RECVANYSOURCE);
}

// Rank 0 hears of every other one, and lets them go on once it has heard of all. A receive that was in vain
// is withdrawn and the group lives on, so the caller may look into it.
void Backend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_for_all) {
  const uint64_t tag = own_tags + barriers_++;
  const double seconds = seconds_of(options.timeout);
  const Deadline deadline(seconds);
  const std::string after = " in " + std::to_string(static_cast<int64_t>(seconds * 1000)) + " ms";
  const auto left = [&] { return GroupCallOptions{deadline.left(seconds), false}; };
  uint8_t byte = 0;
  if (getRank() != 0) {
    try {
      group_->send(memory_of(byte), 0, tag, left()).wait({});
      group_->receive(memory_of(byte), 0, tag, left()).wait({});
    } catch (const Error& error) {
      C10_THROW_ERROR(DistBackendError,
                      "Rank " + std::to_string(getRank()) +
                          " successfully reached monitoredBarrier, but received errors while waiting for "
                          "send/recv from rank 0" +
                          after + ": " + error.what());
    }
    return;
  }
  std::vector<std::string> missing;
  for (int rank = 1; rank < getSize() && (missing.empty() || wait_for_all); ++rank) {
    if (missing.empty() && deadline.passed())
      C10_THROW_ERROR(DistBackendError, "Rank 0 timed out in monitoredBarrier" + after + ", before rank " +
                                            std::to_string(rank) + " was looked at");
    try {
      group_->receive(memory_of(byte), rank, tag, left()).wait({});
    } catch (const TimeoutError&) {
      missing.push_back(std::to_string(rank));
    } catch (const Error& error) {
      C10_THROW_ERROR(DistBackendError, "Rank " + std::to_string(rank) + " failed to pass monitoredBarrier" +
                                            after + ": " + error.what());
    }
  }
  if (!missing.empty())
    C10_THROW_ERROR(DistBackendError, (missing.size() == 1 ? "Rank " : "Ranks ") + c10::Join(", ", missing) +
                                          " failed to pass monitoredBarrier" + after);
  translated([&] {
    for (int rank = 1; rank < getSize(); ++rank) group_->send(memory_of(byte), rank, tag, left()).wait({});
  });
}

}  // namespace rdmatx::distributed

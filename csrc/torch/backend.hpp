#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/group.hpp"
#include "torch/csrc/distributed/c10d/Backend.hpp"
#include "torch/work.hpp"

namespace rdmatx::distributed {

/// torch.distributed over a group of rdmatx: every call of a process group becomes one of the group, or
/// several.
///
/// Collectives are started in the order of the calls and carried on by whoever waits, else by the group's own
/// thread; none needs the GIL. Errors of the arguments are ValueError and TypeError, and leave the group as
/// it was; those of the group are DistBackendError, after which every call raises the same. Owns the group.
/// Thread-safe, as the group is.
class Backend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;
  using WorkPointer = c10::intrusive_ptr<c10d::Work>;
  /// What the layer above does for a backend.
  struct Hooks {
    /// Makes the backend of some of the ranks, who meet in the store.
    std::function<c10::intrusive_ptr<c10d::Backend>(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int world, std::chrono::milliseconds timeout)>
        split;
    /// Called once, when the group was closed.
    std::function<void()> closed;
  };

  Backend(std::shared_ptr<Group> group, std::chrono::milliseconds timeout, Hooks hooks);
  ~Backend() override;

  const std::string getBackendName() const override { return "rdmatx"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;

  // Collectives (collectives.cpp).
  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPointer allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPointer allgather(TensorLists& outputs, Tensors& inputs,
                        const c10d::AllgatherOptions& options) override;
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input,
                              const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                  const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) override;
  WorkPointer gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPointer scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override;
  WorkPointer reduce_scatter(Tensors& outputs, TensorLists& inputs,
                             const c10d::ReduceScatterOptions& options) override;
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override;
  WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& options) override;
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                            std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& options) override;
  WorkPointer alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPointer barrier(const c10d::BarrierOptions& options) override;

  // Messages (messages.cpp).
  WorkPointer send(Tensors& tensors, int destination, int tag) override;
  WorkPointer recv(Tensors& tensors, int source, int tag) override;
  WorkPointer recvAnysource(Tensors& tensors, int tag) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_for_all) override;

  // The ranks of a group make the same calls, so their numbers agree from the start.
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_.load(); }

  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& options) override;
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;

 private:
  /// One operation of the group that a call is made of.
  struct Part {
    Call call;
    OperationMemory input;
    OperationMemory output;
  };

  /// Starts them in order.
  WorkPointer start(c10d::OpType type, const char* title, const Tensors& inputs, std::vector<Part> parts,
                    Outputs outputs, std::vector<Finish> finishes, std::chrono::milliseconds timeout,
                    bool in_background);
  /// The same, for a call of torch's; `options` is its own.
  template <typename CallOptions>
  WorkPointer start(c10d::OpType type, const char* title, const Tensors& inputs, std::vector<Part> parts,
                    Outputs outputs, std::vector<Finish> finishes, const CallOptions& options) {
    return start(type, title, inputs, std::move(parts), std::move(outputs), std::move(finishes),
                 options.timeout, is_asynchronous(options));
  }
  /// Releases of torch that do not say so are taken to mean that it is.
  template <typename CallOptions>
  static bool is_asynchronous(const CallOptions& options) {
    if constexpr (requires { options.asyncOp; })
      return options.asyncOp;
    else
      return true;
  }
  /// At once, for calls that are made of several steps.
  void run(Part part, std::chrono::milliseconds timeout);
  WorkPointer start_message(Tensors& tensors, int peer, int tag, c10d::OpType type);
  double seconds_of(std::chrono::milliseconds timeout) const;
  Part all_gather_part(const at::Tensor& output, const at::Tensor& input,
                       std::vector<uint64_t> counts = {}) const;
  Part reduce_scatter_part(const at::Tensor& output, const at::Tensor& input, const c10d::ReduceOp& operation,
                           std::vector<uint64_t> counts = {}) const;
  Part all_gather_lists(const Tensors& outputs, const at::Tensor& input, std::vector<Finish>& finishes) const;
  void check_root(int64_t root, const char* name) const;
  void check_ranks(size_t count, const char* name, const char* what) const;
  at::Tensor sum_of_all(const at::Tensor& sparse, std::chrono::milliseconds timeout);

  const std::shared_ptr<Group> group_;
  const c10::intrusive_ptr<Options> options_;
  const Hooks hooks_;
  std::once_flag closed_;
  std::atomic<uint64_t> sequence_{0};
  std::atomic<uint64_t> barriers_{0};  // monitored ones
};

}  // namespace rdmatx::distributed

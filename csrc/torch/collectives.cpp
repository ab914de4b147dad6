// What each collective of torch is to the group; see backend.hpp.

#include <numeric>
#include <utility>

#include "torch/backend.hpp"

namespace rdmatx::distributed {
namespace {

using c10d::OpType;

Call call_of(Collective collective, DataType type, uint64_t count) {
  Call call;
  call.collective = collective;
  call.type = type;
  call.count = count;
  return call;
}

void check_all(const std::vector<at::Tensor>& tensors, const at::Tensor& like, const char* name) {
  for (const at::Tensor& tensor : tensors) {
    check_tensor(tensor, name);
    check_same_type(tensor, like, name);
  }
}

/// What has a tensor for each rank is given by the root alone.
void check_lists(size_t count, bool is_root, const char* name, const char* what) {
  TORCH_CHECK_VALUE(count == (is_root ? 1 : 0), "rdmatx: ", name, " takes ",
                    is_root ? "one list" : "no lists", " of ", what, " on ",
                    is_root ? "the root" : "a rank that is not the root", ", and was given ", count);
}

/// Splits the first dimension by the sizes given, or equally among all ranks; in elements that the core sees.
std::vector<uint64_t> block_counts(const at::Tensor& tensor, const std::vector<int64_t>& sizes, int world,
                                   const char* what) {
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  if (sizes.empty()) {
    TORCH_CHECK_VALUE(rows % world == 0, "rdmatx: all_to_all of ", rows, " rows among ", world,
                      " ranks: they do not make equal blocks; pass split sizes");
    return std::vector<uint64_t>(static_cast<size_t>(world), count_of(tensor) / static_cast<uint64_t>(world));
  }
  TORCH_CHECK_VALUE(sizes.size() == static_cast<size_t>(world), "rdmatx: all_to_all takes ", world, " ", what,
                    " split sizes, one for each rank, and was given ", sizes.size());
  const int64_t sum = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  TORCH_CHECK_VALUE(sum == rows, "rdmatx: all_to_all: the ", what, " split sizes make ", sum,
                    " rows, and the ", what, " has ", rows);
  const uint64_t row = rows == 0 ? 0 : count_of(tensor) / static_cast<uint64_t>(rows);
  std::vector<uint64_t> counts;
  for (const int64_t size : sizes) {
    TORCH_CHECK_VALUE(size >= 0, "rdmatx: all_to_all: a split size is negative");
    counts.push_back(static_cast<uint64_t>(size) * row);
  }
  return counts;
}

}  // namespace

Backend::WorkPointer Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  const at::Tensor& tensor = only(tensors, "broadcast", "tensors");
  check_tensor(tensor, "broadcast");
  check_root(options.rootRank, "broadcast");
  std::vector<Finish> finishes;
  const bool sends = options.rootRank == getRank();
  const at::Tensor dense = sends ? dense_input(tensor) : dense_output(tensor, false, finishes);
  Call call = call_of(Collective::broadcast, moved_type_of(dense), count_of(dense));
  call.root = static_cast<int>(options.rootRank);
  return start(OpType::BROADCAST, "rdmatx:broadcast", tensors, {{call, {}, memory_of(dense)}}, {tensors, {}},
               std::move(finishes), options);
}

Backend::WorkPointer Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only(tensors, "all_reduce", "tensors");
  if (tensor.layout() == at::kSparse) return allreduce_sparse(tensors, options);
  check_tensor(tensor, "all_reduce");
  std::vector<Finish> finishes;
  const at::Tensor dense = dense_output(tensor, true, finishes);
  Call call = call_of(Collective::all_reduce, reduced_type_of(dense), count_of(dense));
  set_operation(call, options.reduceOp);
  return start(OpType::ALLREDUCE, "rdmatx:all_reduce", tensors, {{call, {}, memory_of(dense)}}, {tensors, {}},
               std::move(finishes), options);
}

Backend::WorkPointer Backend::allreduce_coalesced(Tensors& tensors,
                                                  const c10d::AllreduceCoalescedOptions& options) {
  TORCH_CHECK_VALUE(!tensors.empty(), "rdmatx: all_reduce_coalesced was given no tensors");
  check_all(tensors, tensors.front(), "all_reduce_coalesced");
  std::vector<Finish> finishes;
  const at::Tensor flat = flat_output(tensors, true, finishes);
  Call call = call_of(Collective::all_reduce, reduced_type_of(flat), count_of(flat));
  set_operation(call, options.reduceOp);
  return start(OpType::ALLREDUCE_COALESCED, "rdmatx:all_reduce", tensors, {{call, {}, memory_of(flat)}},
               {tensors, {}}, std::move(finishes), options);
}

Backend::WorkPointer Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  const at::Tensor& tensor = only(tensors, "reduce", "tensors");
  check_tensor(tensor, "reduce");
  check_root(options.rootRank, "reduce");
  std::vector<Finish> finishes;
  const bool gets = options.rootRank == getRank();
  const at::Tensor dense = gets ? dense_output(tensor, true, finishes) : dense_input(tensor);
  Call call = call_of(Collective::reduce, reduced_type_of(dense), count_of(dense));
  set_operation(call, options.reduceOp);
  call.root = static_cast<int>(options.rootRank);
  return start(OpType::REDUCE, "rdmatx:reduce", tensors,
               {{call, memory_of(dense), gets ? memory_of(dense) : OperationMemory{}}}, {tensors, {}},
               std::move(finishes), options);
}

Backend::Part Backend::all_gather_part(const at::Tensor& output, const at::Tensor& input,
                                       std::vector<uint64_t> counts) const {
  Call call = call_of(Collective::all_gather, moved_type_of(input), count_of(input));
  call.counts = std::move(counts);
  return {std::move(call), memory_of(input), memory_of(output)};
}

Backend::Part Backend::all_gather_lists(const Tensors& outputs, const at::Tensor& input,
                                        std::vector<Finish>& finishes) const {
  check_ranks(outputs.size(), "all_gather", "output tensors");
  check_tensor(input, "all_gather");
  check_all(outputs, input, "all_gather");
  TORCH_CHECK_VALUE(outputs[static_cast<size_t>(getRank())].numel() == input.numel(),
                    "rdmatx: all_gather: the input has ", input.numel(),
                    " elements, and the output of this rank ",
                    outputs[static_cast<size_t>(getRank())].numel());
  return all_gather_part(flat_output(outputs, false, finishes), dense_input(input), counts_of(outputs));
}

Backend::WorkPointer Backend::allgather(TensorLists& outputs, Tensors& inputs,
                                        const c10d::AllgatherOptions& options) {
  const at::Tensor& input = only(inputs, "all_gather", "input tensors");
  TORCH_CHECK_VALUE(outputs.size() == 1,
                    "rdmatx: all_gather takes one list of output tensors, and was given ", outputs.size());
  std::vector<Finish> finishes;
  Part part = all_gather_lists(outputs.front(), input, finishes);
  return start(OpType::ALLGATHER, "rdmatx:all_gather", inputs, {std::move(part)}, {{}, outputs},
               std::move(finishes), options);
}

Backend::WorkPointer Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                              const c10d::AllgatherOptions& options) {
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, options);
}

Backend::WorkPointer Backend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                                  const c10d::AllgatherOptions& options) {
  check_ranks(outputs.size(), "all_gather_coalesced", "lists of output tensors");
  std::vector<Finish> finishes;
  std::vector<Part> parts;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors of_ranks;
    for (const Tensors& list : outputs) {
      TORCH_CHECK_VALUE(list.size() == inputs.size(), "rdmatx: all_gather_coalesced: a list of ", list.size(),
                        " output tensors for ", inputs.size(), " input tensors");
      of_ranks.push_back(list[i]);
    }
    parts.push_back(all_gather_lists(of_ranks, inputs[i], finishes));
  }
  return start(OpType::ALLGATHER_COALESCED, "rdmatx:all_gather", inputs, std::move(parts), {{}, outputs},
               std::move(finishes), options);
}

Backend::WorkPointer Backend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                              const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "rdmatx: all_gather_into_tensor: ", outputs.size(),
                    " output tensors for ", inputs.size(), " input tensors");
  std::vector<Finish> finishes;
  std::vector<Part> parts;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_tensor(inputs[i], "all_gather_into_tensor");
    check_all({outputs[i]}, inputs[i], "all_gather_into_tensor");
    TORCH_CHECK_VALUE(outputs[i].numel() == inputs[i].numel() * getSize(),
                      "rdmatx: all_gather_into_tensor: the output has ", outputs[i].numel(),
                      " elements, and the inputs of all ranks ", inputs[i].numel() * getSize());
    parts.push_back(all_gather_part(dense_output(outputs[i], false, finishes), dense_input(inputs[i])));
  }
  return start(OpType::_ALLGATHER_BASE, "rdmatx:_all_gather_base", inputs, std::move(parts), {outputs, {}},
               std::move(finishes), options);
}

Backend::WorkPointer Backend::gather(TensorLists& outputs, Tensors& inputs,
                                     const c10d::GatherOptions& options) {
  const at::Tensor& input = only(inputs, "gather", "input tensors");
  check_tensor(input, "gather");
  check_root(options.rootRank, "gather");
  const bool gets = options.rootRank == getRank();
  check_lists(outputs.size(), gets, "gather", "output tensors");
  std::vector<Finish> finishes;
  Call call = call_of(Collective::gather, moved_type_of(input), count_of(input));
  call.root = static_cast<int>(options.rootRank);
  OperationMemory output;
  if (gets) {
    check_ranks(outputs.front().size(), "gather", "output tensors");
    check_all(outputs.front(), input, "gather");
    // The blocks of other ranks are as large as this one's: none of them knows of all counts.
    check_same_size(outputs.front(), input, "gather");
    output = memory_of(flat_output(outputs.front(), false, finishes));
  }
  return start(OpType::GATHER, "rdmatx:gather", inputs, {{call, memory_of(dense_input(input)), output}},
               {{}, outputs}, std::move(finishes), options);
}

Backend::WorkPointer Backend::scatter(Tensors& outputs, TensorLists& inputs,
                                      const c10d::ScatterOptions& options) {
  const at::Tensor& output = only(outputs, "scatter", "output tensors");
  check_tensor(output, "scatter");
  check_root(options.rootRank, "scatter");
  const bool gives = options.rootRank == getRank();
  check_lists(inputs.size(), gives, "scatter", "input tensors");
  std::vector<Finish> finishes;
  const at::Tensor dense = dense_output(output, false, finishes);
  Call call = call_of(Collective::scatter, moved_type_of(output), count_of(output));
  call.root = static_cast<int>(options.rootRank);
  OperationMemory input;
  if (gives) {
    check_ranks(inputs.front().size(), "scatter", "input tensors");
    check_all(inputs.front(), output, "scatter");
    check_same_size(inputs.front(), output, "scatter");
    input = memory_of(flat_input(inputs.front()));
  }
  return start(OpType::SCATTER, "rdmatx:scatter", joined(inputs), {{call, input, memory_of(dense)}},
               {outputs, {}}, std::move(finishes), options);
}

Backend::Part Backend::reduce_scatter_part(const at::Tensor& output, const at::Tensor& input,
                                           const c10d::ReduceOp& operation,
                                           std::vector<uint64_t> counts) const {
  Call call = call_of(Collective::reduce_scatter, reduced_type_of(output), count_of(output));
  call.counts = std::move(counts);
  set_operation(call, operation);
  return {std::move(call), memory_of(input), memory_of(output)};
}

Backend::WorkPointer Backend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                             const c10d::ReduceScatterOptions& options) {
  const at::Tensor& output = only(outputs, "reduce_scatter", "output tensors");
  check_tensor(output, "reduce_scatter");
  TORCH_CHECK_VALUE(inputs.size() == 1,
                    "rdmatx: reduce_scatter takes one list of input tensors, and was given ", inputs.size());
  check_ranks(inputs.front().size(), "reduce_scatter", "input tensors");
  check_all(inputs.front(), output, "reduce_scatter");
  const at::Tensor& own = inputs.front()[static_cast<size_t>(getRank())];
  TORCH_CHECK_VALUE(own.numel() == output.numel(), "rdmatx: reduce_scatter: the output has ", output.numel(),
                    " elements, and the input for this rank ", own.numel());
  std::vector<Finish> finishes;
  const at::Tensor dense = dense_output(output, false, finishes);
  Part part =
      reduce_scatter_part(dense, flat_input(inputs.front()), options.reduceOp, counts_of(inputs.front()));
  return start(OpType::REDUCE_SCATTER, "rdmatx:reduce_scatter", joined(inputs), {std::move(part)},
               {outputs, {}}, std::move(finishes), options);
}

Backend::WorkPointer Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                   const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, options);
}

Backend::WorkPointer Backend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                              const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "rdmatx: reduce_scatter_tensor: ", outputs.size(),
                    " output tensors for ", inputs.size(), " input tensors");
  std::vector<Finish> finishes;
  std::vector<Part> parts;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_tensor(outputs[i], "reduce_scatter_tensor");
    check_all({inputs[i]}, outputs[i], "reduce_scatter_tensor");
    TORCH_CHECK_VALUE(inputs[i].numel() == outputs[i].numel() * getSize(),
                      "rdmatx: reduce_scatter_tensor: the input has ", inputs[i].numel(),
                      " elements, and the outputs of all ranks ", outputs[i].numel() * getSize());
    const at::Tensor dense = dense_output(outputs[i], false, finishes);
    parts.push_back(reduce_scatter_part(dense, dense_input(inputs[i]), options.reduceOp));
  }
  return start(OpType::_REDUCE_SCATTER_BASE, "rdmatx:_reduce_scatter_base", inputs, std::move(parts),
               {outputs, {}}, std::move(finishes), options);
}

Backend::WorkPointer Backend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                            std::vector<int64_t>& output_sizes,
                                            std::vector<int64_t>& input_sizes,
                                            const c10d::AllToAllOptions& options) {
  check_tensor(output, "all_to_all");
  check_all({input}, output, "all_to_all");
  std::vector<Finish> finishes;
  const at::Tensor dense = dense_output(output, false, finishes);
  Call call = call_of(Collective::all_to_all, moved_type_of(input), 0);
  call.counts = block_counts(input, input_sizes, getSize(), "input");
  call.receive_counts = block_counts(output, output_sizes, getSize(), "output");
  return start(OpType::ALLTOALL_BASE, "rdmatx:all_to_all", {input},
               {{call, memory_of(dense_input(input)), memory_of(dense)}}, {{output}, {}}, std::move(finishes),
               options);
}

Backend::WorkPointer Backend::alltoall(Tensors& outputs, Tensors& inputs,
                                       const c10d::AllToAllOptions& options) {
  check_ranks(outputs.size(), "all_to_all", "output tensors");
  check_ranks(inputs.size(), "all_to_all", "input tensors");
  check_all(inputs, outputs.front(), "all_to_all");
  check_all(outputs, outputs.front(), "all_to_all");
  std::vector<Finish> finishes;
  const at::Tensor flat = flat_output(outputs, false, finishes);
  Call call = call_of(Collective::all_to_all, moved_type_of(flat), 0);
  for (const at::Tensor& tensor : inputs) call.counts.push_back(count_of(tensor));
  for (const at::Tensor& tensor : outputs) call.receive_counts.push_back(count_of(tensor));
  return start(OpType::ALLTOALL, "rdmatx:all_to_all", inputs,
               {{call, memory_of(flat_input(inputs)), memory_of(flat)}}, {outputs, {}}, std::move(finishes),
               options);
}

Backend::WorkPointer Backend::barrier(const c10d::BarrierOptions& options) {
  return start(OpType::BARRIER, "rdmatx:barrier", {}, {{Call{}, {}, {}}}, {}, {}, options);
}

// As many as each rank has of indices and values go to all ranks, each of which adds them up. The sizes have
// to be known first, so the call returns when all is done.
at::Tensor Backend::sum_of_all(const at::Tensor& sparse, std::chrono::milliseconds timeout) {
  const at::Tensor own = sparse.coalesce();
  const at::Tensor indices = own.indices().contiguous(), values = own.values().contiguous();
  const int64_t own_count = values.size(0), world = getSize();
  const at::Tensor counts = at::empty({world}, at::kLong);
  run(all_gather_part(counts, at::full({1}, own_count, at::kLong)), timeout);
  const auto* each = counts.const_data_ptr<int64_t>();
  const int64_t total = counts.sum().item<int64_t>(), depth = indices.size(0);
  auto value_sizes = values.sizes().vec();
  value_sizes[0] = 1;
  const uint64_t value_count = count_of(at::empty(value_sizes, values.options()));
  std::vector<uint64_t> index_counts, value_counts;
  for (int64_t rank = 0; rank < world; ++rank) {
    index_counts.push_back(static_cast<uint64_t>(each[rank] * depth));
    value_counts.push_back(static_cast<uint64_t>(each[rank]) * value_count);
  }
  // Of each rank one index after another, so that those of all ranks lie one after another.
  const at::Tensor own_indices = indices.t().contiguous();
  const at::Tensor all_indices = at::empty({total, depth}, indices.options());
  value_sizes[0] = total;
  const at::Tensor all_values = at::empty(value_sizes, values.options());
  run(all_gather_part(all_indices, own_indices, index_counts), timeout);
  run(all_gather_part(all_values, values, value_counts), timeout);
  return at::sparse_coo_tensor(all_indices.t(), all_values, sparse.sizes(), sparse.options()).coalesce();
}

Backend::WorkPointer Backend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const at::Tensor& tensor = only(tensors, "all_reduce", "tensors");
  TORCH_CHECK_VALUE(tensor.layout() == at::kSparse && tensor.device().is_cpu(),
                    "rdmatx: all_reduce of a sparse tensor takes one in COO layout on the CPU");
  TORCH_CHECK_VALUE(options.reduceOp == c10d::ReduceOp::SUM,
                    "rdmatx: sparse tensors are summed, and reduced in no other way");
  tensors.front().copy_(sum_of_all(tensor, options.timeout));
  return start(OpType::_ALLREDUCE_SPARSE, "rdmatx:sparse_all_reduce", tensors, {}, {tensors, {}}, {},
               options);
}

}  // namespace rdmatx::distributed

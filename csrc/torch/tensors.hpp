#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

#include "collectives/call.hpp"
#include "messaging/request.hpp"
#include "torch/csrc/distributed/c10d/Types.hpp"

namespace rdmatx::distributed {

/// What is left to do once the bytes have come: elements go from dense memory to where they belong.
using Finish = std::function<void()>;

/// Of a dtype that is moved; what the core does not know counts as bytes.
DataType moved_type_of(const at::Tensor& tensor);
/// Of one that is reduced. Throws where it is none.
DataType reduced_type_of(const at::Tensor& tensor);
/// Elements of the type that the core sees.
uint64_t count_of(const at::Tensor& tensor);
/// Fills in the operation, and the factor of a premul_sum.
void set_operation(Call& call, const c10d::ReduceOp& op);

/// Throws where the backend cannot take the tensor: on a device that it does not serve, or sparse. `name` is
/// the collective's.
void check_tensor(const at::Tensor& tensor, const char* name);
/// That there is one. `what` is "tensors", "output tensors", ...
const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* name, const char* what);
/// Throws where they differ in dtype.
void check_same_type(const at::Tensor& one, const at::Tensor& other, const char* name);

/// Throws where one has not as many elements as `like`.
void check_same_size(const std::vector<at::Tensor>& tensors, const at::Tensor& like, const char* name);

/// The memory of a contiguous tensor, which it keeps alive. The core gives it up on any thread and under its
/// locks, and the end of a tensor may want the GIL (its memory may be numpy's): so it goes to a list then.
OperationMemory memory_of(const at::Tensor& contiguous);
/// Drops the tensors on that list. For whoever holds no lock of the core.
void release_tensors_given_up();

/// A tensor to send from: the tensor itself where it is contiguous, else a copy.
at::Tensor dense_input(const at::Tensor& tensor);
/// A tensor to receive into: itself where it is contiguous; else a new one (a copy, where what is there
/// counts), from which `finishes` copy back. Throws where elements of it share memory.
at::Tensor dense_output(const at::Tensor& tensor, bool keeps_content, std::vector<Finish>& finishes);
/// One vector of the elements of all, one after another.
at::Tensor flat_input(const std::vector<at::Tensor>& tensors);
/// One for all of them, from which `finishes` copy.
at::Tensor flat_output(const std::vector<at::Tensor>& tensors, bool keeps_content,
                       std::vector<Finish>& finishes);

/// The tensors of all lists, one after another.
std::vector<at::Tensor> joined(const std::vector<std::vector<at::Tensor>>& lists);
/// How many elements each has; empty where all have as many.
std::vector<uint64_t> counts_of(const std::vector<at::Tensor>& tensors);

}  // namespace rdmatx::distributed

#include "torch/tensors.hpp"

#include <ATen/MemoryOverlap.h>

#include <memory>
#include <mutex>
#include <utility>

namespace rdmatx::distributed {
namespace {

std::optional<DataType> type_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DataType::float32;
    case at::kDouble:
      return DataType::float64;
    case at::kHalf:
      return DataType::float16;
    case at::kBFloat16:
      return DataType::bfloat16;
    case at::kChar:
      return DataType::int8;
    case at::kShort:
      return DataType::int16;
    case at::kInt:
      return DataType::int32;
    case at::kLong:
      return DataType::int64;
    case at::kByte:
      return DataType::uint8;
    case at::kBool:
      return DataType::boolean;
    case at::kComplexFloat:
      return DataType::complex64;
    case at::kComplexDouble:
      return DataType::complex128;
    default:
      return std::nullopt;
  }
}

class TensorsGivenUp {
 public:
  void add(at::Tensor tensor) {
    const std::lock_guard lock(mutex_);
    tensors_.push_back(std::move(tensor));
  }
  std::vector<at::Tensor> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(tensors_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<at::Tensor> tensors_;
};

// Never destroyed: at the end of the process the interpreter may be gone already.
TensorsGivenUp& tensors_given_up() {
  static auto* tensors = new TensorsGivenUp;
  return *tensors;
}

}  // namespace

DataType moved_type_of(const at::Tensor& tensor) {
  return type_of(tensor.scalar_type()).value_or(DataType::uint8);
}

DataType reduced_type_of(const at::Tensor& tensor) {
  const auto type = type_of(tensor.scalar_type());
  TORCH_CHECK_TYPE(type, "rdmatx moves elements of ", tensor.scalar_type(),
                   " and reduces none: convert them to another dtype first");
  return *type;
}

uint64_t count_of(const at::Tensor& tensor) {
  const auto count = static_cast<uint64_t>(tensor.numel());
  return type_of(tensor.scalar_type()) ? count : count * tensor.element_size();
}

void set_operation(Call& call, const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      call.operation = ReduceOperation::sum;
      return;
    case c10d::ReduceOp::AVG:
      call.operation = ReduceOperation::avg;
      return;
    case c10d::ReduceOp::PRODUCT:
      call.operation = ReduceOperation::prod;
      return;
    case c10d::ReduceOp::MIN:
      call.operation = ReduceOperation::min;
      return;
    case c10d::ReduceOp::MAX:
      call.operation = ReduceOperation::max;
      return;
    case c10d::ReduceOp::BAND:
      call.operation = ReduceOperation::band;
      return;
    case c10d::ReduceOp::BOR:
      call.operation = ReduceOperation::bor;
      return;
    case c10d::ReduceOp::BXOR:
      call.operation = ReduceOperation::bxor;
      return;
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
      TORCH_CHECK_VALUE(factor, "a PREMUL_SUM without its factor");
      call.operation = ReduceOperation::premul_sum;
      call.factor =
          factor->tensor_factor.defined() ? factor->tensor_factor.item<double>() : factor->double_factor;
      return;
    }
    default:
      TORCH_CHECK_VALUE(false, "rdmatx does not know this ReduceOp");
  }
}

void check_tensor(const at::Tensor& tensor, const char* name) {
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "rdmatx: ", name,
                    " takes dense tensors, and this one is ", tensor.layout());
  TORCH_CHECK_VALUE(tensor.device().is_cpu(), "rdmatx: ", name,
                    " takes tensors of the host in this version, and this one is on ", tensor.device(),
                    ": use a copy on the CPU, or another backend for that device (\"cpu:rdmatx,cuda:nccl\")");
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* name, const char* what) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "rdmatx: ", name, " takes one of ", what, " a rank, and was given ",
                    tensors.size());
  return tensors.front();
}

void check_same_type(const at::Tensor& one, const at::Tensor& other, const char* name) {
  TORCH_CHECK_TYPE(one.scalar_type() == other.scalar_type(), "rdmatx: ", name,
                   " takes tensors of one dtype, and was given ", one.scalar_type(), " and ",
                   other.scalar_type());
}

void check_same_size(const std::vector<at::Tensor>& tensors, const at::Tensor& like, const char* name) {
  for (const at::Tensor& tensor : tensors)
    TORCH_CHECK_VALUE(tensor.numel() == like.numel(), "rdmatx: ", name,
                      " takes tensors of one size, and was given ", tensor.numel(), " and ", like.numel(),
                      " elements");
}

OperationMemory memory_of(const at::Tensor& contiguous) {
  OperationMemory memory;
  memory.data = contiguous.data_ptr();
  memory.bytes = contiguous.nbytes();
  memory.keepalive = {new at::Tensor(contiguous), [](at::Tensor* tensor) {
                        tensors_given_up().add(std::move(*tensor));
                        delete tensor;
                      }};
  return memory;
}

void release_tensors_given_up() {
  tensors_given_up().take();
}

at::Tensor dense_input(const at::Tensor& tensor) {
  return tensor.contiguous();
}

at::Tensor dense_output(const at::Tensor& tensor, bool keeps_content, std::vector<Finish>& finishes) {
  if (tensor.is_contiguous()) return tensor;
  at::assert_no_internal_overlap(tensor);
  at::Tensor dense = at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
  if (keeps_content) dense.copy_(tensor);
  finishes.push_back([tensor, dense] { tensor.copy_(dense); });
  return dense;
}

at::Tensor flat_input(const std::vector<at::Tensor>& tensors) {
  if (tensors.size() == 1) return dense_input(tensors.front());
  std::vector<at::Tensor> flat;
  flat.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  return at::cat(flat);
}

at::Tensor flat_output(const std::vector<at::Tensor>& tensors, bool keeps_content,
                       std::vector<Finish>& finishes) {
  if (tensors.size() == 1) return dense_output(tensors.front(), keeps_content, finishes);
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) {
    at::assert_no_internal_overlap(tensor);
    elements += tensor.numel();
  }
  at::Tensor flat = keeps_content ? flat_input(tensors) : at::empty({elements}, tensors.front().options());
  finishes.push_back([tensors, flat] {
    int64_t offset = 0;
    for (const at::Tensor& tensor : tensors) {
      tensor.copy_(flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
      offset += tensor.numel();
    }
  });
  return flat;
}

std::vector<at::Tensor> joined(const std::vector<std::vector<at::Tensor>>& lists) {
  std::vector<at::Tensor> all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

std::vector<uint64_t> counts_of(const std::vector<at::Tensor>& tensors) {
  std::vector<uint64_t> counts;
  bool all_alike = true;
  for (const at::Tensor& tensor : tensors) {
    counts.push_back(count_of(tensor));
    all_alike = all_alike && counts.back() == counts.front();
  }
  if (all_alike) counts.clear();
  return counts;
}

}  // namespace rdmatx::distributed

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/export.hpp"

namespace rdmatx {

/// What the elements of a tensor are. `float8` is any format of eight bits: it is moved, never reduced.
enum class DataType : uint8_t {
  float32,
  float64,
  float16,
  bfloat16,
  int8,
  int16,
  int32,
  int64,
  uint8,
  boolean,
  complex64,
  complex128,
  float8,
};
constexpr int data_type_count = 13;

/// Bytes of one element.
RDMATX_API size_t element_bytes(DataType type) noexcept;
/// "float32", "bool", ...: as numpy and torch call them.
RDMATX_API const char* data_type_name(DataType type) noexcept;
/// Throws UsageError that lists the names there are.
RDMATX_API DataType parse_data_type(const std::string& name);

enum class ReduceOperation : uint8_t {
  sum,
  prod,
  min,
  max,
  avg,  ///< the sum, divided by the number of ranks; of integers toward zero
  band,
  bor,
  bxor,
  premul_sum,  ///< the sum of the inputs, each multiplied by one factor first
};
constexpr int reduce_operation_count = 9;

RDMATX_API const char* reduce_operation_name(ReduceOperation operation) noexcept;
/// Throws UsageError that lists the names there are.
RDMATX_API ReduceOperation parse_reduce_operation(const std::string& name);

}  // namespace rdmatx

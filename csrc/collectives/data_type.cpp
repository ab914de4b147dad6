#include "collectives/data_type.hpp"

#include <array>

#include "base/error.hpp"

namespace rdmatx {
namespace {

struct TypeEntry {
  const char* name;
  size_t bytes;
};

// In the order of the enumeration.
constexpr std::array<TypeEntry, data_type_count> types{{{"float32", 4},
                                                        {"float64", 8},
                                                        {"float16", 2},
                                                        {"bfloat16", 2},
                                                        {"int8", 1},
                                                        {"int16", 2},
                                                        {"int32", 4},
                                                        {"int64", 8},
                                                        {"uint8", 1},
                                                        {"bool", 1},
                                                        {"complex64", 8},
                                                        {"complex128", 16},
                                                        {"float8", 1}}};
constexpr std::array<const char*, reduce_operation_count> operations{
    "sum", "prod", "min", "max", "avg", "band", "bor", "bxor", "premul_sum"};

}  // namespace

size_t element_bytes(DataType type) noexcept {
  return types[static_cast<size_t>(type)].bytes;
}

const char* data_type_name(DataType type) noexcept {
  return types[static_cast<size_t>(type)].name;
}

DataType parse_data_type(const std::string& name) {
  std::string known;
  for (size_t i = 0; i < types.size(); ++i) {
    if (name == types[i].name) return static_cast<DataType>(i);
    known += (i > 0 ? ", " : "") + std::string(types[i].name);
  }
  throw UsageError("\"" + name + "\" is no element type of a collective: it is one of " + known);
}

const char* reduce_operation_name(ReduceOperation operation) noexcept {
  return operations[static_cast<size_t>(operation)];
}

ReduceOperation parse_reduce_operation(const std::string& name) {
  std::string known;
  for (size_t i = 0; i < operations.size(); ++i) {
    if (name == operations[i]) return static_cast<ReduceOperation>(i);
    known += (i > 0 ? ", " : "") + std::string(operations[i]);
  }
  throw UsageError("\"" + name + "\" is no reduction: it is one of " + known);
}

}  // namespace rdmatx

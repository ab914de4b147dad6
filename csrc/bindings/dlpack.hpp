#pragma once

#include <cstdint>

// The binary interface of DLPack 1.x (https://dmlc.github.io/dlpack/latest/), as far as we use it.

namespace rdmatx::bindings::dlpack {

enum DeviceType : int32_t { cpu = 1, cuda = 2, cuda_host = 3, rocm_host = 11, cuda_managed = 13 };
enum TypeCode : uint8_t { code_uint = 1, code_complex = 5 };

struct Device {
  int32_t type;
  int32_t id;
};

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t dimensions;
  DataType type;
  int64_t* shape;
  int64_t* strides;  // in elements; null is C-contiguous
  uint64_t byte_offset;
};

/// Capsule "dltensor".
struct ManagedTensor {
  Tensor tensor;
  void* owner;
  void (*deleter)(ManagedTensor*);
};

struct Version {
  uint32_t major;
  uint32_t minor;
};

constexpr uint64_t flag_readonly = 1;

/// Capsule "dltensor_versioned".
struct VersionedTensor {
  Version version;
  void* owner;
  void (*deleter)(VersionedTensor*);
  uint64_t flags;
  Tensor tensor;
};

/// Capsule "dlpack_exchange_api", the attribute __dlpack_c_exchange_api__ of a tensor type.
struct ExchangeApi {
  Version version;
  ExchangeApi* previous;
  void* allocate;
  void* managed_from_object;
  void* object_from_managed;
  /// Fills `tensor` with what `object` (a PyObject*) has; nothing is owned. Non-zero with a Python error set.
  /// May be null.
  int (*tensor_from_object)(void* object, Tensor* tensor);
  /// The stream that the framework works in on this device. Non-zero with a Python error set. May be null.
  int (*current_stream)(int32_t device_type, int32_t device_number, void** stream);
};

}  // namespace rdmatx::bindings::dlpack

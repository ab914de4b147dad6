#pragma once

#include <string>

#include "base/export.hpp"

namespace rdmatx {

/// A shared library opened at run time: the only dlopen of the project.
/// Never closed: libibverbs and libcuda keep threads and at-exit work of their own.
class RDMATX_API DynamicLibrary {
 public:
  /// Tries to open `file`; on failure the object is empty and `error()` says why.
  explicit DynamicLibrary(const std::string& file);
  explicit operator bool() const noexcept { return handle_ != nullptr; }
  const std::string& error() const noexcept { return error_; }
  /// The address of a symbol, or null.
  void* symbol(const char* name) const noexcept;

 private:
  void* handle_;
  std::string error_;
};

}  // namespace rdmatx

#include "base/dynlib.hpp"

#include <dlfcn.h>

namespace rdmatx {

DynamicLibrary::DynamicLibrary(const std::string& file)
    : handle_(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (!handle_) {
    const char* reason = dlerror();
    error_ = reason ? reason : "unknown error";
  }
}

void* DynamicLibrary::symbol(const char* name) const noexcept {
  return handle_ ? dlsym(handle_, name) : nullptr;
}

}  // namespace rdmatx

#pragma once

#include <pybind11/pybind11.h>

#include "messaging/authentication.hpp"

namespace rdmatx::bindings {

/// A secret on its way from Python to the core. It stands between a caller's arguments and pybind11, which
/// prints the arguments of a call whose types are wrong.
struct PreparedSecret {
  SharedSecret secret;
};

void bind_secret(pybind11::module_& module);

}  // namespace rdmatx::bindings

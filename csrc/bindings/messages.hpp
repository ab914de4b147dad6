#pragma once

#include <pybind11/pybind11.h>

namespace rdmatx::bindings {

/// Adds send, isend, recv and irecv to the class Connection.
void bind_messages(pybind11::handle connection_class);

}  // namespace rdmatx::bindings

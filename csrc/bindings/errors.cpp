#include <pybind11/pybind11.h>

#include <exception>

#include "base/error.hpp"
#include "bindings/bindings.hpp"
#include "bindings/direct_calls.hpp"

namespace py = pybind11;

namespace rdmatx::bindings {
namespace {

/// Sets the class of this name of rdmatx/errors.py, made from the message and the attributes.
void set_error(const char* name, const Error& error, const py::dict& attributes = {}) {
  const py::object type = py::module_::import("rdmatx.errors").attr(name);
  PyErr_SetObject(type.ptr(), type(error.what(), **attributes).ptr());
}

py::dict dict_of(std::initializer_list<std::pair<const char*, py::object>> items) {
  py::dict all;
  for (const auto& [name, value] : items) all[name] = value;
  return all;
}

void translate(std::exception_ptr pending) {
  using py::cast;
  try {
    if (pending) std::rethrow_exception(pending);
  } catch (const UnavailableError& error) {
    set_error("UnavailableError", error);
  } catch (const UsageError& error) {
    set_error("UsageError", error);
  } catch (const SizeMismatchError& error) {
    set_error("SizeMismatchError", error,
              dict_of({{"needed_bytes", cast(error.needed_bytes())},
                       {"available_bytes", cast(error.available_bytes())}}));
  } catch (const ClosedError& error) {
    set_error("ClosedError", error);
  } catch (const VerbsError& error) {
    set_error("VerbsError", error, dict_of({{"call", cast(error.call())}, {"errno", cast(error.code())}}));
  } catch (const CudaError& error) {
    set_error("CudaError", error, dict_of({{"call", cast(error.call())}, {"code", cast(error.code())}}));
  } catch (const CompletionError& error) {
    set_error("CompletionError", error,
              dict_of({{"status", cast(error.status())},
                       {"vendor_error", cast(error.vendor_error())},
                       {"peer", cast(error.peer())},
                       {"operation", cast(error.operation())}}));
  } catch (const PeerLostError& error) {
    set_error("PeerLostError", error, dict_of({{"peer", cast(error.peer())}}));
  } catch (const AuthenticationError& error) {
    set_error("AuthenticationError", error, dict_of({{"peer", cast(error.peer())}}));
  } catch (const TimeoutError& error) {
    set_error("TimeoutError", error,
              dict_of({{"peer", cast(error.peer())},
                       {"operation", cast(error.operation())},
                       {"seconds", cast(error.seconds())}}));
  } catch (const Error& error) {
    set_error("Error", error);
  }
}

}  // namespace

void raise_current_exception() noexcept {
  try {
    try {
      translate(std::current_exception());
    } catch (const py::builtin_exception& error) {
      error.set_error();
    } catch (const std::bad_alloc&) {
      PyErr_NoMemory();
    } catch (const py::error_already_set&) {
      throw;
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
    }
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (...) {
    PyErr_SetString(PyExc_RuntimeError, "an exception of unknown type");
  }
}

void bind_errors(py::module_&) {
  py::register_local_exception_translator(&translate);
}

}  // namespace rdmatx::bindings

#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <optional>

// Methods that CPython calls directly. What pybind11's dispatcher and casters do costs several times what a
// small message does, so the few methods that are called for each message go round them.

namespace rdmatx::bindings {

/// A method of a class: its name, its parameters, of which the first `required` have no default, and its
/// docstring, which begins as CPython wants it: "name($self, /, first, second=0)\n--\n\n".
template <size_t Count>
struct Signature {
  const char* name;
  std::array<const char*, Count> parameters;
  size_t required;
};

/// Puts the arguments of a call in the order of the parameters; null stands for one that was left out. False
/// with a TypeError set where they do not fit.
bool sort_arguments(const char* name, const char* const* parameters, size_t count, size_t required,
                    PyObject* const* given, Py_ssize_t by_position, PyObject* names, PyObject** sorted);

/// Sets the exception that is being handled as Python's, as pybind11 would.
void raise_current_exception() noexcept;

/// The C++ object within an instance of a class of pybind11's, whose type the caller is sure of.
template <typename T>
T& self_as(PyObject* self) {
  return *reinterpret_cast<pybind11::detail::instance*>(self)->get_value_and_holder().template value_ptr<T>();
}
template <typename T>
const std::shared_ptr<T>& shared_self_as(PyObject* self) {
  return reinterpret_cast<pybind11::detail::instance*>(self)
      ->get_value_and_holder()
      .template holder<std::shared_ptr<T>>();
}

/// Seconds; None, or left out, is none. Throws TypeError.
std::optional<double> timeout_of(PyObject* object);

/// Calls `body(arguments)`, which returns a new reference, and turns what it throws into Python's exception.
template <size_t Count, class Body>
PyObject* call_directly(const Signature<Count>& signature, PyObject* const* given, Py_ssize_t by_position,
                        PyObject* names, Body body) noexcept {
  std::array<PyObject*, Count> sorted{};
  if (!sort_arguments(signature.name, signature.parameters.data(), Count, signature.required, given,
                      by_position, names, sorted.data()))
    return nullptr;
  try {
    return body(sorted);
  } catch (...) {
    raise_current_exception();
    return nullptr;
  }
}

using DirectCall = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);

/// For a table of methods; `doc` as in Signature.
inline PyMethodDef direct_method(const char* name, DirectCall call, const char* doc) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call)),
          METH_FASTCALL | METH_KEYWORDS, doc};
}
/// Adds it to a class. The definition has to last as long as the class.
void add_direct_method(pybind11::handle type, PyMethodDef& definition);

}  // namespace rdmatx::bindings

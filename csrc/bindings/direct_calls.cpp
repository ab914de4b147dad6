#include "bindings/direct_calls.hpp"

#include <string>

namespace py = pybind11;

namespace rdmatx::bindings {
namespace {

bool refuse(const char* name, const std::string& text) {
  PyErr_SetString(PyExc_TypeError, (std::string(name) + "() " + text).c_str());
  return false;
}

}  // namespace

bool sort_arguments(const char* name, const char* const* parameters, size_t count, size_t required,
                    PyObject* const* given, Py_ssize_t by_position, PyObject* names, PyObject** sorted) {
  const auto positions = static_cast<size_t>(by_position);
  if (positions > count)
    return refuse(name, "takes at most " + std::to_string(count) + " arguments (" +
                            std::to_string(positions) + " given)");
  for (size_t i = 0; i < positions; ++i) sorted[i] = given[i];
  const Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
  for (Py_ssize_t i = 0; i < named; ++i) {
    PyObject* key = PyTuple_GET_ITEM(names, i);
    size_t place = 0;
    while (place < count && PyUnicode_CompareWithASCIIString(key, parameters[place]) != 0) ++place;
    if (place == count)
      return refuse(name, "got an unexpected keyword argument '" + std::string(py::str(key)) + "'");
    if (sorted[place])
      return refuse(name, "got multiple values for argument '" + std::string(parameters[place]) + "'");
    sorted[place] = given[by_position + i];
  }
  for (size_t i = 0; i < required; ++i)
    if (!sorted[i])
      return refuse(name, "is missing the required argument '" + std::string(parameters[i]) + "'");
  return true;
}

std::optional<double> timeout_of(PyObject* object) {
  if (!object || object == Py_None) return std::nullopt;
  const double seconds = PyFloat_AsDouble(object);
  if (seconds == -1.0 && PyErr_Occurred()) {
    PyErr_Clear();
    throw py::type_error("timeout is " + std::string(py::repr(object)) +
                         ", and should be a number of seconds, or None for the context's default");
  }
  return seconds;
}

void add_direct_method(py::handle type, PyMethodDef& definition) {
  auto* owner = reinterpret_cast<PyTypeObject*>(type.ptr());
  const auto method = py::reinterpret_steal<py::object>(PyDescr_NewMethod(owner, &definition));
  if (!method) throw py::error_already_set();
  type.attr(definition.ml_name) = method;
}

}  // namespace rdmatx::bindings

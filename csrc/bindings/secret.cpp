#include "bindings/secret.hpp"

#include <cstdint>
#include <span>
#include <string>

#include "base/error.hpp"

namespace py = pybind11;

namespace rdmatx::bindings {
namespace {

std::span<const uint8_t> bytes_of_secret(py::handle object) {
  const char* data = nullptr;
  Py_ssize_t length = 0;
  if (PyBytes_Check(object.ptr())) {
    data = PyBytes_AS_STRING(object.ptr());
    length = PyBytes_GET_SIZE(object.ptr());
  } else if (PyUnicode_Check(object.ptr())) {
    data = PyUnicode_AsUTF8AndSize(object.ptr(), &length);
    if (!data) {
      PyErr_Clear();  // its text would hold the secret
      throw UsageError("the secret has characters that UTF-8 cannot say: give it as bytes");
    }
  } else {
    throw UsageError("a secret is a str or bytes, and None for that of RDMATX_SECRET; this is of type " +
                     std::string(py::str(py::type::handle_of(object).attr("__name__"))));
  }
  return {reinterpret_cast<const uint8_t*>(data), static_cast<size_t>(length)};
}

}  // namespace

void bind_secret(py::module_& module) {
  py::class_<PreparedSecret>(module, "PreparedSecret",
                             "A secret that two sides share, or none. Nothing prints it.")
      .def(py::init([](py::handle secret) {
             // The environment is read under the GIL, under which Python changes it.
             return PreparedSecret{secret.is_none() ? Secret::from_environment()
                                                    : Secret::create(bytes_of_secret(secret))};
           }),
           py::arg("secret"))
      .def("__repr__", [](const PreparedSecret& self) {
        return self.secret ? "<PreparedSecret>" : "<PreparedSecret: none>";
      });
}

}  // namespace rdmatx::bindings

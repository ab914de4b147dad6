#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "bindings/gil.hpp"
#include "bindings/references.hpp"
#include "rdma/handle.hpp"

namespace rdmatx::bindings {

/// What a Python object of the verbs holds: a share of the C++ object, until close(). Used with the GIL held;
/// a call that drops the GIL keeps a share of its own, so that a close() from another thread waits for nobody
/// and takes nothing away.
template <class Object>
class Closable {
 public:
  explicit Closable(std::shared_ptr<Object> object)
      : object_(std::move(object)), generation_(process_generation()) {}

  /// Throws ClosedError after close(), UsageError in a process forked since.
  const std::shared_ptr<Object>& get() const {
    if (!object_) throw ClosedError(std::string("this ") + name() + " is closed");
    if (generation_ != process_generation())
      throw UsageError(
          std::string("this ") + name() +
          " was made before this process was forked and belongs to the parent: open the device anew "
          "here, or start workers by \"spawn\"");
    return object_;
  }
  bool closed() const noexcept { return !object_; }

  /// Gives its share up. What was made from the object keeps it open.
  void close() {
    std::shared_ptr<Object> last = std::move(object_);
    {
      const GilReleased released;
      last.reset();
    }
    release_pending_references();
  }

 private:
  static const char* name() {
    static const std::string text =
        pybind11::type::of<Closable>().attr("__name__").template cast<std::string>();
    return text.c_str();
  }

  std::shared_ptr<Object> object_;
  int generation_;
};

/// close(), closed, and the context manager.
template <class Object>
void bind_closing(pybind11::class_<Closable<Object>>& type) {
  type.def("close", &Closable<Object>::close,
           "Gives the object back. It is freed as soon as nothing made from it is left; using it here raises "
           "ClosedError. Closing twice is allowed.")
      .def_property_readonly("closed", &Closable<Object>::closed, "Whether close() was called.")
      .def("__enter__", [](pybind11::object self) { return self; })
      .def("__exit__", [](Closable<Object>& self, const pybind11::args&) { self.close(); });
}

}  // namespace rdmatx::bindings

#include "bindings/work.hpp"

#include <memory>
#include <new>
#include <utility>

#include "bindings/direct_calls.hpp"
#include "bindings/gil.hpp"
#include "bindings/messaging_classes.hpp"

namespace py = pybind11;

namespace rdmatx::bindings {
namespace {

struct WorkObject {
  PyObject_HEAD alignas(Work) std::byte work[sizeof(Work)];
};

PyTypeObject* work_type = nullptr;  // holds a reference for as long as the process lives

const Work& work_of(PyObject* self) {
  return *std::launder(reinterpret_cast<Work*>(reinterpret_cast<WorkObject*>(self)->work));
}

const Work& checked_work_of(py::handle self) {
  if (Py_TYPE(self.ptr()) != work_type) throw py::type_error("this is a method of rdmatx.Work");
  return work_of(self.ptr());
}

void deallocate(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  std::destroy_at(&work_of(self));
  type->tp_free(self);
  Py_DECREF(type);
}

/// What an operation gives: the value of an atomic, else the bytes moved.
PyObject* result_of(const Work& work) {
  return PyLong_FromUnsignedLongLong(is_atomic(work.request().kind()) ? work.request().value()
                                                                      : work.bytes());
}

constexpr Signature<1> wait_signature{"wait", {"timeout"}, 0};

PyObject* wait(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  return call_directly(wait_signature, given, count, names, [&](const auto& arguments) {
    const Work& work = work_of(self);
    const auto timeout = timeout_of(arguments[0]);
    // What has ended needs no waiting, and so not to give the GIL up.
    if (!work.finished()) without_gil([&] { work.wait(timeout); });
    return result_of(work);
  });
}

constexpr Signature<0> done_signature{"done", {}, 0};

PyObject* done(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  return call_directly(done_signature, given, count, names, [&](const auto&) {
    const Work& work = work_of(self);
    return PyBool_FromLong(work.finished() || without_gil([&] { return work.done(); }));
  });
}

PyMethodDef work_methods[] = {
    direct_method("wait", wait,
                  "wait($self, /, timeout=None)\n--\n\n"
                  "Waits for the end and returns the bytes moved (of a receive, those that came), or what an "
                  "atomic found. Raises what made the operation fail, and TimeoutError where it is not done "
                  "within `timeout` seconds (none: the context's default); then it goes on and can be waited "
                  "for again."),
    direct_method(
        "synchronize", wait,
        "synchronize($self, /, timeout=None)\n--\n\n"
        "The same as wait(): when an operation has ended, its bytes are where they should be for the host "
        "and for every stream of a GPU."),
    direct_method("done", done,
                  "done($self, /)\n--\n\n"
                  "Whether it has ended, well or not. Looks once and never waits."),
    {}};

PyType_Slot slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(&deallocate)},
    {Py_tp_methods, work_methods},
    {Py_tp_doc,
     const_cast<char*>("An operation that was started. It ends in exactly one state, and holds its "
                       "buffer till then. `await work` waits for it in an asyncio event loop and "
                       "gives what wait() would; where the awaiting task is cancelled the operation "
                       "goes on, and holds its buffer until it ends.")},
    {}};

PyType_Spec specification{"rdmatx._C.Work", sizeof(WorkObject), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

/// The methods that nobody calls for every message.
void add_rest(const py::object& type) {
  const auto property = [&](const char* name, auto getter, const char* doc) {
    type.attr(name) = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(&PyProperty_Type))(
        py::cpp_function(getter), py::none(), py::none(), doc);
  };
  property(
      "nbytes", [](py::handle self) { return checked_work_of(self).bytes(); },
      "The bytes moved; of a receive, those that came. Raises UsageError while the operation is pending, and "
      "what made it fail.");
  property(
      "tag",
      [](py::handle self) {
        checked_work_of(self).bytes();  // throws while it is pending
        return checked_work_of(self).request().tag();
      },
      "The tag of the message that was sent or received: of a receive of any tag, the one that came.");
  property("_finished", [](py::handle self) { return checked_work_of(self).finished(); }, "");
  property("_progress_id", [](py::handle self) { return progress_id(checked_work_of(self)); }, "");
  type.attr("_watch_events") = py::cpp_function(
      [](py::handle self) { return watch_events(checked_work_of(self)); }, py::is_method(type));
  type.attr("__await__") = py::cpp_function(
      [](const py::object& self) { return asynchronous("finished")(self).attr("__await__")(); },
      py::is_method(type));
}

}  // namespace

void bind_work(py::module_& module) {
  const auto type = py::reinterpret_steal<py::object>(PyType_FromSpec(&specification));
  if (!type) throw py::error_already_set();
  work_type = reinterpret_cast<PyTypeObject*>(type.inc_ref().ptr());
  add_rest(type);
  module.attr("Work") = type;
}

py::object work_object(Work work) {
  PyObject* self = work_type->tp_alloc(work_type, 0);
  if (!self) throw py::error_already_set();
  std::construct_at(reinterpret_cast<Work*>(reinterpret_cast<WorkObject*>(self)->work), std::move(work));
  return py::reinterpret_steal<py::object>(self);
}

}  // namespace rdmatx::bindings

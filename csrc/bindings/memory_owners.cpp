#include "bindings/memory_owners.hpp"

#include <cstdint>
#include <unordered_map>
#include <utility>

#include "gpu/buffer.hpp"

namespace py = pybind11;

namespace rdmatx::bindings {
namespace {

// Views of views of views: more is no array that people make.
constexpr int longest_chain = 64;

/// Python objects that own memory, each by a weak reference whose callback runs before the memory is freed.
/// Under the GIL; whatever may run Python code (which may come back here) is done before or after the tables
/// are looked at, never meanwhile.
class WatchedObjects {
 public:
  std::shared_ptr<MemoryOwner> watch(PyObject* object, void* base, size_t bytes) {
    if (const auto known = by_object_.find(object); known != by_object_.end()) {
      std::shared_ptr<MemoryOwner>& owner = known->second.owner;
      if (owner->base() == base && owner->bytes() == bytes && owner->alive()) return owner;
      // It was given other memory.
      const std::shared_ptr<MemoryOwner> former =
          std::exchange(owner, std::make_shared<MemoryOwner>(base, bytes));
      const std::shared_ptr<MemoryOwner> present = owner;
      former->die();
      return present;
    }
    PyObject* weak = PyWeakref_NewRef(object, callback());
    if (!weak) {
      PyErr_Clear();  // a type without weak references
      return nullptr;
    }
    auto owner = std::make_shared<MemoryOwner>(base, bytes);
    by_object_[object] = {weak, owner};
    by_reference_[weak] = object;
    return owner;
  }

 private:
  struct Watched {
    PyObject* weak = nullptr;
    std::shared_ptr<MemoryOwner> owner;
  };

  static PyObject* died(PyObject* self, PyObject* weak);
  static PyObject* callback() {
    static PyMethodDef method{"memory_owner_died", &WatchedObjects::died, METH_O, nullptr};
    static PyObject* function = PyCFunction_New(&method, nullptr);
    return function;
  }
  void forget(PyObject* weak) {
    const auto reference = by_reference_.find(weak);
    if (reference == by_reference_.end()) return;
    const auto object = by_object_.find(reference->second);
    by_reference_.erase(reference);
    if (object == by_object_.end() || object->second.weak != weak) return;
    const Watched gone = std::move(object->second);
    by_object_.erase(object);
    gone.owner->die();
    Py_DECREF(gone.weak);
  }

  std::unordered_map<PyObject*, Watched> by_object_;
  std::unordered_map<PyObject*, PyObject*> by_reference_;
};

WatchedObjects& watched() {
  static auto* objects = new WatchedObjects;  // objects may die after static destructors
  return *objects;
}

PyObject* WatchedObjects::died(PyObject* /*self*/, PyObject* weak) {
  watched().forget(weak);
  Py_RETURN_NONE;
}

/// A type of a module that is loaded already, else null. Held for ever.
PyTypeObject* loaded_type(const char* module_name, const char* name) {
  PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), module_name);  // borrowed
  PyObject* type = module ? PyObject_GetAttrString(module, name) : nullptr;
  PyErr_Clear();
  if (type && PyType_Check(type)) return reinterpret_cast<PyTypeObject*>(type);
  Py_XDECREF(type);
  return nullptr;
}

bool is_numpy_array(py::handle object) {
  static PyTypeObject* type = nullptr;
  if (!type) type = loaded_type("numpy", "ndarray");
  return type && PyObject_TypeCheck(object.ptr(), type);
}

bool is_torch_tensor(py::handle object) {
  static PyTypeObject* type = nullptr;
  if (!type) type = loaded_type("torch", "Tensor");
  return type && PyObject_TypeCheck(object.ptr(), type);
}

std::shared_ptr<MemoryOwner> watch_array(py::handle array) {
  if (!array.attr("flags").attr("owndata").cast<bool>()) return nullptr;
  Py_buffer exported;
  if (PyObject_GetBuffer(array.ptr(), &exported, PyBUF_STRIDES) != 0 &&
      (PyErr_Clear(), PyObject_GetBuffer(array.ptr(), &exported, PyBUF_STRIDED_RO) != 0)) {
    PyErr_Clear();
    return nullptr;
  }
  void* const base = exported.buf;
  const auto bytes = static_cast<size_t>(exported.len);
  PyBuffer_Release(&exported);
  return watched().watch(array.ptr(), base, bytes);
}

std::shared_ptr<MemoryOwner> watch_storage(const py::object& storage) {
  if (!py::hasattr(storage, "resizable") || storage.attr("resizable")().cast<bool>()) return nullptr;
  const auto base = storage.attr("data_ptr")().cast<uintptr_t>();
  return watched().watch(storage.ptr(), reinterpret_cast<void*>(base),
                         storage.attr("nbytes")().cast<size_t>());
}

std::shared_ptr<MemoryOwner> owner_behind(py::object object) {
  for (int i = 0; i < longest_chain; ++i) {
    if (is_numpy_array(object)) {
      py::object base = object.attr("base");
      if (base.is_none()) return watch_array(object);
      object = std::move(base);
    } else if (is_torch_tensor(object)) {
      return watch_storage(object.attr("untyped_storage")());
    } else {
      return nullptr;
    }
  }
  return nullptr;
}

}  // namespace

std::shared_ptr<MemoryOwner> find_memory_owner(py::handle object, const void* data, size_t bytes) {
  if (auto owner = find_host_memory_owner(data, bytes)) return owner;
  try {
    auto owner = owner_behind(py::reinterpret_borrow<py::object>(object));
    return owner && owner->holds(data, bytes) ? owner : nullptr;
  } catch (const py::error_already_set&) {
    return nullptr;  // an object that is only much like an array: its memory is not kept registered
  }
}

}  // namespace rdmatx::bindings

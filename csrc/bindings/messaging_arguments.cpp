#include "bindings/messaging_arguments.hpp"

#include "base/error.hpp"
#include "bindings/device_buffers.hpp"
#include "bindings/direct_calls.hpp"
#include "bindings/memory_owners.hpp"

namespace py = pybind11;

namespace rdmatx::bindings {
namespace {

OperationMemory memory_of_region(const Region& region, void* data, uint64_t bytes, Wanted wanted,
                                 const char* what, py::handle stream) {
  if (wanted == Wanted::write && region.readonly())
    throw UsageError(std::string(what) +
                     ": this region is of read-only memory, which nothing may be read into");
  // The registration holds the memory: no need to hold the Python object too.
  OperationMemory memory{data, bytes, {}, region.registration(), {}, {}};
  if (region.device())
    memory.device = part_of_device_memory(*region.device(), data, bytes,
                                          stream ? stream_of(stream) : current_stream(region.device()->gpu));
  else if (stream)
    refuse_stream(what);
  return memory;
}

}  // namespace

RegionPart part_of(const std::shared_ptr<Region>& region, const py::slice& slice) {
  size_t start = 0, stop = 0, step = 0, length = 0;
  if (!slice.compute(region->bytes(), &start, &stop, &step, &length)) throw py::error_already_set();
  if (step != 1 && length > 0) throw UsageError("a part of a region is region[start:stop], without a step");
  return {region, static_cast<std::byte*>(region->data()) + start, length};
}

OperationMemory memory_of(py::handle object, Wanted wanted, const char* what, py::handle stream) {
  if (stream && stream.is_none()) stream = {};
  // The types of our own first: looking at them costs nothing.
  static auto* const region_type = reinterpret_cast<PyTypeObject*>(py::type::of<Region>().release().ptr());
  if (PyObject_TypeCheck(object.ptr(), region_type)) {
    const auto& region = self_as<Region>(object.ptr());
    return memory_of_region(region, region.data(), region.bytes(), wanted, what, stream);
  }
  if (py::isinstance<RegionPart>(object)) {
    const auto& part = object.cast<const RegionPart&>();
    return memory_of_region(*part.region, part.data, part.bytes, wanted, what, stream);
  }
  BufferView view =
      acquire_buffer(object, wanted, what, Lifetime::operation, Shape::strided, Place::anywhere);
  if (view.on_gpu) return memory_on_gpu(std::move(view), stream);
  if (stream) refuse_stream(what);
  OperationMemory memory{view.data, view.bytes, std::move(view.keepalive), {}, std::move(view.layout), {}};
  // Eager messages are not registered.
  if (memory.bytes > ProtocolSizes::eager_bytes && RegistrationCache::any_enabled()) {
    const void* first = memory.layout ? memory.layout->lowest() : memory.data;
    memory.owner = find_memory_owner(object, first, memory.layout ? memory.layout->extent() : memory.bytes);
  }
  return memory;
}

uint64_t unsigned_of(py::handle object, const char* what) {
  const unsigned long long value = PyLong_AsUnsignedLongLong(object.ptr());
  if (value == static_cast<unsigned long long>(-1) && PyErr_Occurred()) {
    PyErr_Clear();
    throw UsageError(std::string(what) + " is " + std::string(py::repr(object)) +
                     ", and should be an integer from 0 to 2**64 - 1");
  }
  return value;
}

TagChoice tag_choice_of(py::handle object) {
  if (object.is_none()) return {};
  return unsigned_of(object, "tag");
}

std::optional<uint32_t> notification_of(py::handle object) {
  if (object.is_none()) return {};
  const uint64_t value = unsigned_of(object, "notify");
  if (value > UINT32_MAX)
    throw UsageError("notify is " + std::to_string(value) +
                     ", and a notification has 32 bits: an integer from 0 to 2**32 - 1");
  return static_cast<uint32_t>(value);
}

const RemoteKey& key_argument(py::handle object) {
  if (py::isinstance<RemoteKey>(object)) return object.cast<const RemoteKey&>();
  throw UsageError(std::string("key is a ") + Py_TYPE(object.ptr())->tp_name +
                   ", and should be the peer's RemoteKey: region.key() there, and RemoteKey.from_bytes() "
                   "where it came as bytes");
}

std::vector<Connection::Block> blocks_of(py::handle object, py::handle stream) {
  std::vector<Connection::Block> blocks;
  for (const py::handle item : py::iter(object)) {
    const std::string what = "blocks[" + std::to_string(blocks.size()) + "]";
    if (!PySequence_Check(item.ptr()) || PySequence_Size(item.ptr()) < 2 || PySequence_Size(item.ptr()) > 3)
      throw UsageError(what + " should be (src, key, offset), or (src, key)");
    const auto block = py::reinterpret_borrow<py::sequence>(item);
    const py::object src = block[0];
    const py::object key = block[1];
    uint64_t offset = 0;
    if (block.size() == 3) offset = unsigned_of(py::object(block[2]), "offset");
    blocks.push_back({memory_of(src, Wanted::read, what.c_str(), stream), key_argument(key), offset});
  }
  return blocks;
}

uint16_t parse_access(const std::string& letters) {
  uint16_t access = 0;
  for (char letter : letters) {
    switch (letter) {
      case 'r':
        access |= RemoteAccess::read;
        break;
      case 'w':
        access |= RemoteAccess::write;
        break;
      case 'a':
        access |= RemoteAccess::atomic;
        break;
      default:
        throw UsageError(
            "access is \"" + letters +
            "\", and should be made of \"r\" (peers may read), \"w\" (write) and \"a\" (atomics); \"\" "
            "lets no peer in");
    }
  }
  return access;
}

std::string access_letters(uint16_t access) {
  std::string letters;
  if (access & RemoteAccess::read) letters += 'r';
  if (access & RemoteAccess::write) letters += 'w';
  if (access & RemoteAccess::atomic) letters += 'a';
  return letters;
}

}  // namespace rdmatx::bindings

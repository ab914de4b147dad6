#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings/buffers.hpp"
#include "messaging/context.hpp"

namespace rdmatx::bindings {

/// Some bytes of a region, as an argument of an operation.
struct RegionPart {
  std::shared_ptr<Region> region;
  std::byte* data;
  uint64_t bytes;
};

/// region[start:stop], in bytes.
RegionPart part_of(const std::shared_ptr<Region>& region, const pybind11::slice& slice);

/// The memory of an argument: a region, a part of one, or anything that acquire_buffer() takes. `stream`,
/// where given and not None, is what the operation is to be in order with: a number, or a stream of torch or
/// CuPy. Needs the GIL.
OperationMemory memory_of(pybind11::handle object, Wanted wanted, const char* what,
                          pybind11::handle stream = {});

/// An integer from 0 to 2**64 - 1; UsageError names the argument otherwise.
uint64_t unsigned_of(pybind11::handle object, const char* what);

/// The tag of a receive or probe: none is any.
TagChoice tag_choice_of(pybind11::handle object);
/// The 32 bits of a notification; none is no notification.
std::optional<uint32_t> notification_of(pybind11::handle object);
/// UsageError names what was given instead of a key.
const RemoteKey& key_argument(pybind11::handle object);
/// Of write_many(): [(src, key, offset), ...]; the offset may be left out.
std::vector<Connection::Block> blocks_of(pybind11::handle object, pybind11::handle stream = {});

/// "rw" to bits of RemoteAccess and back.
uint16_t parse_access(const std::string& letters);
std::string access_letters(uint16_t access);

}  // namespace rdmatx::bindings

#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <memory>

#include "base/memory_owner.hpp"

namespace rdmatx::bindings {

/// The owner of the memory that an object shows, where its end can be watched: then a registration of it may
/// be kept. Null otherwise, and wherever the owner may give its memory up or move it without a word. Needs
/// the GIL.
///
/// Watched are, by weak references: numpy arrays that own their data, behind any view of them (numpy refuses
/// to resize such an array in place while it is watched); storages of torch that cannot be resized
/// (from_numpy, from_dlpack, frombuffer, shared or mapped memory). And rdmatx.empty(), by the core. An owner
/// whose memory is found to be elsewhere than before is taken for another one.
///
/// Not watched, since nothing tells when they free their memory and perhaps get other memory at the same
/// address: resizable storages of torch, array.array, mmap, bytearray, and whatever exports memory by DLPack
/// or the buffer protocol alone. Nor bytes, which would be safe but are hardly sent twice.
std::shared_ptr<MemoryOwner> find_memory_owner(pybind11::handle object, const void* data, size_t bytes);

}  // namespace rdmatx::bindings

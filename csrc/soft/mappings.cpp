#include "soft/mappings.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <string>

namespace rdmatx::soft {
namespace {

// The query of one mapping that /proc/PID/maps answers since Linux 6.11 (Documentation/filesystems/proc.rst).
// Declared here, since older headers lack it.
struct MappingQuery {
  uint64_t size, flags, address;
  uint64_t start, end, permissions, page_size, offset, inode;
  uint32_t device_major, device_minor, name_size, build_id_size;
  uint64_t name_address, build_id_address;
};
constexpr unsigned long query_mapping = _IOWR('f', 17, MappingQuery);
constexpr uint64_t readable_mapping = 1, writable_mapping = 2;

/// The slow way of older kernels: reads the whole list.
bool listed(uint64_t address, uint64_t bytes, bool writable) {
  std::ifstream maps("/proc/self/maps");
  if (!maps) {
    // No /proc: msync(2) with MS_ASYNC does nothing on Linux but fail where a page is not mapped.
    const uint64_t first = address & ~static_cast<uint64_t>(sysconf(_SC_PAGESIZE) - 1);
    return msync(reinterpret_cast<void*>(first), address + bytes - first, MS_ASYNC) == 0;
  }
  uint64_t next = address;
  for (std::string line; next < address + bytes && std::getline(maps, line);) {
    uint64_t start = 0, end = 0;
    char permissions[5] = {};
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %4s", &start, &end, permissions) != 3) continue;
    if (end <= next) continue;
    if (start > next || permissions[0] != 'r' || (writable && permissions[1] != 'w')) return false;
    next = end;
  }
  return next >= address + bytes;
}

}  // namespace

Mappings::Mappings() : maps_(open("/proc/self/maps", O_RDONLY | O_CLOEXEC)) {}

bool Mappings::ask(uint64_t address, uint64_t bytes, bool writable, bool* answered) const {
  *answered = true;
  for (uint64_t next = address; next < address + bytes;) {
    MappingQuery query{};
    query.size = sizeof query;
    query.address = next;
    if (ioctl(maps_.get(), query_mapping, &query) != 0) {
      *answered = errno == ENOENT;  // no mapping there; anything else: this kernel does not know the query
      return false;
    }
    if (!(query.permissions & readable_mapping)) return false;
    if (writable && !(query.permissions & writable_mapping)) return false;
    next = query.end;
  }
  return true;
}

bool Mappings::cover(uint64_t address, uint64_t bytes, bool writable) const {
  bool answered = false;
  const bool covered = maps_ && ask(address, bytes, writable, &answered);
  return answered ? covered : listed(address, bytes, writable);
}

}  // namespace rdmatx::soft

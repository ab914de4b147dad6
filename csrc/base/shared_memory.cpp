#include "base/shared_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <map>
#include <mutex>
#include <string>

#include "base/error.hpp"

namespace rdmatx {
namespace {

std::atomic<uint64_t> next_id{1};

/// By first address. A segment whose owner died is dropped when it is met.
struct PublishedSegments {
  std::mutex mutex;
  std::map<const std::byte*, std::weak_ptr<SharedMemory>> by_address;
};

PublishedSegments& published() {
  static auto* segments = new PublishedSegments;  // outlives every static destructor that may free memory
  return *segments;
}

std::byte* map_descriptor(int fd, size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED)
    throw Error("cannot map " + std::to_string(bytes) + " bytes of shared memory: " + describe_errno(errno));
  // Huge pages where the system allows them for shared memory; a refusal costs nothing.
  madvise(data, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(data);
}

}  // namespace

SharedMemory::SharedMemory(UniqueFd fd, std::byte* data, size_t bytes)
    : fd_(std::move(fd)), data_(data), bytes_(bytes), id_(next_id.fetch_add(1)) {}

SharedMemory::~SharedMemory() {
  munmap(data_, bytes_);
}

std::shared_ptr<SharedMemory> SharedMemory::create(size_t bytes, const char* name) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t rounded = bytes == 0 ? page : (bytes + page - 1) / page * page;
  UniqueFd fd(memfd_create(name, MFD_CLOEXEC));
  if (!fd) throw Error(std::string("cannot create shared memory (memfd_create): ") + describe_errno(errno));
  if (ftruncate(fd.get(), static_cast<off_t>(rounded)) != 0)
    throw Error("cannot size shared memory to " + std::to_string(rounded) +
                " bytes: " + describe_errno(errno));
  std::byte* data = map_descriptor(fd.get(), rounded);
  return std::shared_ptr<SharedMemory>(new SharedMemory(std::move(fd), data, rounded));
}

std::shared_ptr<SharedMemory> SharedMemory::map(UniqueFd fd, size_t bytes) {
  std::byte* data = map_descriptor(fd.get(), bytes);
  return std::shared_ptr<SharedMemory>(new SharedMemory(UniqueFd(), data, bytes));
}

void publish_segment(const std::shared_ptr<SharedMemory>& segment) {
  auto& all = published();
  std::lock_guard lock(all.mutex);
  std::erase_if(all.by_address, [](const auto& entry) { return entry.second.expired(); });
  all.by_address[segment->data()] = segment;
}

std::shared_ptr<SharedMemory> find_segment(const void* address, size_t bytes) {
  auto& all = published();
  const auto* first = static_cast<const std::byte*>(address);
  std::lock_guard lock(all.mutex);
  auto next = all.by_address.upper_bound(first);
  if (next == all.by_address.begin()) return nullptr;
  auto segment = std::prev(next)->second.lock();
  if (!segment) return nullptr;
  const size_t offset = static_cast<size_t>(first - segment->data());
  return offset <= segment->size() && bytes <= segment->size() - offset ? segment : nullptr;
}

std::shared_ptr<SharedMemory> find_segment(uint64_t id) {
  auto& all = published();
  std::lock_guard lock(all.mutex);
  for (const auto& [address, weak] : all.by_address)
    if (auto segment = weak.lock(); segment && segment->id() == id) return segment;
  return nullptr;
}

}  // namespace rdmatx

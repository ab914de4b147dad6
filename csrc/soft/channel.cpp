#include "soft/channel.hpp"

#include <sys/stat.h>

#include "base/error.hpp"

namespace rdmatx::soft {
namespace {

constexpr uint64_t large_bytes = 8 * 1024;

constexpr uint64_t record_bytes(uint64_t payload) {
  return sizeof(Record) + (payload + sizeof(Record) - 1) / sizeof(Record) * sizeof(Record);
}

}  // namespace

/// What stays idle before the record: up to the end of the ring where it does not fit there, or where small
/// ones have been alone for a while and the ring is empty.
uint64_t Ring::gap_before(uint64_t need) noexcept {
  const uint64_t offset = position_ & (capacity_ - 1);
  if (offset + need > capacity_) return capacity_ - offset;
  if (need >= large_bytes) {
    last_large_ = position_;
  } else if (offset >= small_bytes && position_ - last_large_ >= small_bytes) {
    other_ = ends_->tail.load(std::memory_order_acquire);
    if (other_ == position_) return capacity_ - offset;
  }
  return 0;
}

Record* Ring::reserve(size_t payload) noexcept {
  const uint64_t need = record_bytes(payload);
  const uint64_t offset = position_ & (capacity_ - 1);
  const uint64_t gap = gap_before(need);
  if (position_ + gap + need - other_ > capacity_) {
    other_ = ends_->tail.load(std::memory_order_acquire);
    if (position_ + gap + need - other_ > capacity_) return nullptr;
  }
  if (gap) {
    auto* filler = new (data_ + offset) Record{};
    filler->kind = RecordKind::pad;
    filler->bytes = static_cast<uint32_t>(gap - sizeof(Record));
  }
  pending_ = gap + need;
  auto* record = new (data_ + ((offset + gap) & (capacity_ - 1))) Record{};
  record->bytes = static_cast<uint32_t>(payload);
  return record;
}

void Ring::commit() noexcept {
  position_ += pending_;
  ends_->head.store(position_, std::memory_order_release);
}

const Record* Ring::front(bool* corrupt) noexcept {
  for (;;) {
    if (position_ == other_) {
      other_ = ends_->head.load(std::memory_order_acquire);
      if (position_ == other_) return nullptr;
    }
    const uint64_t offset = position_ & (capacity_ - 1);
    const auto* record = reinterpret_cast<const Record*>(data_ + offset);
    front_bytes_ = *const_cast<const volatile uint32_t*>(&record->bytes);  // read once
    pending_ = record_bytes(front_bytes_);
    if (other_ - position_ > capacity_ || pending_ > other_ - position_ || offset + pending_ > capacity_) {
      *corrupt = true;
      return nullptr;
    }
    if (record->kind != RecordKind::pad) return record;
    pop();
  }
}

void Ring::pop() noexcept {
  position_ += pending_;
  ends_->tail.store(position_, std::memory_order_release);
}

std::shared_ptr<Channel> Channel::create() {
  auto channel = std::shared_ptr<Channel>(new Channel(SharedMemory::create(total_bytes, "rdmatx-channel")));
  new (&channel->state()) ChannelState{};
  channel->state().shared_write.claims.store(SharedWrite::closed);
  return channel;
}

std::shared_ptr<Channel> Channel::map(UniqueFd fd) {
  struct stat file{};
  if (fstat(fd.get(), &file) != 0 || static_cast<size_t>(file.st_size) < total_bytes)
    throw Error("a peer handed over a channel that is too small");
  return std::shared_ptr<Channel>(new Channel(SharedMemory::map(std::move(fd), total_bytes)));
}

}  // namespace rdmatx::soft

#include "messaging/channel.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/error.hpp"

namespace rdmatx {
namespace {

constexpr size_t page_bytes = 4096;
constexpr uint32_t receive_slots = ProtocolSizes::slots.total();

std::byte* allocate_slots() {
  const size_t bytes = size_t{receive_slots + ProtocolSizes::send_slots} * ProtocolSizes::slot_bytes;
  // Whole pages of our own: registered pages may be unmapped in a forked child.
  const size_t whole = (bytes + page_bytes - 1) / page_bytes * page_bytes;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(page_bytes, whole));
  if (!memory)
    throw Error("no memory for the message slots of a connection (" + std::to_string(whole) + " bytes)");
  return memory;
}

}  // namespace

Channel::Channel(const std::shared_ptr<ProtectionDomain>& domain,
                 const std::shared_ptr<CompletionChannel>& events)
    : memory_(allocate_slots()) {
  const auto& device = domain->device();
  const DeviceLimits& limits = device->attributes().limits;
  depth_ = std::min<uint32_t>(ProtocolSizes::send_queue_depth, static_cast<uint32_t>(limits.max_qp_wr));
  if (depth_ < 2 * message_places || static_cast<uint32_t>(limits.max_qp_wr) < receive_slots)
    throw UnavailableError("device " + device->name() + " allows " + std::to_string(limits.max_qp_wr) +
                           " work requests a queue pair, and a connection needs " +
                           std::to_string(receive_slots));
  const size_t slot_count = receive_slots + ProtocolSizes::send_slots;
  slots_ = MemoryRegion::create(domain, memory_.get(), slot_count * ProtocolSizes::slot_bytes,
                                Access::local_write);
  completion_queue_ = CompletionQueue::create(device, static_cast<int>(depth_ + receive_slots + 1), events);
  create_queue_pair(domain);
  posted_.resize(depth_);
  for (uint32_t i = 0; i < receive_slots; ++i)
    receives_.emplace_back(receive_bit | i).add(slot(i), ProtocolSizes::slot_bytes, slots_->local_key());
  returned_.reserve(receive_slots);
  batch_.reserve(most_batched);
  batch_inline_.resize(most_batched * inline_bytes_);
  for (uint32_t i = 0; i < ProtocolSizes::send_slots; ++i)
    free_slots_.push_back(static_cast<uint16_t>(receive_slots + i));
}

void Channel::create_queue_pair(const std::shared_ptr<ProtectionDomain>& domain) {
  QueuePairOptions options;
  QueuePairCapabilities& wanted = options.capabilities;
  wanted.max_send_requests = depth_;
  wanted.max_receive_requests = receive_slots;
  wanted.max_send_elements =
      static_cast<uint32_t>(std::clamp(domain->device()->attributes().limits.max_sge, 1, 4));
  wanted.max_receive_elements = 1;
  // No limit of inline data can be queried: ask, and take less where the device declines.
  for (uint32_t inline_bytes : {256u, 64u, 0u}) {
    wanted.max_inline_bytes = inline_bytes;
    try {
      queue_pair_ = QueuePair::create(domain, completion_queue_, completion_queue_, options);
      break;
    } catch (const VerbsError& error) {
      if (inline_bytes == 0 || error.code() != EINVAL) throw;
    }
  }
  inline_bytes_ = queue_pair_->capabilities().max_inline_bytes;
  // An inlined message is gathered from its header and its payload.
  if (queue_pair_->capabilities().max_send_elements < 2) inline_bytes_ = 0;
}

void Channel::connect(const Address& local, const Address& remote, uint8_t max_rd_atomic) {
  ConnectOptions options;
  options.max_rd_atomic = max_rd_atomic;
  // The software HCA loses nothing and sees a process die: a timer would only take a peer that gets no
  // processor for half a second for a dead one. 0 is for ever.
  if (queue_pair_->protection_domain()->device()->attributes().provider == "soft") options.timeout = 0;
  queue_pair_->to_init(local.port, options.access);
  queue_pair_->post_receive(receives_);
  queue_pair_->connect(local.port, local.gid_index, remote, options);
}

TransferLimits Channel::limits(uint32_t max_message_bytes) const {
  const DeviceLimits& device = queue_pair_->protection_domain()->device()->attributes().limits;
  TransferLimits limits;
  // A gigabyte a request is enough, and keeps every length far from the 32 bits of a gather entry.
  limits.max_message_bytes = std::min<uint64_t>(max_message_bytes, uint64_t{1} << 30);
  limits.max_region_bytes = device.max_mr_size;
  limits.max_sge = std::max(1u, queue_pair_->capabilities().max_send_elements);
  limits.queue_depth = depth_;
  limits.inline_bytes = inline_bytes_;
  return limits;
}

bool Channel::time_to_signal(uint16_t slot) noexcept {
  // Places and slots come back with a completion only: ask for one well before either runs out.
  const bool slots_low = slot != no_slot && free_slots_.size() <= ProtocolSizes::send_slots / 2;
  return ++unsignalled_ >= std::min(16u, depth_ / 4) || slots_low;
}

uint16_t Channel::take_slot() noexcept {
  const uint16_t number = free_slots_.back();
  free_slots_.pop_back();
  return number;
}

void Channel::post(SendWork&& work, Posted posted) {
  if (work.is_signaled()) unsignalled_ = 0;
  posted_[head_ % depth_] = std::move(posted);
  ++head_;
  batch_.push_back(std::move(work));
  if (!batching_ || batch_.size() == most_batched) submit();
}

void Channel::submit() {
  if (batch_.empty()) return;
  queue_pair_->post_send(batch_);
  batch_.clear();
}

void Channel::post_message(const MessageHeader& header, const void* payload, size_t payload_bytes,
                           std::shared_ptr<Request> request) {
  SendWork work = SendWork::send(head_);
  uint16_t slot_number = no_slot;
  std::byte* copy = nullptr;
  if (!fits_inline(payload_bytes)) {
    slot_number = take_slot();
    copy = slot(slot_number);
  } else if (batching_) {
    copy = batch_inline_.data() + batch_.size() * inline_bytes_;
  }
  if (copy) {
    std::memcpy(copy, &header, sizeof header);
    if (payload_bytes > 0) std::memcpy(copy + sizeof header, payload, payload_bytes);
    work.add(copy, static_cast<uint32_t>(sizeof header + payload_bytes), slots_->local_key());
  } else {
    work.add(&header, sizeof header, 0);
    if (payload_bytes > 0) work.add(payload, static_cast<uint32_t>(payload_bytes), 0);
  }
  if (slot_number == no_slot) work.inlined();
  const bool due = time_to_signal(slot_number);
  if (due || request) work.signaled();
  post(std::move(work),
       {std::move(request), {0, payload_bytes}, "message", slot_number, Kind::message, true});
}

void Channel::post_piece(const std::shared_ptr<Request>& request, const PlannedWork& piece, size_t rail,
                         std::optional<uint32_t> immediate) {
  const bool is_read = request->kind() == RequestKind::read;
  uint64_t address = 0;
  uint32_t key = 0;
  if (piece.bytes > 0) {
    const RemotePart& remote = request->remote()[piece.remote_part];
    address = remote.address + piece.remote_offset;
    key = remote.keys[rail];
  }
  SendWork work = is_read ? SendWork::read(address, key, head_) : SendWork::write(address, key, head_);
  for (uint32_t i = 0; i < piece.entry_count; ++i) {
    const PlannedEntry& entry = piece.entries[i];
    const LocalPart& part = request->parts()[entry.part];
    work.add(part.data + entry.offset, static_cast<uint32_t>(entry.bytes), part.local_keys[rail]);
  }
  if (piece.inlined) work.inlined();
  if (immediate) work.immediate(*immediate);
  const bool due = time_to_signal(no_slot);
  if (due || piece.signalled) work.signaled();
  outstanding_bytes_ += piece.bytes;
  post(std::move(work), {request,
                         {piece.offset, piece.offset + piece.bytes},
                         request_kind_name(request->kind()),
                         no_slot,
                         Kind::piece,
                         immediate.has_value()});
}

void Channel::post_atomic(const std::shared_ptr<Request>& request, size_t rail) {
  const AtomicOperands& operands = request->operands();
  const RemotePart& remote = request->remote().front();
  SendWork work = request->kind() == RequestKind::fetch_add
                      ? SendWork::fetch_add(remote.address, remote.keys[rail], operands.value, head_)
                      : SendWork::compare_swap(remote.address, remote.keys[rail], operands.expected,
                                               operands.value, head_);
  const uint16_t slot_number = take_slot();
  work.add(slot(slot_number), sizeof(uint64_t), slots_->local_key()).signaled();
  time_to_signal(slot_number);
  post(std::move(work),
       {request, {0, sizeof(uint64_t)}, request_kind_name(request->kind()), slot_number, Kind::atomic});
}

std::span<const std::byte> Channel::arrived(const Completion& completion) const noexcept {
  return {slot(slot_of(completion)), std::min(completion.bytes(), ProtocolSizes::slot_bytes)};
}

void Channel::post_returned_slots() {
  if (returned_.empty()) return;
  queue_pair_->post_receive(returned_);
  returned_.clear();
}

bool Channel::has_requests() const noexcept {
  for (uint64_t place = tail_; place < head_; ++place)
    if (posted_[place % depth_].request) return true;
  return false;
}

Channel::Posted& Channel::retire_one() noexcept {
  Posted& posted = posted_[tail_ % depth_];
  ++tail_;
  if (posted.fills_slot) ++fills_retired_;
  if (posted.kind == Kind::piece) outstanding_bytes_ -= posted.range.end - posted.range.begin;
  if (posted.kind == Kind::atomic) {
    uint64_t value;
    std::memcpy(&value, slot(posted.slot), sizeof value);
    posted.request->set_value(value);
  }
  if (posted.slot != no_slot) free_slots_.push_back(posted.slot);
  return posted;
}

// The place behind the last of what the peer has seen.
uint64_t Channel::end_of_delivered(uint64_t delivered) const noexcept {
  uint64_t fills = fills_retired_;
  uint64_t end = tail_;
  for (uint64_t place = tail_; place < head_; ++place)
    if (posted_[place % depth_].fills_slot && ++fills <= delivered) end = place + 1;
  return end;
}

Channel::Unfinished Channel::unfinished(Posted& posted, bool delivered) noexcept {
  Unfinished result{std::move(posted.request),
                    posted.range,
                    posted.kind == Kind::piece,
                    posted.kind == Kind::atomic,
                    posted.kind == Kind::piece && posted.fills_slot,
                    delivered,
                    {}};
  if (posted.kind == Kind::message && posted.slot != no_slot)
    result.message = {slot(posted.slot), sizeof(MessageHeader) + posted.range.end};
  return result;
}

std::string Channel::describe(const Completion& completion) const {
  if (is_receive(completion)) return "receiving a message";
  const Posted& posted = posted_[completion.work_id() % depth_];
  return std::string(posted.what) + " of " + std::to_string(posted.range.end - posted.range.begin) + " bytes";
}

}  // namespace rdmatx

#include "rdma/completion_queue.hpp"

#include <fcntl.h>

#include <cerrno>
#include <utility>

namespace rdmatx {

std::shared_ptr<CompletionChannel> CompletionChannel::create(std::shared_ptr<Device> device) {
  return std::shared_ptr<CompletionChannel>(new CompletionChannel(std::move(device)));
}

CompletionChannel::CompletionChannel(std::shared_ptr<Device> device)
    : device_(std::move(device)),
      handle_(device_->verbs(), check_pointer(device_->verbs()->create_comp_channel(device_->get()),
                                              "ibv_create_comp_channel", "device " + device_->name())) {
  // Two threads may wait on one channel: the one that comes second must not block in the read.
  const int flags = fcntl(fd(), F_GETFL);
  if (flags < 0 || fcntl(fd(), F_SETFL, flags | O_NONBLOCK) < 0)
    throw Error("cannot make a completion channel non-blocking: " + describe_errno(errno));
}

int CompletionChannel::fd() const noexcept {
  return handle_->fd;
}

std::shared_ptr<CompletionQueue> CompletionChannel::get_event(double timeout_seconds) {
  for (;;) {
    if (!wait_readable(fd(), timeout_seconds)) return nullptr;
    ibv_cq* queue = nullptr;
    void* user = nullptr;
    if (int code = device_->verbs()->get_cq_event(get(), &queue, &user); code != 0) {
      const int reason = code > 0 ? code : errno;
      if (reason == EAGAIN || reason == EINTR) return nullptr;  // another thread took it
      check_code(reason, "ibv_get_cq_event", "device " + device_->name());
    }
    // At once, so that whoever destroys the queue never waits for us (ibv_get_cq_event(3)).
    device_->verbs()->ack_cq_events(queue, 1);
    if (auto found = find(reinterpret_cast<uint64_t>(user))) return found;
    // An event of a queue that is being destroyed: nobody's any more.
  }
}

uint64_t CompletionChannel::reserve_id() {
  std::lock_guard lock(mutex_);
  return next_id_++;
}

void CompletionChannel::enroll(uint64_t id, const std::shared_ptr<CompletionQueue>& queue) {
  std::lock_guard lock(mutex_);
  std::erase_if(queues_, [](const auto& entry) { return entry.second.expired(); });
  queues_[id] = queue;
}

std::shared_ptr<CompletionQueue> CompletionChannel::find(uint64_t id) {
  std::lock_guard lock(mutex_);
  const auto found = queues_.find(id);
  return found == queues_.end() ? nullptr : found->second.lock();
}

std::shared_ptr<CompletionQueue> CompletionQueue::create(std::shared_ptr<Device> device, int entries,
                                                         std::shared_ptr<CompletionChannel> channel) {
  if (channel && channel->device() != device)
    throw UsageError("a completion queue and its channel must be of the same device");
  const uint64_t id = channel ? channel->reserve_id() : 0;
  std::shared_ptr<CompletionQueue> queue(new CompletionQueue(std::move(device), entries, channel, id));
  if (channel) channel->enroll(id, queue);
  return queue;
}

namespace {

std::string entries_text(const Device& device, int entries) {
  return "device " + device.name() + ", " + std::to_string(entries) + " entries; the device takes 1 to " +
         std::to_string(device.attributes().limits.max_cqe);
}

}  // namespace

CompletionQueue::CompletionQueue(std::shared_ptr<Device> device, int entries,
                                 std::shared_ptr<CompletionChannel> channel, uint64_t id)
    : device_(std::move(device)),
      channel_(std::move(channel)),
      handle_(device_->verbs(),
              check_pointer(device_->verbs()->create_cq(device_->get(), entries, reinterpret_cast<void*>(id),
                                                        channel_ ? channel_->get() : nullptr, 0),
                            "ibv_create_cq", entries_text(*device_, entries))) {}

size_t CompletionQueue::poll(std::span<Completion> completions) {
  // A Completion is an ibv_wc and nothing else.
  const int count =
      ibv_poll_cq(get(), static_cast<int>(completions.size()), reinterpret_cast<ibv_wc*>(completions.data()));
  if (count < 0) {
    // ibv_poll_cq(3) promises no errno.
    throw VerbsError("ibv_poll_cq", errno ? errno : EIO,
                     "the completion queue has failed, most likely by overrun: it has room for " +
                         std::to_string(capacity()) + " completions and more were outstanding");
  }
  return static_cast<size_t>(count);
}

void CompletionQueue::arm(bool solicited_only) {
  if (!channel_) throw UsageError("a completion queue without a completion channel cannot be armed");
  check_code(ibv_req_notify_cq(get(), solicited_only ? 1 : 0), "ibv_req_notify_cq",
             "device " + device_->name());
}

void CompletionQueue::resize(int entries) {
  check_code(device_->verbs()->resize_cq(get(), entries), "ibv_resize_cq", entries_text(*device_, entries));
}

int CompletionQueue::capacity() const noexcept {
  return handle_->cqe;
}

}  // namespace rdmatx

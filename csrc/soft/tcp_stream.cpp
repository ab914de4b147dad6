#include "soft/tcp_stream.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace rdmatx::soft {
namespace {

constexpr size_t max_parts = 64;  // of one call's list
constexpr size_t long_payload = 4096;

Flow outcome_of_error() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? Flow::blocked : Flow::closed;
}

/// Takes `bytes` off the front of the pieces.
void skip(std::vector<iovec>& pieces, size_t bytes) {
  size_t first = 0;
  for (; first < pieces.size() && bytes >= pieces[first].iov_len; ++first) bytes -= pieces[first].iov_len;
  pieces.erase(pieces.begin(), pieces.begin() + static_cast<ptrdiff_t>(first));
  if (bytes == 0) return;
  pieces[0].iov_base = static_cast<std::byte*>(pieces[0].iov_base) + bytes;
  pieces[0].iov_len -= bytes;
}

}  // namespace

void TcpStream::prepare_buffer() {
  if (!buffer_) buffer_ = std::make_unique<std::byte[]>(buffer_bytes);
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (begin_ > buffer_bytes / 2) {
    std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
}

Flow TcpStream::fill() {
  prepare_buffer();
  const ssize_t bytes = recv(socket_.get(), buffer_.get() + end_, buffer_bytes - end_, MSG_DONTWAIT);
  if (bytes < 0) return outcome_of_error();
  if (bytes == 0) return Flow::closed;
  end_ += static_cast<size_t>(bytes);
  return Flow::moved;
}

Flow TcpStream::read_into(std::vector<iovec>& pieces, uint64_t* moved) {
  *moved = 0;
  if (begin_ < end_) {
    for (const iovec& piece : pieces) {
      const size_t bytes = std::min(piece.iov_len, end_ - begin_);
      std::memcpy(piece.iov_base, buffer_.get() + begin_, bytes);
      begin_ += bytes;
      *moved += bytes;
    }
    skip(pieces, *moved);
    return Flow::moved;
  }
  prepare_buffer();
  size_t wanted = 0;
  for (const iovec& piece : pieces) wanted += piece.iov_len;
  // Behind much payload more of that kind is likely: of what follows only the header is taken along, so that
  // the rest goes straight to its place too.
  pieces.push_back({buffer_.get(), wanted < long_payload ? buffer_bytes : RequestFrame::encoded_bytes});
  msghdr header{};
  header.msg_iov = pieces.data();
  header.msg_iovlen = pieces.size();
  const ssize_t bytes = recvmsg(socket_.get(), &header, MSG_DONTWAIT);
  if (bytes < 0) return outcome_of_error();
  if (bytes == 0) return Flow::closed;
  *moved = std::min(static_cast<size_t>(bytes), wanted);
  end_ = static_cast<size_t>(bytes) - *moved;
  return Flow::moved;
}

void TcpStream::push(const RequestFrame& frame, uint64_t payload) {
  Outgoing& next = outgoing.emplace_back();
  next.header = encode(frame);
  next.header_bytes = RequestFrame::encoded_bytes;
  next.payload = payload;
  next.message = frame.message;
  next.place = frame.offset;
}

void TcpStream::push(const ResponseFrame& frame, uint64_t address, uint32_t key) {
  Outgoing& next = outgoing.emplace_back();
  const auto header = encode(frame);
  std::copy(header.begin(), header.end(), next.header.begin());
  next.header_bytes = ResponseFrame::encoded_bytes;
  next.payload = frame.bytes;
  next.place = address;
  next.key = key;
}

Flow TcpStream::flush(uint64_t budget, const Resolve& resolve) {
  thread_local std::vector<iovec> parts, payload;
  while (!outgoing.empty() && budget > 0) {
    parts.clear();
    uint64_t total = 0;
    bool invalid = false;
    for (Outgoing& frame : outgoing) {
      if (parts.size() >= max_parts || total >= budget) break;
      const uint64_t before = total;
      if (frame.sent < frame.header_bytes) {
        parts.push_back({frame.header.data() + frame.sent, frame.header_bytes - frame.sent});
        total += parts.back().iov_len;
      }
      const uint64_t offset = frame.sent > frame.header_bytes ? frame.sent - frame.header_bytes : 0;
      if (offset == frame.payload) continue;
      const uint64_t bytes =
          std::min(frame.payload - offset, std::max<uint64_t>(budget - std::min(budget, total), 1));
      if (!resolve(frame, offset, bytes, payload)) {
        invalid = true;
        if (total != before) parts.pop_back(), total = before;  // no header without its payload
        break;
      }
      parts.insert(parts.end(), payload.begin(), payload.end());
      total += bytes;
      if (offset + bytes < frame.payload) break;
    }
    if (parts.empty()) return Flow::invalid;
    msghdr header{};
    header.msg_iov = parts.data();
    header.msg_iovlen = parts.size();
    const ssize_t sent = sendmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return outcome_of_error();
    budget -= std::min<uint64_t>(budget, static_cast<uint64_t>(sent));
    for (uint64_t unclaimed = static_cast<uint64_t>(sent); !outgoing.empty(); outgoing.pop_front()) {
      Outgoing& frame = outgoing.front();
      const uint64_t size = frame.header_bytes + frame.payload;
      const uint64_t part = std::min(unclaimed, size - frame.sent);
      frame.sent += part;
      unclaimed -= part;
      if (frame.sent < size) break;
    }
    if (static_cast<uint64_t>(sent) < total) return Flow::blocked;
    if (invalid) return Flow::invalid;
  }
  return Flow::moved;
}

bool TcpStream::take_unsent(std::vector<std::byte>& bytes, bool begun_only) {
  for (const Outgoing& frame : outgoing) {
    if (frame.payload != 0) {
      if (frame.sent != 0) return false;
      continue;  // nothing of it has gone out
    }
    if (begun_only && frame.sent == 0) continue;
    bytes.insert(bytes.end(), frame.header.begin() + static_cast<ptrdiff_t>(frame.sent),
                 frame.header.begin() + frame.header_bytes);
  }
  outgoing.clear();
  return true;
}

uint64_t TcpStream::unsent_bytes() const {
  uint64_t bytes = 0;
  for (const Outgoing& frame : outgoing) bytes += frame.header_bytes + frame.payload - frame.sent;
  return bytes;
}

void TcpStream::arm(int epoll) {
  if (closed()) return;
  uint32_t events = 0;
  if (!waits) events |= EPOLLIN;
  if (!outgoing.empty()) events |= EPOLLOUT;
  if (events == 0 || (armed_->load() & events) == events) return;
  armed_->store(events);  // before the kernel knows: it may tell at once
  epoll_event event{};
  event.events = events | EPOLLONESHOT;
  event.data.u64 = token_;
  if (epoll_ctl(epoll, EPOLL_CTL_MOD, socket_.get(), &event) != 0) armed_->store(0);
}

}  // namespace rdmatx::soft

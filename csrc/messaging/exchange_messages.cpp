// What each message of the peer does; see exchange.hpp.

#include <algorithm>
#include <cstring>

#include "base/crc32c.hpp"
#include "base/error.hpp"
#include "messaging/exchange.hpp"

namespace rdmatx {
namespace {

[[noreturn]] void broken(const std::string& what) {
  throw Error("the peer broke the message protocol: " + what);
}

std::exception_ptr does_not_fit(const std::string& subject, const std::string& whose, uint64_t tag,
                                uint64_t sent, uint64_t room) {
  return std::make_exception_ptr(
      SizeMismatchError(subject + " of " + std::to_string(sent) + " bytes with tag " + std::to_string(tag) +
                            " does not fit " + whose + " of " + std::to_string(room) +
                            " bytes: receive into a buffer of at least the message's size. The message "
                            "was dropped; the connection goes on",
                        sent, room));
}

}  // namespace

void Exchange::handle(std::span<const std::byte> message) {
  MessageHeader header;
  if (message.size() < sizeof header) broken("a message is shorter than its header");
  std::memcpy(&header, message.data(), sizeof header);
  const auto payload = message.subspan(sizeof header);
  credits_.receive(header.data_credits, header.control_credits);
  switch (header.kind) {
    case MessageKind::eager:
      return on_eager(header, payload);
    case MessageKind::request:
      return on_request(header);
    case MessageKind::clear:
      return on_clear(header, payload);
    case MessageKind::finish:
      return on_finish(header);
    case MessageKind::refuse:
      return on_refuse(header);
    case MessageKind::credit:
      return;
    case MessageKind::goodbye:
      peer_said_goodbye_ = true;
      return;
    case MessageKind::notice:
      if (lanes_.size() == 1) broken("a notice of a rail, of which there is only one");
      heard_.push_back({payload.begin(), payload.end()});
      return;
  }
  broken("a message of unknown kind " + std::to_string(static_cast<int>(header.kind)));
}

void Exchange::on_eager(const MessageHeader& header, std::span<const std::byte> payload) {
  if (payload.size() != header.bytes) broken("an eager message is not as long as it says");
  if (verify_) check_sum(crc32c(0, payload.data(), payload.size()), header);
  if (auto request = matcher_.take_posted(header.tag)) {
    credits_.owe_data();
    return deliver(*request, header, payload);
  }
  keep(header, payload);
}

void Exchange::check_sum(uint32_t found, const MessageHeader& header) const {
  if (found == header.peer_id) return;
  throw CompletionError("a message from " + peer_ +
                            " arrived damaged: its crc32c differs from the sender's. The memory changed "
                            "while it was sent, or the network or a host corrupts data",
                        0, 0, peer_, "recv");
}

void Exchange::on_request(const MessageHeader& header) {
  if (header.id == 0) broken("a request to send has no id");
  if (auto request = matcher_.take_posted(header.tag)) {
    credits_.owe_data();
    return grant(*request, header);
  }
  keep(header, {});
}

// Nobody asked for it yet. Its slot is free again, but while too much waits here its credit is held back, so
// that a sender that runs ahead stops.
void Exchange::keep(const MessageHeader& header, std::span<const std::byte> payload) {
  Unexpected unexpected{header.tag, header.bytes, header.id, {}, over_budget()};
  if (!payload.empty() && !spare_payloads_.empty()) {
    unexpected.payload = std::move(spare_payloads_.back());
    spare_payloads_.pop_back();
  }
  unexpected.payload.assign(payload.begin(), payload.end());
  unexpected_bytes_ += payload.size();
  if (!unexpected.credit_held) credits_.owe_data();
  matcher_.arrive(header.tag, std::move(unexpected));
}

bool Exchange::over_budget() const noexcept {
  return unexpected_bytes_ > ProtocolSizes::unexpected_bytes ||
         matcher_.arrived_count() > ProtocolSizes::unexpected_messages;
}

void Exchange::settle(Unexpected& unexpected) {
  unexpected_bytes_ -= unexpected.payload.size();
  if (unexpected.credit_held) credits_.owe_data();
  if (unexpected.payload.capacity() > 0 && spare_payloads_.size() < ProtocolSizes::slots.data)
    spare_payloads_.push_back(std::move(unexpected.payload));
}

void Exchange::deliver(const std::shared_ptr<Request>& request, const MessageHeader& header,
                       std::span<const std::byte> payload) {
  request->match(header.tag);
  if (header.bytes > request->capacity()) return refuse(*request, header);
  request->place(payload);
  ++stats_.messages_received;
  stats_.bytes_received += header.bytes;
  end_arrival(request, header.bytes);
}

void Exchange::grant(const std::shared_ptr<Request>& request, const MessageHeader& asked) {
  request->match(asked.tag);
  if (asked.bytes > request->capacity()) return refuse(*request, asked);
  Control answer{{MessageKind::clear}, {}, {}};
  uint64_t left = asked.bytes;
  for (const LocalPart& part : request->parts()) {
    if (left == 0) break;
    const uint64_t bytes = std::min(left, part.bytes);
    answer.parts.push_back({reinterpret_cast<uint64_t>(part.data), bytes, part.remote_keys});
    left -= bytes;
  }
  if (left > 0 || answer.parts.size() > ProtocolSizes::max_remote_parts(lanes_.size()))
    broken("a rendezvous for a small message");
  request->set_id(next_id_++);
  request->expect(asked.bytes);
  answer.header.count = static_cast<uint16_t>(answer.parts.size());
  answer.header.id = asked.id;
  answer.header.peer_id = request->id();
  writing_.emplace(request->id(), request);
  control_.push_back(std::move(answer));
}

void Exchange::refuse(Request& request, const MessageHeader& header) {
  ++stats_.messages_refused;
  Control answer{{MessageKind::refuse}, {}, {}};
  answer.header.tag = header.tag;
  answer.header.bytes = header.bytes;
  answer.header.id = header.id;
  answer.header.peer_id = request.capacity();
  control_.push_back(std::move(answer));
  request.fail(
      does_not_fit("a message from " + peer_, "this receive", header.tag, header.bytes, request.capacity()));
}

std::shared_ptr<Request> Exchange::take(Requests& requests, uint64_t id, const char* what) {
  const auto found = requests.find(id);
  if (found == requests.end()) broken(std::string(what) + " names an operation that does not wait for it");
  std::shared_ptr<Request> request = std::move(found->second);
  requests.erase(found);
  return request;
}

void Exchange::on_clear(const MessageHeader& header, std::span<const std::byte> payload) {
  credits_.owe_control();
  std::shared_ptr<Request> request = take(asked_, header.id, "a clearance to send");
  if (header.count == 0 || payload.size() != header.count * RemotePart::wire_bytes(lanes_.size()))
    broken("a clearance of wrong length");
  std::vector<RemotePart> parts = decode_parts(payload, lanes_.size());
  uint64_t total = 0;
  for (const RemotePart& part : parts) total += part.bytes;
  if (total != request->capacity() || header.peer_id == 0) broken("a clearance for another size");
  request->set_remote(std::move(parts));
  request->set_finish_id(header.peer_id);
  ++active_;
  transfers_.push_back(std::make_unique<Transfer>(std::move(request), lanes_.limits()));
}

void Exchange::on_finish(const MessageHeader& header) {
  credits_.owe_control();
  const std::shared_ptr<Request> request = take(writing_, header.id, "a finish");
  if (verify_) {
    try {
      check_sum(request->checksum_of(request->expected()), header);
    } catch (...) {
      request->fail(std::current_exception());
      throw;
    }
  }
  ++stats_.messages_received;
  stats_.bytes_received += request->expected();
  end_arrival(request, request->expected());
}

void Exchange::on_refuse(const MessageHeader& header) {
  credits_.owe_control();
  ++stats_.messages_refused;
  const auto failure =
      does_not_fit("a message to " + peer_, "the peer's receive", header.tag, header.bytes, header.peer_id);
  if (header.id != 0) return take(asked_, header.id, "a refusal")->fail(failure);
  // The send of an eager message has long returned: the next one tells.
  late_refusal_ = std::make_exception_ptr(SizeMismatchError(
      "an earlier message to " + peer_ + ", of " + std::to_string(header.bytes) + " bytes with tag " +
          std::to_string(header.tag) + ", did not fit the peer's receive of " +
          std::to_string(header.peer_id) + " bytes and was dropped (a send of up to " +
          std::to_string(ProtocolSizes::eager_bytes) +
          " bytes returns before the peer receives it). This call sent nothing; the connection goes on",
      header.bytes, header.peer_id));
}

}  // namespace rdmatx

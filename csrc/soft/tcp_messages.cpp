#include "soft/tcp_messages.hpp"

#include <infiniband/verbs.h>

#include <algorithm>
#include <cstring>

namespace rdmatx::soft {
namespace {

constexpr char magic[TcpHello::magic_bytes + 1] = "rdmatx\r\n";  // what any text protocol breaks at
constexpr uint32_t max_24_bits = 0xffffff;
constexpr uint64_t max_message_bytes = uint64_t{1} << 31;
constexpr uint8_t goodbye_kind = 255;

/// Puts and takes big-endian numbers, one after the other.
class Writer {
 public:
  explicit Writer(std::byte* to) : to_(to) {}
  template <class Number>
  void put(Number number) {
    for (size_t i = sizeof(Number); i-- > 0;) *to_++ = static_cast<std::byte>(uint64_t{number} >> (8 * i));
  }
  void put_bytes(const void* from, size_t count) {
    std::memcpy(to_, from, count);
    to_ += count;
  }

 private:
  std::byte* to_;
};

class Reader {
 public:
  explicit Reader(const std::byte* from) : from_(from) {}
  template <class Number>
  Number take() {
    uint64_t number = 0;
    for (size_t i = 0; i < sizeof(Number); ++i) number = number << 8 | std::to_integer<uint64_t>(*from_++);
    return static_cast<Number>(number);
  }
  void take_bytes(void* to, size_t count) {
    std::memcpy(to, from_, count);
    from_ += count;
  }

 private:
  const std::byte* from_;
};

bool carries_payload(RecordKind kind) {
  return kind == RecordKind::send || kind == RecordKind::write;
}

bool makes_sense(const RequestFrame& frame) {
  const Record& record = frame.record;
  if (frame.message == 0 || frame.rnr_retry > 7 || record.length > max_message_bytes) return false;
  constexpr uint8_t known_flags = record_immediate | record_solicited;
  if ((record.flags & ~known_flags) != 0) return false;
  switch (record.kind) {
    case RecordKind::send:
    case RecordKind::write:
      // A piece has bytes, unless the whole message has none.
      return frame.offset <= record.length && record.bytes <= record.length - frame.offset &&
             (record.bytes != 0 || record.length == 0);
    case RecordKind::read:
      return record.bytes == 0 && frame.offset == 0 && !(record.flags & record_immediate);
    case RecordKind::fetch_add:
    case RecordKind::compare_swap:
      return record.bytes == 0 && frame.offset == 0 && record.length == 8 &&
             !(record.flags & record_immediate);
    default:
      return false;
  }
}

bool is_refusal(uint8_t status) {
  return status == IBV_WC_REM_INV_REQ_ERR || status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_OP_ERR ||
         status == IBV_WC_RNR_RETRY_EXC_ERR;
}

}  // namespace

std::array<std::byte, TcpHello::encoded_bytes> encode(const TcpHello& hello) {
  std::array<std::byte, TcpHello::encoded_bytes> bytes{};
  Writer out(bytes.data());
  out.put_bytes(magic, TcpHello::magic_bytes);
  out.put(tcp_version);
  out.put(static_cast<uint16_t>(TcpHello::encoded_bytes));
  out.put(hello.stream);
  out.put(hello.streams);
  for (const uint32_t number : {hello.requester, hello.responder, hello.request_psn, hello.reply_psn})
    out.put(number);
  out.put_bytes(hello.source.data(), hello.source.size());
  out.put_bytes(hello.destination.data(), hello.destination.size());
  return bytes;
}

bool may_be_hello(std::span<const std::byte> beginning) {
  const auto known = std::as_bytes(std::span(magic, TcpHello::magic_bytes));
  const auto shown = beginning.first(std::min(beginning.size(), known.size()));
  return std::equal(shown.begin(), shown.end(), known.begin());
}

HelloFault parse(std::span<const std::byte, TcpHello::encoded_bytes> bytes, TcpHello& hello) {
  if (!may_be_hello(bytes)) return HelloFault::foreign;
  Reader in(bytes.data() + TcpHello::magic_bytes);
  if (in.take<uint16_t>() != tcp_version) return HelloFault::other_version;
  if (in.take<uint16_t>() != TcpHello::encoded_bytes) return HelloFault::malformed;
  hello.stream = in.take<uint16_t>();
  hello.streams = in.take<uint16_t>();
  bool valid = hello.streams >= 1 && hello.streams <= TcpHello::max_streams && hello.stream < hello.streams;
  for (uint32_t* number : {&hello.requester, &hello.responder, &hello.request_psn, &hello.reply_psn}) {
    *number = in.take<uint32_t>();
    valid = valid && *number <= max_24_bits;
  }
  in.take_bytes(hello.source.data(), hello.source.size());
  in.take_bytes(hello.destination.data(), hello.destination.size());
  return valid ? HelloFault::none : HelloFault::malformed;
}

std::array<std::byte, RequestFrame::encoded_bytes> encode(const RequestFrame& frame) {
  std::array<std::byte, RequestFrame::encoded_bytes> bytes{};
  Writer out(bytes.data());
  const Record& record = frame.record;
  out.put(frame.goodbye ? goodbye_kind : static_cast<uint8_t>(record.kind));
  out.put(record.flags);
  out.put(frame.rnr_retry);
  out.put(uint8_t{0});
  out.put_bytes(&record.immediate, sizeof record.immediate);  // in network byte order already
  out.put(record.key);
  out.put(record.bytes);
  for (const uint64_t number :
       {frame.message, record.address, record.length, frame.offset, record.operand, record.swap})
    out.put(number);
  return bytes;
}

std::optional<RequestFrame> parse_request(std::span<const std::byte, RequestFrame::encoded_bytes> bytes) {
  RequestFrame frame;
  Record& record = frame.record;
  Reader in(bytes.data());
  const auto kind = in.take<uint8_t>();
  record.flags = in.take<uint8_t>();
  frame.rnr_retry = in.take<uint8_t>();
  const auto reserved = in.take<uint8_t>();
  in.take_bytes(&record.immediate, sizeof record.immediate);
  record.key = in.take<uint32_t>();
  record.bytes = in.take<uint32_t>();
  for (uint64_t* number :
       {&frame.message, &record.address, &record.length, &frame.offset, &record.operand, &record.swap})
    *number = in.take<uint64_t>();
  if (reserved != 0) return std::nullopt;
  if (kind == goodbye_kind) {
    frame = {};
    frame.goodbye = true;
    return frame;
  }
  record.kind = static_cast<RecordKind>(kind);
  if (!makes_sense(frame)) return std::nullopt;
  if (!carries_payload(record.kind)) record.bytes = 0;
  return frame;
}

std::array<std::byte, ResponseFrame::encoded_bytes> encode(const ResponseFrame& frame) {
  std::array<std::byte, ResponseFrame::encoded_bytes> bytes{};
  Writer out(bytes.data());
  out.put(static_cast<uint8_t>(frame.kind));
  out.put(frame.status);
  out.put(uint16_t{0});
  out.put(frame.bytes);
  out.put(frame.message);
  out.put(frame.offset);
  out.put(frame.value);
  return bytes;
}

std::optional<ResponseFrame> parse_response(std::span<const std::byte, ResponseFrame::encoded_bytes> bytes) {
  ResponseFrame frame;
  Reader in(bytes.data());
  const auto kind = in.take<uint8_t>();
  frame.status = in.take<uint8_t>();
  const auto reserved = in.take<uint16_t>();
  frame.bytes = in.take<uint32_t>();
  frame.message = in.take<uint64_t>();
  frame.offset = in.take<uint64_t>();
  frame.value = in.take<uint64_t>();
  if (reserved != 0) return std::nullopt;
  if (kind < static_cast<uint8_t>(ResponseKind::welcome) ||
      kind > static_cast<uint8_t>(ResponseKind::goodbye))
    return std::nullopt;
  frame.kind = static_cast<ResponseKind>(kind);
  const bool data = frame.kind == ResponseKind::data;
  if (data ? frame.bytes == 0 : frame.bytes != 0 || frame.offset != 0) return std::nullopt;
  if (frame.kind != ResponseKind::result && frame.value != 0) return std::nullopt;
  if ((frame.kind == ResponseKind::refused) != is_refusal(frame.status)) return std::nullopt;
  if (frame.kind != ResponseKind::refused && frame.status != 0) return std::nullopt;
  return frame;
}

}  // namespace rdmatx::soft

#include "soft/tcp_messages.hpp"

#include <infiniband/verbs.h>

#include <cstring>

#include "check.hpp"
#include "soft/tcp_port.hpp"

using namespace rdmatx::soft;

namespace {

TcpHello a_hello() {
  TcpHello hello;
  hello.requester = 0x010203;
  hello.responder = 0xfffffe;
  hello.request_psn = 1;
  hello.reply_psn = 0xffffff;
  for (size_t i = 0; i < 16; ++i) hello.source[i] = static_cast<uint8_t>(i);
  hello.destination[15] = 7;
  hello.stream = 2;
  hello.streams = 3;
  return hello;
}

RequestFrame a_piece() {
  RequestFrame frame;
  frame.record.kind = RecordKind::write;
  frame.record.flags = record_immediate | record_solicited;
  frame.record.immediate = 0x01020304;
  frame.record.key = 77;
  frame.record.address = 0x123456789abcdef0;
  frame.record.length = 1000;
  frame.record.bytes = 400;
  frame.message = 9;
  frame.offset = 600;
  frame.rnr_retry = 7;
  return frame;
}

bool accepted(const RequestFrame& frame) {
  return parse_request(encode(frame)).has_value();
}

bool accepted(const ResponseFrame& frame) {
  return parse_response(encode(frame)).has_value();
}

}  // namespace

TEST(a_hello_arrives_as_it_was_sent) {
  TcpHello read;
  CHECK(parse(encode(a_hello()), read) == HelloFault::none);
  CHECK(read == a_hello());
}

TEST(a_hello_that_is_none_is_told_by_its_first_bytes) {
  auto bytes = encode(a_hello());
  CHECK(may_be_hello(std::span(bytes).first(0)));
  CHECK(may_be_hello(std::span(bytes).first(5)));
  CHECK(may_be_hello(bytes));
  const char http[] = "GET / HTTP/1.1\r\n";
  CHECK(!may_be_hello(std::as_bytes(std::span(http, 1))));
  CHECK(!may_be_hello(std::as_bytes(std::span(http, 16))));
  TcpHello read;
  bytes[0] = std::byte{'R'};
  CHECK(parse(bytes, read) == HelloFault::foreign);
}

TEST(a_hello_out_of_bounds_is_refused) {
  TcpHello read;
  for (const auto change :
       {+[](TcpHello& h) { h.requester = 0x1000000; }, +[](TcpHello& h) { h.responder = ~0u; },
        +[](TcpHello& h) { h.request_psn = 0x1000000; }, +[](TcpHello& h) { h.reply_psn = 0x1000000; },
        +[](TcpHello& h) { h.stream = 3; }, +[](TcpHello& h) { h.streams = 0; },
        +[](TcpHello& h) { h.streams = 17; }}) {
    TcpHello hello = a_hello();
    change(hello);
    CHECK(parse(encode(hello), read) == HelloFault::malformed);
  }
  auto bytes = encode(a_hello());
  bytes[9] = std::byte{99};
  CHECK(parse(bytes, read) == HelloFault::other_version);
  bytes = encode(a_hello());
  bytes[11] = std::byte{65};  // another length
  CHECK(parse(bytes, read) == HelloFault::malformed);
}

TEST(a_request_arrives_as_it_was_sent) {
  const RequestFrame sent = a_piece();
  const auto read = parse_request(encode(sent));
  CHECK(read.has_value());
  CHECK(std::memcmp(&read->record, &sent.record, sizeof sent.record) == 0);
  CHECK_EQ(read->message, sent.message);
  CHECK_EQ(read->offset, sent.offset);
  CHECK_EQ(read->rnr_retry, sent.rnr_retry);
  RequestFrame goodbye;
  goodbye.goodbye = true;
  CHECK(parse_request(encode(goodbye))->goodbye);
}

TEST(a_request_that_makes_no_sense_is_refused) {
  CHECK(accepted(a_piece()));
  for (const auto change :
       {+[](RequestFrame& f) { f.message = 0; }, +[](RequestFrame& f) { f.rnr_retry = 8; },
        +[](RequestFrame& f) { f.offset = 601; }, +[](RequestFrame& f) { f.offset = ~0ull; },
        +[](RequestFrame& f) { f.record.bytes = 401; }, +[](RequestFrame& f) { f.record.bytes = 0; },
        +[](RequestFrame& f) { f.record.bytes = ~0u; },
        +[](RequestFrame& f) { f.record.length = (1ull << 31) + 1; },
        +[](RequestFrame& f) { f.record.flags = 8; },
        +[](RequestFrame& f) { f.record.kind = RecordKind::fault; },
        +[](RequestFrame& f) { f.record.kind = RecordKind::read; },
        +[](RequestFrame& f) { f.record.kind = RecordKind::fetch_add; }}) {
    RequestFrame frame = a_piece();
    change(frame);
    CHECK(!accepted(frame));
  }
}

TEST(a_response_arrives_as_it_was_sent) {
  ResponseFrame sent;
  sent.kind = ResponseKind::data;
  sent.bytes = 5;
  sent.message = 1ull << 40;
  sent.offset = 12;
  const auto read = parse_response(encode(sent));
  CHECK(read.has_value());
  CHECK(read->kind == sent.kind);
  CHECK_EQ(read->bytes, sent.bytes);
  CHECK_EQ(read->message, sent.message);
  CHECK_EQ(read->offset, sent.offset);
}

TEST(a_response_that_makes_no_sense_is_refused) {
  ResponseFrame refusal;
  refusal.kind = ResponseKind::refused;
  refusal.status = IBV_WC_REM_ACCESS_ERR;
  CHECK(accepted(refusal));
  refusal.status = IBV_WC_SUCCESS;  // which would complete what failed
  CHECK(!accepted(refusal));
  refusal.status = IBV_WC_WR_FLUSH_ERR;
  CHECK(!accepted(refusal));
  ResponseFrame other;
  CHECK(accepted(other));
  other.bytes = 1;  // only data has a payload
  CHECK(!accepted(other));
  other = {};
  other.status = 1;
  CHECK(!accepted(other));
  other = {};
  other.value = 1;
  CHECK(!accepted(other));
  other = {};
  other.kind = static_cast<ResponseKind>(99);
  CHECK(!accepted(other));
}

TEST(a_range_of_ports_is_read_strictly) {
  const auto range = PortRange::parse("7000-7255");
  CHECK(range.has_value());
  CHECK_EQ(range->first, 7000);
  CHECK_EQ(range->last, 7255);
  CHECK(PortRange::parse("7000-7000").has_value());
  for (const char* wrong : {"", "7000", "7000-", "-7000", "7000-7256", "7255-7000", "0-10", "65000-65536",
                            "7000-7255x", " 7000-7255", "7000-7255-7300", "a-b"})
    CHECK(!PortRange::parse(wrong).has_value());
}

RDMATX_TEST_MAIN()

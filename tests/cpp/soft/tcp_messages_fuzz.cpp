// What a stranger, or a peer gone wild, may send to the software HCA's TCP port: any bytes as a hello, a
// request or a response. What is accepted must be what encoding it again gives, and within its bounds.

#include <algorithm>
#include <cstdlib>

#include "fuzz.hpp"
#include "soft/tcp_messages.hpp"

using namespace rdmatx::soft;

namespace {

template <size_t size>
std::array<std::byte, size> first_bytes(const uint8_t* data, size_t count) {
  std::array<std::byte, size> bytes{};
  std::transform(data, data + std::min(size, count), bytes.begin(),
                 [](uint8_t byte) { return std::byte{byte}; });
  return bytes;
}

void require(bool holds) {
  if (!holds) std::abort();
}

template <size_t size>
std::vector<uint8_t> seed(const std::array<std::byte, size>& bytes) {
  std::vector<uint8_t> data(size);
  std::transform(bytes.begin(), bytes.end(), data.begin(),
                 [](std::byte byte) { return std::to_integer<uint8_t>(byte); });
  return data;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)may_be_hello(std::as_bytes(std::span(data, size)));
  const auto hello_bytes = first_bytes<TcpHello::encoded_bytes>(data, size);
  TcpHello hello;
  if (parse(hello_bytes, hello) == HelloFault::none) {
    require(encode(hello) == hello_bytes);
    require(hello.stream < hello.streams && hello.streams <= TcpHello::max_streams);
  }
  const auto request_bytes = first_bytes<RequestFrame::encoded_bytes>(data, size);
  if (const auto frame = parse_request(request_bytes); frame && !frame->goodbye) {
    require(encode(*frame) == request_bytes);
    require(frame->offset + frame->record.bytes <= frame->record.length);
  }
  const auto response_bytes = first_bytes<ResponseFrame::encoded_bytes>(data, size);
  if (const auto frame = parse_response(response_bytes)) {
    require(encode(*frame) == response_bytes);
    require(frame->kind == ResponseKind::data || frame->bytes == 0);
  }
  return 0;
}

namespace rdmatx::testing {

std::vector<std::vector<uint8_t>> fuzz_seeds() {
  RequestFrame request;
  request.record.kind = RecordKind::send;
  request.record.bytes = 10;
  request.record.length = 10;
  request.message = 1;
  RequestFrame atomic;
  atomic.record.kind = RecordKind::fetch_add;
  atomic.record.length = 8;
  atomic.message = 2;
  ResponseFrame data;
  data.kind = ResponseKind::data;
  data.bytes = 4;
  return {seed(encode(TcpHello{})), seed(encode(request)), seed(encode(atomic)), seed(encode(data)),
          seed(encode(ResponseFrame{}))};
}

}  // namespace rdmatx::testing

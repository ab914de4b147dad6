#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "soft/channel.hpp"

// What two software HCAs say to each other over TCP: pure, and every length fixed. Numbers are big-endian.
//
// A connection carries the requests of one queue pair and, the other way, the answers to them. It opens with
// a hello of the requester and the welcome of the responder; then requests flow one way, responses the other.

namespace rdmatx::soft {

constexpr uint16_t tcp_version = 1;

/// What the requester shows to be let in: both ends as `ibv_modify_qp` was told of them. Whoever does not
/// know both packet sequence numbers (24 bits each) is no peer.
struct TcpHello {
  static constexpr size_t encoded_bytes = 64;
  static constexpr size_t magic_bytes = 8;
  static constexpr uint16_t max_streams = 16;
  using Address = std::array<uint8_t, 16>;

  uint32_t requester = 0, responder = 0;    ///< queue pair numbers
  uint32_t request_psn = 0, reply_psn = 0;  ///< the first of each side, as requester
  Address source{}, destination{};          ///< GIDs
  uint16_t stream = 0, streams = 1;         ///< this connection is the stream-th of so many

  bool operator==(const TcpHello&) const = default;
};

enum class HelloFault { none, foreign, other_version, malformed };

std::array<std::byte, TcpHello::encoded_bytes> encode(const TcpHello& hello);
/// Whether bytes can be the beginning of a hello: what is no peer is told by the first of them.
bool may_be_hello(std::span<const std::byte> beginning);
HelloFault parse(std::span<const std::byte, TcpHello::encoded_bytes> bytes, TcpHello& hello);

/// Precedes the payload of a request, or of a piece of one. Each piece says all there is to know of its
/// message, since any may come first where there are several streams.
struct RequestFrame {
  static constexpr size_t encoded_bytes = 64;

  Record record{};       ///< `bytes` of payload follow; `length` is that of the whole message
  uint64_t message = 0;  ///< counted from 1
  uint64_t offset = 0;   ///< of this piece in its message
  uint8_t rnr_retry = 0;
  bool goodbye = false;  ///< the requester leaves in good order; nothing else in it counts
};

std::array<std::byte, RequestFrame::encoded_bytes> encode(const RequestFrame& frame);
/// Nothing where the bytes make no sense: then the connection is of no more use.
std::optional<RequestFrame> parse_request(std::span<const std::byte, RequestFrame::encoded_bytes> bytes);

enum class ResponseKind : uint8_t {
  welcome = 1,  ///< the responder is ready; `message` is its queue pair number
  acknowledge,  ///< everything up to `message` is executed
  data,         ///< `bytes` of the answer to a read follow, for `offset`
  result,       ///< of an atomic: `value`
  refused,      ///< `message` failed with `status`, and with it the connection
  goodbye,      ///< the responder leaves in good order
};

struct ResponseFrame {
  static constexpr size_t encoded_bytes = 32;

  ResponseKind kind = ResponseKind::acknowledge;
  uint8_t status = 0;  ///< an ibv_wc_status
  uint32_t bytes = 0;
  uint64_t message = 0;
  uint64_t offset = 0;
  uint64_t value = 0;
};

std::array<std::byte, ResponseFrame::encoded_bytes> encode(const ResponseFrame& frame);
std::optional<ResponseFrame> parse_response(std::span<const std::byte, ResponseFrame::encoded_bytes> bytes);

}  // namespace rdmatx::soft

// Bytes from the peer's queue pair: messages in every state of an exchange. Whatever comes, it is handled or
// it ends the connection with an Error.

#include <cstring>
#include <memory>
#include <vector>

#include "base/error.hpp"
#include "fuzz.hpp"
#include "messaging/connection_pair.hpp"
#include "messaging/exchange.hpp"

using namespace rdmatx;

namespace {

/// One side of a connection whose other side is this file, over two queue pairs of this process.
class World {
 public:
  explicit World(const std::shared_ptr<Device>& device) {
    rail_.domain = ProtectionDomain::create(device);
    rail_.events = CompletionChannel::create(device);
    auto near = std::make_unique<Channel>(rail_.domain, rail_.events);
    far_ = std::make_unique<Channel>(rail_.domain, rail_.events);
    const Address here = near->local_address(1, 0);
    const Address there = far_->local_address(1, 0);
    near->connect(here, there, 4);
    far_->connect(there, here, 4);
    Lane lane;
    lane.rail = rail_;
    lane.path.max_message_bytes = 1u << 20;
    lane.channel = std::move(near);
    std::vector<Lane> lanes;
    lanes.push_back(std::move(lane));
    lanes_ = std::make_unique<Lanes>(std::move(lanes));
    exchange_ = std::make_unique<Exchange>(*lanes_, ProtocolSizes::slots, false, "the fuzzer");
  }
  ~World() {
    for (Lane& lane : *lanes_) lane.channel->destroy();
    exchange_->fail_all(std::make_exception_ptr(Error("over")));
  }

  /// The first byte says what is done, the second how, and the rest is a message.
  void step(std::span<const std::byte> bytes) {
    if (bytes.size() < 2) return;
    const auto what = static_cast<uint8_t>(bytes[0]);
    const auto how = static_cast<uint8_t>(bytes[1]);
    const uint64_t size = how < 128 ? how : uint64_t{how} * 1000;
    memory_.resize(256 * 1000);
    OperationMemory memory{memory_.data(), size, {}, {}, {}, {}};
    const auto start = [&](RequestKind kind, TagChoice tag) {
      auto request = make_request(kind, tag, memory);
      if (size > ProtocolSizes::eager_bytes)
        request->register_memory(lanes_->domains(), Access::local_write | Access::remote_write,
                                 lanes_->limits());
      return request;
    };
    switch (what % 6) {
      case 0:
        exchange_->receive(start(RequestKind::receive, uint64_t{how % 3u}));
        break;
      case 1:
        exchange_->receive(start(RequestKind::receive, TagChoice{}));
        break;
      case 2:
        exchange_->send(start(RequestKind::send, uint64_t{how % 3u}));
        break;
      case 3:
        exchange_->notified(how);
        break;
      default:
        exchange_->handle(bytes.subspan(2));
        exchange_->flush();
    }
    drain(*(*lanes_)[0].channel, true);
    drain(*far_, false);
    (void)exchange_->take_notice();
  }

 private:
  void drain(Channel& channel, bool ours) {
    std::array<Completion, 16> completions;
    while (const size_t count = channel.poll(completions)) {
      for (size_t i = 0; i < count; ++i) {
        if (!completions[i].succeeded()) throw Error("a completion failed: the connection is over");
        if (Channel::is_receive(completions[i]))
          channel.return_slot(completions[i]);
        else
          channel.retire(completions[i], [&](std::shared_ptr<Request> request) {
            if (ours) exchange_->complete(request);
          });
      }
      channel.post_returned_slots();
    }
  }

  Rail rail_;
  std::unique_ptr<Channel> far_;
  std::unique_ptr<Lanes> lanes_;
  std::vector<std::byte> memory_;
  std::unique_ptr<Exchange> exchange_;
};

std::vector<uint8_t> step_of(uint8_t what, uint8_t how, const MessageHeader& header = {},
                             std::span<const std::byte> payload = {}) {
  const size_t header_bytes = what >= 4 ? sizeof header : 0;
  std::vector<uint8_t> step(4 + header_bytes + payload.size());
  const auto length = static_cast<uint16_t>(step.size() - 2);
  step[0] = static_cast<uint8_t>(length);
  step[1] = static_cast<uint8_t>(length >> 8);
  step[2] = what;
  step[3] = how;
  std::memcpy(step.data() + 4, &header, header_bytes);
  if (!payload.empty()) std::memcpy(step.data() + 4 + header_bytes, payload.data(), payload.size());
  return step;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::shared_ptr<Device> device = Device::open(soft_verbs());
  World world(device);
  auto bytes = std::as_bytes(std::span(data, size));
  try {
    // Steps, each behind its length.
    while (bytes.size() > 2) {
      const size_t length = static_cast<size_t>(bytes[0]) | static_cast<size_t>(bytes[1]) << 8;
      bytes = bytes.subspan(2);
      world.step(bytes.first(std::min(length, bytes.size())));
      bytes = bytes.subspan(std::min(length, bytes.size()));
    }
  } catch (const Error&) {
    // The connection ends with it; nothing else does.
  }
  return 0;
}

namespace rdmatx::testing {

std::vector<std::vector<uint8_t>> fuzz_seeds() {
  const auto header = [](MessageKind kind, uint64_t tag, uint64_t bytes, uint64_t id, uint64_t peer_id) {
    MessageHeader made{kind};
    made.tag = tag;
    made.bytes = bytes;
    made.id = id;
    made.peer_id = peer_id;
    return made;
  };
  const auto join = [](std::initializer_list<std::vector<uint8_t>> steps) {
    std::vector<uint8_t> all;
    for (const auto& step : steps) all.insert(all.end(), step.begin(), step.end());
    return all;
  };
  const std::vector<std::byte> payload(20);
  std::vector<std::byte> parts;
  const RemotePart part{4096, 200'000, {17}};
  encode_parts({&part, 1}, 1, parts);
  MessageHeader clear = header(MessageKind::clear, 0, 0, 1, 5);
  clear.count = 1;
  MessageHeader credit = header(MessageKind::credit, 0, 0, 0, 0);
  credit.data_credits = 3;
  return {
      join({step_of(0, 50), step_of(4, 0, header(MessageKind::eager, 2, 20, 0, 0), payload)}),
      join({step_of(4, 0, header(MessageKind::eager, 1, 20, 0, 0), payload), step_of(1, 10), step_of(1, 30)}),
      join({step_of(4, 0, header(MessageKind::request, 2, 150'000, 9, 0)), step_of(0, 200),
            step_of(4, 0, header(MessageKind::finish, 0, 0, 1, 0))}),
      join({step_of(2, 200), step_of(5, 0, clear, parts)}),
      join({step_of(2, 200), step_of(4, 0, header(MessageKind::refuse, 2, 200'000, 1, 100)), step_of(2, 5)}),
      join({step_of(3, 7), step_of(4, 0, credit), step_of(4, 0, header(MessageKind::goodbye, 0, 0, 0, 0))}),
      join({step_of(4, 0, header(MessageKind::notice, 0, 0, 0, 0), payload)}),
  };
}

}  // namespace rdmatx::testing

// Records over a real socket pair, whole and in pieces, with and without a seal.

#include "messaging/bootstrap.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include "base/error.hpp"
#include "check.hpp"

using namespace rdmatx;

namespace {

using Arrival = BootstrapSocket::Arrival;

struct Ends {
  BootstrapSocket near;
  BootstrapSocket far;

  Ends() {
    int fds[2];
    CHECK_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    near = BootstrapSocket(UniqueFd(fds[0]));
    far = BootstrapSocket(UniqueFd(fds[1]));
  }
  void protect() {
    const std::array<uint8_t, 4> bytes = {1, 2, 3, 4};
    const SessionKeys keys(Secret(bytes), Nonce{}, Nonce{7});
    near.protect(RecordSeal(keys, Side::connector));
    far.protect(RecordSeal(keys, Side::listener));
  }
  void say(std::span<const std::byte> bytes) {
    CHECK_EQ(::send(near.fd(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }
};

const Deadline soon{5.0};

}  // namespace

TEST(records_arrive_in_order_with_and_without_a_seal) {
  for (bool sealed : {false, true}) {
    Ends ends;
    if (sealed) ends.protect();
    for (const std::string text : {"one", "", "three"})
      ends.near.send(encode(RecordKind::failed, text), soon, "peer");
    for (const std::string text : {"one", "", "three"}) {
      const auto record = ends.far.receive(soon, "peer");
      CHECK_EQ(record.head.kind, RecordKind::failed);
      CHECK_EQ(decode_text(record.body), text);
    }
    BootstrapSocket::Record record;
    RecordProblem problem;
    CHECK_EQ(ends.far.try_receive(record, problem), Arrival::nothing_yet);
    ends.near.close();
    CHECK_EQ(ends.far.try_receive(record, problem), Arrival::closed);
  }
}

TEST(a_record_may_come_byte_by_byte) {
  Ends ends;
  const auto bytes = encode(RecordKind::failed, "slowly");
  BootstrapSocket::Record record;
  RecordProblem problem;
  for (size_t i = 0; i < bytes.size(); ++i) {
    CHECK_EQ(ends.far.try_receive(record, problem), Arrival::nothing_yet);
    ends.say(std::span(bytes).subspan(i, 1));
  }
  CHECK_EQ(ends.far.try_receive(record, problem), Arrival::record);
  CHECK_EQ(decode_text(record.body), "slowly");
}

TEST(a_record_without_a_seal_is_refused_where_one_is_due) {
  Ends ends;
  ends.protect();
  ends.say(encode(RecordKind::goodbye, std::string(100, 'x')));
  BootstrapSocket::Record record;
  RecordProblem problem;
  CHECK_EQ(ends.far.try_receive(record, problem), Arrival::malformed);
  CHECK(problem.unproved);
  CHECK(problem.text.find("seal is wrong") != std::string::npos);
  ends.say(encode(RecordKind::ready));
  CHECK_THROWS(AuthenticationError, "seal is wrong", ends.far.receive(soon, "peer"));
}

TEST(a_moved_socket_keeps_its_seal) {
  Ends ends;
  ends.protect();
  BootstrapSocket moved = std::move(ends.near);
  BootstrapSocket assigned;
  assigned = std::move(moved);
  assigned.send_now(encode(RecordKind::goodbye, "later"));
  CHECK_EQ(decode_text(ends.far.receive(soon, "peer").body), "later");
}

TEST(a_refusal_arrives_with_its_kind) {
  Ends ends;
  ends.near.refuse("no secret", RecordKind::denied);
  const auto record = ends.far.receive(soon, "peer");
  CHECK_EQ(record.head.kind, RecordKind::denied);
  CHECK_EQ(decode_text(record.body), "no secret");
}

TEST(loopback_is_told_from_what_others_reach) {
  CHECK(is_loopback(listen_on("127.0.0.1:0", 1).get()));
  CHECK(is_loopback(listen_on(":0", 1).get()));
  CHECK(is_loopback(listen_on("127.8.9.10:0", 1).get()));
  CHECK(!is_loopback(listen_on("0.0.0.0:0", 1).get()));
  UniqueFd six;
  try {
    six = listen_on("[::1]:0", 1);
  } catch (const Error&) {
    return;  // a machine without IPv6
  }
  CHECK(is_loopback(six.get()));
  CHECK(!is_loopback(listen_on("[::]:0", 1).get()));
}

TEST(who_arrives_is_named) {
  const UniqueFd listening = listen_on("127.0.0.1:0", 4);
  CHECK_EQ(take_arriving(listening.get()).code, EAGAIN);
  const BootstrapSocket knocking = BootstrapSocket::connect(own_address(listening.get()), soon);
  Arriving arriving = take_arriving(listening.get());
  CHECK(static_cast<bool>(arriving.fd));
  CHECK_EQ(arriving.peer, own_address(knocking.fd()));
  CHECK_EQ(arriving.source[0], 127);
}

RDMATX_TEST_MAIN()

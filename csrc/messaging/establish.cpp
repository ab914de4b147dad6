#include "messaging/establish.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/error.hpp"

namespace rdmatx {

Endpoint::Endpoint(std::shared_ptr<ContextResources> resources)
    : resources_(std::move(resources)),
      channel_(std::make_unique<Channel>(resources_->domain, resources_->events)) {
  const Device& device = *resources_->device();
  const DeviceLimits& limits = device.attributes().limits;
  record_.host_id = host_id();
  record_.verify = resources_->verify;
  record_.process_id = static_cast<uint32_t>(::getpid());
  record_.provider = device.attributes().provider;
  record_.device = device.name();
  record_.candidates = gather_candidates(device);
  const GidCandidate& first = record_.candidates.front();
  const Address own = channel_->local_address(first.port, first.index);
  record_.queue_pair_number = own.queue_pair_number;
  record_.packet_sequence_number = own.packet_sequence_number;
  record_.slots = ProtocolSizes::slots;
  record_.slot_bytes = ProtocolSizes::slot_bytes;
  record_.max_rd_atomic =
      static_cast<uint8_t>(std::clamp(std::min(limits.max_qp_rd_atom, limits.max_qp_init_rd_atom), 0, 16));
}

void Endpoint::check_peer(const HandshakeRecord& peer) const {
  if (peer.provider != record_.provider)
    throw UnavailableError(
        "one side uses provider " + record_.provider + " (" + record_.device + ") and the other " +
        peer.provider + " (" + peer.device +
        "): open both contexts with the same provider, Context(provider=\"soft\") or \"system\"");
  if (peer.slot_bytes != record_.slot_bytes)
    throw UnavailableError("the two sides' message slots differ (" + std::to_string(record_.slot_bytes) +
                           " and " + std::to_string(peer.slot_bytes) +
                           " bytes): install the same rdmatx on both");
}

HandshakeRecord Endpoint::answer(const HandshakeRecord& hello) {
  check_peer(hello);
  const bool same_host = hello.host_id == record_.host_id;
  const auto choice = choose_gids(record_.candidates, hello.candidates, same_host);
  if (!choice) throw UnavailableError(explain_no_pair(record_.candidates, hello.candidates, same_host));
  connect(hello, choice->local, choice->remote, choice->reason);
  HandshakeRecord accept = record_;
  accept.chosen_listener = static_cast<uint16_t>(choice->local);
  accept.chosen_connector = static_cast<uint16_t>(choice->remote);
  accept.reason = choice->reason;
  return accept;
}

void Endpoint::conclude(const HandshakeRecord& accept) {
  check_peer(accept);
  if (accept.chosen_connector >= record_.candidates.size() ||
      accept.chosen_listener >= accept.candidates.size())
    throw UnavailableError(
        "the listener chose an address that nobody has: install the same rdmatx on both sides");
  connect(accept, accept.chosen_connector, accept.chosen_listener, accept.reason);
}

void Endpoint::connect(const HandshakeRecord& peer, size_t local, size_t remote, std::string reason) {
  path_.local = record_.candidates[local];
  path_.remote = peer.candidates[remote];
  path_.provider = record_.provider;
  path_.device = record_.device;
  path_.reason = std::move(reason);
  path_.verify = record_.verify || peer.verify;
  path_.max_message_bytes = resources_->device()->query_port(path_.local.port).max_message_bytes;
  peer_slots_ = peer.slots;
  channel_->connect(address_of(path_.local, record_.queue_pair_number, record_.packet_sequence_number),
                    address_of(path_.remote, peer.queue_pair_number, peer.packet_sequence_number),
                    std::min(record_.max_rd_atomic, peer.max_rd_atomic));
}

std::shared_ptr<Connection> Endpoint::finish(BootstrapSocket socket, std::string peer) {
  return Connection::create(*resources_, std::move(channel_), std::move(socket), std::move(path_),
                            peer_slots_, std::move(peer));
}

namespace {

// The next record, which is to be of this kind; a refusal is raised in its own words.
BootstrapSocket::Record expect(BootstrapSocket& socket, RecordKind kind, const Deadline& deadline,
                               const std::string& address) {
  BootstrapSocket::Record record = socket.receive(deadline, address);
  if (record.head.kind == kind) return record;
  if (record.head.kind == RecordKind::denied)
    throw AuthenticationError(address + " refused the connection: " + decode_text(record.body), address);
  if (record.head.kind == RecordKind::refuse)
    throw UnavailableError(address + " refused the connection: " + decode_text(record.body));
  throw UnavailableError("handshake with " + address + " failed: an unexpected record came");
}

// The listener proves the secret first. This side's proof is the seal of its hello, which comes next.
void authenticate(BootstrapSocket& socket, const Secret& secret, const Deadline& deadline,
                  const std::string& address) {
  const Nonce nonce = random_nonce();
  socket.send(encode_greeting(nonce), deadline, address);
  const auto challenge = decode_challenge(expect(socket, RecordKind::challenge, deadline, address).body);
  if (!challenge)
    throw UnavailableError("handshake with " + address + " failed: its challenge has a wrong length");
  const SessionKeys keys(secret, nonce, challenge->nonce);
  if (!equal_in_constant_time(challenge->proof, keys.proof())) {
    socket.refuse("the secrets of the two sides differ", RecordKind::denied);
    throw AuthenticationError("the secret of " + address +
                                  " is not this side's: give both the same one (secret=..., or RDMATX_SECRET "
                                  "in the environment)",
                              address);
  }
  socket.protect(RecordSeal(keys, Side::connector));
}

}  // namespace

std::shared_ptr<Connection> establish(const std::shared_ptr<ContextResources>& resources,
                                      const std::string& address, const SharedSecret& secret,
                                      const Deadline& deadline) {
  // Before the socket, so that a listener is not kept waiting: it gives quiet ones up where many knock.
  Endpoint endpoint(resources);
  BootstrapSocket socket = BootstrapSocket::connect(address, deadline);
  if (secret) authenticate(socket, *secret, deadline, address);
  socket.send(encode(RecordKind::hello, endpoint.record()), deadline, address);
  RecordProblem problem;
  const auto accept = decode_handshake(expect(socket, RecordKind::accept, deadline, address).body, problem);
  if (!accept) throw UnavailableError("handshake with " + address + " failed: " + problem.text);
  endpoint.conclude(*accept);
  socket.send(encode(RecordKind::ready), deadline, address);
  return endpoint.finish(std::move(socket), address);
}

}  // namespace rdmatx

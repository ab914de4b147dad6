#include "rdma/address.hpp"

#include <cstddef>
#include <random>
#include <vector>

#include "base/error.hpp"
#include "check.hpp"

using namespace rdmatx;

namespace {

Address example() {
  Address address;
  address.queue_pair_number = 0xabcdef;
  address.packet_sequence_number = 0x123456;
  address.lid = 0x1234;
  address.port = 2;
  address.gid_index = 3;
  address.link_layer = LinkLayer::ethernet;
  address.gid_type = GidType::roce_v2;
  address.mtu = 4096;
  address.gid = Gid::parse("::ffff:10.0.0.1");
  return address;
}

}  // namespace

TEST(bytes_come_back_as_the_same_address) {
  CHECK(Address::from_bytes(example().to_bytes()) == example());
  Address smallest;
  CHECK(Address::from_bytes(smallest.to_bytes()) == smallest);
}

TEST(random_addresses_come_back) {
  std::mt19937 random(1);
  for (int round = 0; round < 1000; ++round) {
    Address address = example();
    address.queue_pair_number = random() & 0xffffff;
    address.packet_sequence_number = random() & 0xffffff;
    address.lid = static_cast<uint16_t>(random());
    address.port = static_cast<uint8_t>(1 + random() % 255);
    address.gid_index = static_cast<uint8_t>(random());
    address.mtu = 256u << (random() % 5);
    for (uint8_t& byte : address.gid.raw) byte = static_cast<uint8_t>(random());
    CHECK(Address::from_bytes(address.to_bytes()) == address);
  }
}

TEST(the_layout_is_fixed) {
  const std::vector<std::byte> bytes = example().to_bytes();
  CHECK_EQ(bytes.size(), 40u);
  auto at = [&](size_t i) { return std::to_integer<int>(bytes[i]); };
  CHECK_EQ(at(0), 'r');
  CHECK_EQ(at(3), 'a');
  CHECK_EQ(at(4), 1);
  CHECK_EQ(at(7), 40);
  CHECK_EQ(at(9), 0xab);
  CHECK_EQ(at(11), 0xef);
  CHECK_EQ(at(22), 5);
  CHECK_EQ(at(39), 1);
}

TEST(every_shorter_or_longer_record_is_refused) {
  std::vector<std::byte> bytes = example().to_bytes();
  for (size_t length = 0; length < bytes.size(); ++length)
    CHECK_THROWS(UsageError, "not an address", Address::from_bytes({bytes.data(), length}));
  bytes.push_back(std::byte{0});
  CHECK_THROWS(UsageError, "41 bytes", Address::from_bytes(bytes));
}

TEST(each_malformed_field_is_refused) {
  struct Change {
    size_t at;
    int value;
    const char* text;
  };
  for (const Change& change :
       {Change{0, 'x', "begin"}, Change{4, 2, "version 2"}, Change{5, 1, "reserved"}, Change{7, 41, "bytes"},
        Change{8, 1, "24 bits"}, Change{12, 1, "24 bits"}, Change{18, 0, "from 1"},
        Change{19, 3, "link layer"}, Change{21, 3, "GID type"}, Change{22, 0, "MTU"}, Change{22, 6, "MTU"},
        Change{23, 1, "reserved"}}) {
    std::vector<std::byte> bytes = example().to_bytes();
    bytes[change.at] = static_cast<std::byte>(change.value);
    CHECK_THROWS(UsageError, change.text, Address::from_bytes(bytes));
  }
}

TEST(fields_out_of_range_are_not_encoded) {
  Address address = example();
  address.queue_pair_number = 1 << 24;
  CHECK_THROWS(UsageError, "24 bits", address.to_bytes());
  address = example();
  address.mtu = 1500;
  CHECK_THROWS(UsageError, "1500", address.to_bytes());
  address = example();
  address.port = 0;
  CHECK_THROWS(UsageError, "from 1", address.to_bytes());
}

RDMATX_TEST_MAIN()

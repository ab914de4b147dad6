// Regions of dma-bufs on the software HCA: memory that no address of this process shows, behind a descriptor.

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "base/unique_fd.hpp"
#include "soft/ends.hpp"

using namespace rdmatx;
using namespace rdmatx::testing;

namespace {

constexpr uint64_t nowhere = 0x7000'0000'0000;  // nothing is mapped there

/// A memfd in the place of a dma-buf, which begins `start` bytes into it.
struct DmaBuf {
  explicit DmaBuf(size_t size, size_t start = 0) : fd(memfd_create("dma-buf", MFD_CLOEXEC)), begin(start) {
    CHECK_EQ(ftruncate(fd.get(), static_cast<off_t>(size)), 0);
    CHECK_EQ(lseek(fd.get(), static_cast<off_t>(start), SEEK_SET), static_cast<off_t>(start));
  }
  void put(size_t offset, const std::vector<char>& bytes) const {
    CHECK_EQ(pwrite(fd.get(), bytes.data(), bytes.size(), static_cast<off_t>(begin + offset)),
             static_cast<ssize_t>(bytes.size()));
  }
  std::vector<char> take(size_t offset, size_t bytes) const {
    std::vector<char> out(bytes);
    CHECK_EQ(pread(fd.get(), out.data(), bytes, static_cast<off_t>(begin + offset)),
             static_cast<ssize_t>(bytes));
    return out;
  }
  UniqueFd fd;
  size_t begin;
};

std::vector<char> some_bytes(size_t count, char first) {
  std::vector<char> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<char>(first + static_cast<char>(i % 101));
  return out;
}

/// An end whose memory is [offset, offset + bytes) of a dma-buf.
struct DmaEnd : End {
  DmaEnd(const DmaBuf& buffer, size_t offset, size_t bytes, uint64_t base) {
    CHECK_EQ(verbs->dereg_mr(mr), 0);
    mr = verbs->reg_dmabuf_mr(pd, offset, bytes, base + offset, buffer.fd.get(), access);
    CHECK(mr != nullptr);
    memory = reinterpret_cast<std::byte*>(base + offset);
    CHECK(mr->addr == memory);
  }
};

}  // namespace

TEST(bytes_go_in_and_out_at_every_kind_of_offset) {
  constexpr size_t bytes = 300000;
  for (const size_t offset : {0, 1, 8, 4095, 4096, 12345}) {
    const DmaBuf here(1 << 20, 8192), there(1 << 20, 4096);
    DmaEnd one(here, offset, bytes, nowhere), other(there, 2 * offset, bytes, 2 * nowhere);
    const Coordinates target = other.coordinates();
    one.connect(target);
    other.connect(one.coordinates());

    here.put(offset, some_bytes(bytes, 1));
    CHECK_EQ(one.post(IBV_WR_RDMA_WRITE, 0, bytes, &target), 0);
    CHECK_EQ(one.next().status, IBV_WC_SUCCESS);
    CHECK(there.take(2 * offset, bytes) == some_bytes(bytes, 1));

    there.put(2 * offset, some_bytes(bytes, 5));
    CHECK_EQ(one.post(IBV_WR_RDMA_READ, 3, bytes - 3, &target), 0);
    CHECK_EQ(one.next().status, IBV_WC_SUCCESS);
    CHECK(here.take(offset + 3, bytes - 3) == some_bytes(bytes - 3, 5));

    here.put(offset, some_bytes(bytes, 9));
    CHECK_EQ(other.receive(7, bytes - 7), 0);
    CHECK_EQ(one.post(IBV_WR_SEND, 0, bytes - 7), 0);
    CHECK_EQ(other.next().status, IBV_WC_SUCCESS);
    CHECK_EQ(one.next().status, IBV_WC_SUCCESS);
    CHECK(there.take(2 * offset + 7, bytes - 7) == some_bytes(bytes - 7, 9));
  }
}

TEST(an_atomic_finds_its_eight_bytes) {
  const DmaBuf here(8192), there(8192, 4096);
  DmaEnd one(here, 0, 4096, nowhere), other(there, 8, 4088, nowhere);
  const Coordinates target = other.coordinates();
  one.connect(target);
  other.connect(one.coordinates());
  const uint64_t start = 41;
  CHECK_EQ(pwrite(there.fd.get(), &start, 8, 4096 + 16), 8);
  ibv_sge sge{reinterpret_cast<uint64_t>(one.memory), 8, one.mr->lkey};
  ibv_send_wr work{}, *bad = nullptr;
  work.sg_list = &sge;
  work.num_sge = 1;
  work.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  work.send_flags = IBV_SEND_SIGNALED;
  work.wr.atomic.remote_addr = target.address + 8;
  work.wr.atomic.rkey = target.key;
  work.wr.atomic.compare_add = 2;
  CHECK_EQ(ibv_post_send(one.qp, &work, &bad), 0);
  CHECK_EQ(one.next().status, IBV_WC_SUCCESS);
  uint64_t before = 0, after = 0;
  CHECK_EQ(pread(here.fd.get(), &before, 8, 0), 8);
  CHECK_EQ(pread(there.fd.get(), &after, 8, 4096 + 16), 8);
  CHECK_EQ(before, 41u);
  CHECK_EQ(after, 43u);
}

TEST(the_end_of_the_region_holds) {
  const DmaBuf here(1 << 20), there(1 << 20);
  DmaEnd one(here, 0, 65536, nowhere), other(there, 0, 65536, nowhere);
  const Coordinates target = other.coordinates();
  one.connect(target);
  other.connect(one.coordinates());
  CHECK_EQ(one.post(IBV_WR_RDMA_WRITE, 0, 4096, &target, 65536 - 4095), 0);
  CHECK_EQ(one.next().status, IBV_WC_REM_ACCESS_ERR);
  CHECK(there.take(65536 - 4095, 8190) == std::vector<char>(8190));
}

TEST(the_descriptor_may_go_and_the_region_stays) {
  DmaBuf here(65536);
  const DmaBuf there(65536);
  here.put(0, some_bytes(65536, 3));
  DmaEnd one(here, 0, 65536, nowhere), other(there, 0, 65536, nowhere);
  here.fd = UniqueFd();
  const Coordinates target = other.coordinates();
  one.connect(target);
  other.connect(one.coordinates());
  CHECK_EQ(one.post(IBV_WR_RDMA_WRITE, 0, 65536, &target), 0);
  CHECK_EQ(one.next().status, IBV_WC_SUCCESS);
  CHECK(there.take(0, 65536) == some_bytes(65536, 3));
}

TEST(what_no_device_takes_is_refused) {
  End end;
  const DmaBuf buffer(65536, 4096);
  const auto refused = [&](uint64_t offset, size_t bytes, uint64_t address, int fd, int access) {
    errno = 0;
    CHECK(end.verbs->reg_dmabuf_mr(end.pd, offset, bytes, address, fd, access) == nullptr);
    return errno;
  };
  const int fd = buffer.fd.get();
  CHECK_EQ(refused(0, 0, nowhere, fd, End::access), EINVAL);
  CHECK_EQ(refused(1, 4096, nowhere, fd, End::access), EINVAL);   // other places within their pages
  CHECK_EQ(refused(0, 65536, nowhere, fd, End::access), EINVAL);  // passes the end
  CHECK_EQ(refused(4096, UINT64_MAX - 100, nowhere, fd, End::access), EINVAL);
  CHECK_EQ(refused(0, 4096, nowhere, fd, IBV_ACCESS_REMOTE_WRITE), EINVAL);
  CHECK_EQ(refused(0, 4096, nowhere, -1, End::access), EBADF);
  const UniqueFd folder(open("/", O_RDONLY | O_CLOEXEC));
  CHECK(refused(0, 4096, nowhere, folder.get(), End::access) != 0);
  // Two registrations of one descriptor begin at the same place.
  ibv_mr* one = end.verbs->reg_dmabuf_mr(end.pd, 0, 61440, nowhere, fd, End::access);
  ibv_mr* two = end.verbs->reg_dmabuf_mr(end.pd, 0, 61440, nowhere, fd, End::access);
  CHECK(one != nullptr && two != nullptr);
  CHECK_EQ(end.verbs->dereg_mr(one), 0);
  CHECK_EQ(end.verbs->dereg_mr(two), 0);
}

TEST(the_addresses_of_a_gpu_are_no_memory_of_the_host) {
  End end;
  void* closed = mmap(nullptr, 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(closed != MAP_FAILED);
  errno = 0;
  CHECK(end.verbs->reg_mr(end.pd, closed, 65536, 0) == nullptr);
  CHECK_EQ(errno, EFAULT);
  munmap(closed, 65536);
}

RDMATX_TEST_MAIN()

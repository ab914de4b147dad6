"""The other side of test_pyverbs_peer.py: a queue pair made by pyverbs, rdma-core's own Python bindings.

Runs under the distribution's Python, which has pyverbs, and imports nothing of rdmatx: what it agrees with
us on is verbs alone. Reads a JSON object a line from standard input, does it, answers with one on standard
output.
"""

import json
import sys
import time

from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.enums import (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_ATOMIC,
    IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_QPT_RC,
    IBV_SEND_SIGNALED,
    IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND,
    IBV_WR_SEND_WITH_IMM,
)
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

ACCESS = (
    IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC
)
OPCODES = {
    "send": IBV_WR_SEND,
    "send_imm": IBV_WR_SEND_WITH_IMM,
    "write": IBV_WR_RDMA_WRITE,
    "write_imm": IBV_WR_RDMA_WRITE_WITH_IMM,
    "read": IBV_WR_RDMA_READ,
    "fetch_add": IBV_WR_ATOMIC_FETCH_AND_ADD,
    "compare_swap": IBV_WR_ATOMIC_CMP_AND_SWP,
}
FIRST_PSN = 0x654321


class Peer:
    def __init__(self, device, gid_index, nbytes):
        self.context = Context(name=device)
        self.domain = PD(self.context)
        self.queue = CQ(self.context, 64)
        self.memory = MR(self.domain, nbytes, ACCESS)
        self.memory.write(bytes(nbytes), nbytes)
        capabilities = QPCap(max_send_wr=16, max_recv_wr=16, max_send_sge=1, max_recv_sge=1)
        initial = QPInitAttr(qp_type=IBV_QPT_RC, scq=self.queue, rcq=self.queue, cap=capabilities)
        self.qp = QP(self.domain, initial)
        self.gid_index = gid_index

    def describe(self):
        gid = self.context.query_gid(1, self.gid_index)
        return {
            "number": self.qp.qp_num,
            "psn": FIRST_PSN,
            "gid": str(gid.gid),
            "address": self.memory.buf,
            "key": self.memory.rkey,
        }

    def connect(self, number, psn, gid, mtu):
        route = GlobalRoute(dgid=_gid(gid), sgid_index=self.gid_index, hop_limit=64)
        attributes = QPAttr(port_num=1)
        attributes.dest_qp_num = number
        attributes.path_mtu = mtu
        attributes.rq_psn = psn
        attributes.sq_psn = FIRST_PSN
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 4
        attributes.min_rnr_timer = 1
        attributes.timeout = 14
        attributes.retry_cnt = attributes.rnr_retry = 7
        attributes.qp_access_flags = ACCESS
        attributes.ah_attr = AHAttr(is_global=1, port_num=1, gr=route)
        self.qp.to_rts(attributes)
        return {}

    def fill(self, hex_content, offset=0):
        content = bytes.fromhex(hex_content)
        self.memory.write(content, len(content), offset)
        return {}

    def content(self, nbytes, offset=0):
        return {"content": self.memory.read(nbytes, offset).hex()}

    def receive(self, offset, nbytes):
        element = SGE(self.memory.buf + offset, nbytes, self.memory.lkey)
        self.qp.post_recv(RecvWR(wr_id=1, num_sge=1, sg=[element]))
        return {}

    def post(self, operation, offset, nbytes, address=0, key=0, imm=0, first=0, second=0):
        element = SGE(self.memory.buf + offset, nbytes, self.memory.lkey)
        work = SendWR(
            wr_id=2,
            opcode=OPCODES[operation],
            num_sge=1,
            sg=[element],
            imm_data=imm,
            send_flags=IBV_SEND_SIGNALED,
        )
        if operation in ("fetch_add", "compare_swap"):
            work.set_wr_atomic(key, address, first, second)
        elif operation in ("write", "write_imm", "read"):
            work.set_wr_rdma(key, address)
        self.qp.post_send(work)
        return {}

    def wait(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            count, completions = self.queue.poll(1)
            if count:
                done = completions[0]
                return {
                    "id": done.wr_id,
                    "status": done.status,
                    "bytes": done.byte_len,
                    "imm": done.imm_data,
                }
            time.sleep(0)
        return {"error": f"no completion within {seconds} s"}

    def close(self):
        for thing in (self.qp, self.memory, self.queue, self.domain, self.context):
            thing.close()


def _gid(text):
    import ipaddress

    from pyverbs.addr import GID

    raw = ipaddress.IPv6Address(text).exploded
    return GID(val=raw)


def main():
    device, gid_index, nbytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    peer = Peer(device, gid_index, nbytes)
    print(json.dumps(peer.describe()), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(peer, request.pop("do"))(**request)
        print(json.dumps(answer), flush=True)
    peer.close()


if __name__ == "__main__":
    main()

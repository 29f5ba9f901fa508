"""Debian's pyverbs, with the system's Python: devices, and two queue pairs that send, write and read. test_stock.py runs it."""

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

ACCESS = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ

assert [device.name for device in get_device_list()] == [b"softverbs0", b"softverbs1"]
context = Context(name="softverbs1")
assert context.query_device().max_qp_rd_atom == 16
assert context.query_port(1).state == e.IBV_PORT_ACTIVE
gid = context.query_gid(1, 0)
assert str(gid) in str(context.query_gid_ex(1, 0)) and len(context.query_gid_table(4)) == 1
assert context.query_device_ex().orig_attr.max_sge == 16

pd = PD(context)
mr = MR(pd, 8192, ACCESS)
channel = CompChannel(context)
cq = CQ(context, 16, None, channel, 0)


def queue_pair() -> QP:
    init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(4, 4, 2, 2, 64))
    attr = QPAttr(port_num=1)
    attr.qp_access_flags = ACCESS
    return QP(pd, init, attr)


one, two = queue_pair(), queue_pair()
for mine, other in ((one, two), (two, one)):
    attr = QPAttr(port_num=1)
    attr.dest_qp_num = other.qp_num
    attr.path_mtu = e.IBV_MTU_4096
    attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
    attr.min_rnr_timer = 1
    attr.timeout = 14
    attr.retry_cnt = attr.rnr_retry = 7
    attr.ah_attr = AHAttr(gr=GlobalRoute(dgid=gid, sgid_index=0), is_global=1, port_num=1)
    mine.to_rts(attr)
assert one.query(e.IBV_QP_STATE)[0].qp_state == e.IBV_QPS_RTS


def completions(count: int) -> list[tuple[int, int, int]]:
    got = []
    while len(got) < count:
        got += cq.poll(count)[1]
    return sorted((wc.wr_id, wc.status, wc.opcode) for wc in got)


mr.write("hello", 5)
cq.req_notify()
two.post_recv(RecvWR(7, 1, [SGE(mr.buf + 100, 10, mr.lkey)]))
one.post_send(SendWR(9, num_sge=1, sg=[SGE(mr.buf, 5, mr.lkey)], opcode=e.IBV_WR_SEND, send_flags=e.IBV_SEND_SIGNALED))
channel.get_cq_event(cq)
assert completions(2) == [(7, e.IBV_WC_SUCCESS, e.IBV_WC_RECV), (9, e.IBV_WC_SUCCESS, e.IBV_WC_SEND)]
assert mr.read(5, 100) == b"hello"

write = SendWR(10, num_sge=1, sg=[SGE(mr.buf, 5, mr.lkey)], opcode=e.IBV_WR_RDMA_WRITE, send_flags=e.IBV_SEND_SIGNALED)
write.set_wr_rdma(mr.rkey, mr.buf + 200)
one.post_send(write)
read = SendWR(11, num_sge=1, sg=[SGE(mr.buf + 300, 5, mr.lkey)], opcode=e.IBV_WR_RDMA_READ, send_flags=e.IBV_SEND_SIGNALED)
read.set_wr_rdma(mr.rkey, mr.buf + 200)
one.post_send(read)
assert completions(2) == [(10, e.IBV_WC_SUCCESS, e.IBV_WC_RDMA_WRITE), (11, e.IBV_WC_SUCCESS, e.IBV_WC_RDMA_READ)]
assert mr.read(5, 300) == b"hello"

write.set_wr_rdma(mr.rkey + 1, mr.buf + 200)
one.post_send(write)
assert [status for _, status, _ in completions(1)] == [e.IBV_WC_REM_ACCESS_ERR]

try:
    QP(pd, QPInitAttr(qp_type=e.IBV_QPT_UD, scq=cq, rcq=cq, cap=QPCap(4, 4, 2, 2, 64)))
except PyverbsRDMAError:
    pass
else:
    raise AssertionError("datagrams are not there")

cq.ack_events(1)
for thing in (one, two, cq, channel, mr, pd, context):
    thing.close()
print("all as expected")

# What the guest does for tests/vm/rdma.py: two RDMA devices of the kernel's (Soft-RoCE), each on one end of a veth pair, and the parts that are asked for.
# Each part has its deadline, a line on how it ended, and how many packets the devices sent during it: none is a failure, too.
set -u

setup() {
    modprobe crc32_generic && modprobe rdma_rxe || return 1 # rdma_rxe asks for crc32 and does not load it
    for i in 0 1; do
        ip link add "roce$i" type veth peer name "peer$i" && ip address add "10.77.$i.1/24" dev "roce$i" || return 1
        ip link set "roce$i" up && ip link set "peer$i" up && rdma link add "rxe$i" type rxe netdev "roce$i" || return 1
    done
    for i in 0 1; do
        for try in $(seq 50); do grep -q ACTIVE "/sys/class/infiniband/rxe$i/ports/1/state" && break; sleep 0.2; done
        grep -q ACTIVE "/sys/class/infiniband/rxe$i/ports/1/state" || return 1
    done
    [ -c /dev/infiniband/uverbs0 ] && rdma link
}

packets() {
    local sum=0 sent
    for sent in $(cat /sys/class/infiniband/rxe*/ports/1/hw_counters/sent_pkts); do sum=$((sum + sent)); done
    echo "$sum"
}
failed=0 parts=0

# A part fails where it sends fewer packets than LEAST, 1 unless given.
part() { # NAME SECONDS COMMAND...
    local name=$1 seconds=$2 before after status start=$SECONDS
    shift 2
    echo "--- $name"
    before=$(packets)
    timeout -k 5 "$seconds" "$@"
    status=$?
    after=$(packets)
    [ "$status" = 0 ] && [ "$((after - before))" -lt "${LEAST:-1}" ] && status="no-packets"
    [ "$status" = 124 ] || [ "$status" = 137 ] && status="over-time"
    [ "$status" = 0 ] || failed=$((failed + 1))
    parts=$((parts + 1))
    echo "part $name: status $status, $((SECONDS - start)) s, $((after - before)) packets"
}

finish() {
    echo "$parts parts, $failed failed; since the start:"
    grep -H . /sys/class/infiniband/rxe*/ports/1/hw_counters/* | grep -v ':0$' | sed 's,/sys/class/infiniband/,,; s,ports/1/hw_counters/,,'
    [ "$parts" -gt 0 ] && [ "$failed" = 0 ]
    exit
}

# ibv_rc_pingpong of rdma-core, the two ends over the first device, by its GID of IPv4: that the set-up works, without anything of gpuvirt's.
pingpong() {
    local index
    for index in $(seq 0 15); do grep -q "ffff:0a4d:0001" "/sys/class/infiniband/rxe0/ports/1/gids/$index" && break; done
    ibv_rc_pingpong -d rxe0 -g "$index" -n 200 >/dev/null & local server=$!
    for try in $(seq 100); do grep -q ':4853 ' /proc/net/tcp /proc/net/tcp6 && break; sleep 0.1; done # port 18515
    ibv_rc_pingpong -d rxe0 -g "$index" -n 200 127.0.0.1 && wait "$server"
}

# A server and a program of $program, over verbs: the link that `--stats` names, and the devices' packets, show that it went that way.
run_program() {
    local ready=/tmp/ready stats=/tmp/stats.json server status
    rm -f "$ready" "$stats"
    ulimit -l 65536 # KiB, as docs/RDMA.md asks for: workers in their box are not exempt
    # A boxed worker may not use Soft-RoCE: its library asks the kernel by write(2) for each send, which the kernel refuses to a process that has given up
    # rights since it opened the device. Devices whose libraries send without the kernel do not have that.
    "$gpuvirt" serve --box off --backend soft --listen 127.0.0.1:7070 --link verbs,tcp --ready-file "$ready" >/tmp/server.log 2>&1 & server=$!
    for try in $(seq 600); do [ -s "$ready" ] && break; kill -0 "$server" 2>/dev/null || break; sleep 0.1; done
    "$gpuvirt" run --pool tcp://127.0.0.1:7070 --link verbs --quiet --stats="$stats" -- bash -c "$program"
    status=$?
    kill "$server"
    wait "$server"
    [ "$status" = 0 ] || tail -20 /tmp/server.log
    cat "$stats"
    grep -q '"transport": "verbs"' "$stats" || { echo "not over verbs"; return 1; }
    return "$status"
}
export -f pingpong run_program

setup || { echo "Soft-RoCE cannot be set up in this kernel"; exit 77; }

#!/usr/bin/env bash
# cluster.sh itself: hosts come up, are cut, killed and started again, their bytes are counted, and nothing is left of them.
#   tests/cluster/cluster_test.sh        (as root; needs iproute2 and openmpi-bin)
set -euo pipefail
cluster=$(realpath "$(dirname "$0")/cluster.sh")
mark=4321.$$  # of this test's processes, wherever they are

fail() { echo "cluster_test: $*" >&2; exit 1; }
processes_left() { pgrep -f "^sleep $mark" >/dev/null; }
nothing_left() {
    for _ in $(seq 50); do processes_left || break; sleep 0.1; done
    ! processes_left || fail "processes are left $1"
    [ "$(ip -brief link)" = "$links" ] && [ "$(cat /etc/hosts)" = "$names" ] && [ ! -e /run/cluster ] || fail "something is left $1"
}
links=$(ip -brief link)
names=$(cat /etc/hosts)

inside() {
    [ "$(mpirun -n 4 --host n0:2,n1:2 hostname | sort | tr '\n' ' ')" = "n0 n0 n1 n1 " ] || fail "mpirun does not reach the hosts"
    "$cluster" on n0 sleep $mark &
    read -r before _ < <("$cluster" sent n0)
    "$cluster" on n1 "python3 -c \"
import socket
c, _ = socket.create_server(('', 9000)).accept()
while c.recv(65536): pass\"" &
    sleep 0.5
    "$cluster" on n0 "python3 -c \"
import socket
socket.create_connection(('n1', 9000)).sendall(bytes(1000000))\""
    wait $!
    read -r after _ < <("$cluster" sent n0)
    ((after - before > 1000000 && after - before < 1100000)) || fail "n0 sent $((after - before)) bytes of 1000000"

    reaches() { timeout 1 bash -c "exec 3<>/dev/tcp/$1/9001" 2>/dev/null; }
    "$cluster" on n1 "python3 -c \"
import socket
s = socket.create_server(('', 9001))
while True: s.accept()\"" 2>/dev/null &
    sleep 0.5
    reaches n1 || fail "n1 is not reached"
    "$cluster" cut n1
    ! reaches n1 || fail "n1 is reached without a cable"
    "$cluster" join n1
    reaches n1 || fail "n1 is not reached again"
    "$cluster" kill n1
    ! reaches n1 || fail "n1 is reached though killed"
    ! "$cluster" on n1 true 2>/dev/null || fail "n1 is there though killed"
    "$cluster" start n1
    [ "$("$cluster" on n1 hostname)" = n1 ] || fail "n1 is not there again"
}
if [ "${1:-}" = inside ]; then inside; exit 0; fi

"$cluster" 2 1gbit "$(realpath "$0")" inside
nothing_left "after a command"
code=0
"$cluster" 2 none sh -c 'exit 7' || code=$?
[ $code -eq 7 ] || fail "exit code $code instead of 7"
for signal in TERM KILL; do
    "$cluster" 2 none "$cluster" on n1 sleep $mark &
    for _ in $(seq 100); do processes_left && break; sleep 0.1; done
    kill -$signal $!
    wait $! 2>/dev/null || true
    nothing_left "after $signal"
done
echo "cluster: passed"

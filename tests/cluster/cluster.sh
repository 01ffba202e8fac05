#!/usr/bin/env bash
# Hosts of a cluster on one machine, for one command: each has its own network, processes, shared memory and name, and sends at a
# limited rate. All of it lives in namespaces of this script and ends with it, however it ends. As root; needs iproute2, and openmpi-bin
# for mpirun between the hosts.
#
#   cluster.sh HOSTS RATE COMMAND...      runs COMMAND on a head beside hosts n0, n1, ...; RATE as tc writes it (200mbit), or none
#
# COMMAND, and what it starts on the head, may call
#   cluster.sh on HOST COMMAND...         runs COMMAND on a host; mpirun starts its processes so
#   cluster.sh sent HOST                  bytes and packets that the host has sent, as they are on the wire: with all headers
#   cluster.sh rate HOST RATE             another rate
#   cluster.sh cut HOST | join HOST       pulls its cable | puts it back
#   cluster.sh kill HOST | start HOST     its power goes: no process says goodbye | a fresh host of that name
set -euo pipefail
self=$(realpath "$0")
state=/run/cluster  # on a file system of the cluster
network=10.77.0

address() { echo "$network.$((${1#n} + 1))"; }
die() { echo "cluster.sh: $*" >&2; exit 2; }

# The first process of a host, by its number on the head.
init_of() {
    [ -e "$state/$1" ] || die "there is no host $1"
    cat "$state/$1"
}
# Whether that host, by its first process, is there and has its cable.
hears() {
    [ "$(cat "$state/$1" 2>/dev/null)" = "$2" ] && [[ $(ip -brief link show "to_$1" 2>/dev/null) == *[\<,]UP[,\>]* ]]
}
on_network() {
    local init
    init=$(init_of "$1")
    nsenter --target "$init" --net "${@:2}"
}

limit() {
    local queue=(tbf rate "$2" burst 128kb latency 50ms)
    [ "$2" = none ] && queue=(pfifo limit 1000)
    on_network "$1" tc qdisc replace dev eth0 root "${queue[@]}"
}

# The host's first process; says by a file that all is in place.
be_host() {
    hostname "$1"
    mount -t tmpfs tmpfs /dev/shm
    ip link set lo up
    touch "$state/$1.up"
    while :; do
        sleep 9999 &
        wait $! || true
    done
}

start() {
    local host=$1 cable=to_$1 waiter
    ip link delete "$cable" 2>/dev/null || true  # of a host that was killed
    [ ! -e "$state/$host" ] || die "host $host is there"
    unshare --mount --net --uts --ipc --pid --fork --kill-child --mount-proc "$self" host "$host" </dev/null >/dev/null 2>&1 &
    waiter=$!
    until [ -e "$state/$host.up" ]; do
        kill -0 $waiter 2>/dev/null || die "host $host does not start"
        sleep 0.01
    done
    rm "$state/$host.up"
    tr -d ' ' <"/proc/$waiter/task/$waiter/children" >"$state/$host"
    # The same card as before, where it was killed: others remember its address.
    ip link add "$cable" type veth peer name eth0 address "02:00:00:00:00:$(printf %02x $((${host#n} + 1)))" netns "$(init_of "$host")"
    ip link set "$cable" master switch up
    on_network "$host" ip address add "$(address "$host")/24" dev eth0
    on_network "$host" ip link set eth0 up
    limit "$host" "$(cat "$state/rate")"
}

be_head() {
    local hosts=$1 rate=$2 i
    shift 2
    mount --make-rprivate /
    mount -t tmpfs tmpfs /run
    mkdir -p $state/tmp
    echo "$rate" >$state/rate
    { echo 127.0.0.1 localhost; echo $network.100 head; for ((i = 0; i < hosts; ++i)); do echo "$(address n$i)" n$i; done; } >$state/hosts
    mount --bind $state/hosts /etc/hosts
    hostname head
    ip link set lo up
    ip link add switch type bridge
    ip address add $network.100/24 dev switch
    ip link set switch up
    for ((i = 0; i < hosts; ++i)); do start n$i; done

    export TMPDIR=$state/tmp
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_MCA_plm_rsh_agent="$self on" OMPI_MCA_plm_rsh_no_tree_spawn=1
    export OMPI_MCA_pml=ob1 OMPI_MCA_btl=tcp,vader,self OMPI_MCA_btl_tcp_if_include=$network.0/24 OMPI_MCA_oob_tcp_if_include=$network.0/24
    # All hosts have the same cores: who waits gives them up, and nobody is bound, or the first ranks of all hosts share the first one.
    export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none
    # One session: where the kernel groups processes by session (kernel.sched_autogroup_enabled), a group that waits for a core among
    # others may get none for seconds; see docs/cluster.md.
    export OMPI_MCA_orte_leave_session_attached=1
    # A lost host is noticed after some seconds, not minutes, and its job ends at once.
    export OMPI_MCA_oob_tcp_keepalive_time=2 OMPI_MCA_oob_tcp_keepalive_intvl=1 OMPI_MCA_oob_tcp_keepalive_probes=3
    export OMPI_MCA_odls_base_sigkill_timeout=0
    "$@" &
    wait $!
}

# Ends with everything below it, also when killed: the namespaces' first process then dies, and with it all others.
be_outside() {
    setpriv --pdeathsig KILL unshare --mount --net --uts --ipc --pid --fork --kill-child --mount-proc "$self" head "$@" <&0 &
    local inside=$!
    trap 'kill -KILL $inside' INT TERM HUP
    wait $inside
}

[ $# -ge 2 ] || die "usage: $(sed -n 's/^#   //p' "$self" | head -n 1)"
case $1 in
    on)
        host=$2 init=$(cat "$state/$2" 2>/dev/null) || init=none
        shift 2
        # As ssh: a host that is gone is asked in vain for some seconds, and that its command has ended is not heard from it.
        hears "$host" "$init" || { sleep 3; die "$host does not answer"; }
        nsenter --target "$init" --mount --net --uts --ipc --pid sh -c "cd '$PWD' && $*" <&0 &
        child=$! code=0
        trap 'kill $child 2>/dev/null' TERM INT HUP
        wait $child || code=$?
        for ((i = 0; i < 300; ++i)); do
            ! hears "$host" "$init" || exit $code
            sleep 0.1
        done
        exit 255 ;;
    sent) on_network "$2" tc -s qdisc show dev eth0 | sed -n 's/^ Sent \([0-9]*\) bytes \([0-9]*\) pkt.*/\1 \2/p' | head -n 1 ;;
    rate) limit "$2" "$3" ;;
    cut) ip link set "to_$2" down ;;
    join) ip link set "to_$2" up ;;
    kill)
        init=$(init_of "$2")
        ip link set "to_$2" down  # or its processes would still say goodbye
        kill -KILL "$init"
        rm "$state/$2" ;;
    start) start "$2" ;;
    host) be_host "$2" ;;
    head) shift; be_head "$@" ;;
    *)
        [[ $1 =~ ^[1-9][0-9]?$ && $# -ge 3 ]] || die "usage: $(sed -n 's/^#   //p' "$self" | head -n 1)"
        [ "$(id -u)" -eq 0 ] || die "namespaces need root"
        be_outside "$@" ;;
esac

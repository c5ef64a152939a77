# shellcheck shell=bash
# Hosts made of network namespaces, on the machine itself or inside the guest. Sourced, not run.
#
#   hosts_up N [R]      makes hosts 1..N on one switch; the first R get a siw adapter (guest only). Cleans up at exit, or the caller does in its own trap.
#   host_exec I CMD…    runs CMD on host I
#   partition I [how]   cuts host I off. `silent` (default): the switch drops all its frames, the link stays up.
#                       `link`: the cable is pulled, host I loses its carrier. Neither sends a FIN or RST.
#   heal I              undoes either
#   hold I RATE         holds host I's link to RATE, both ways
#   rail I RATE         gives host I an interface e1 on a second switch, held to RATE, and a siw adapter on it where it has
#                       one on e0; `silent`, `link` and `heal` do to that what partition and heal do to the first, `gone`
#                       removes it
#   hosts_down          removes everything that hosts_up made
#
# Host I has the addresses 10.9.0.I/24 and fd00:9::I/64 on its interface e0, and its own host name (hI). If other hosts
# have adapters but this one does not, it shows no sign of RDMA either. The switch is a bridge in its own namespace, so
# that the machine's own network is left alone and several testbeds can run side by side.
#
# Everything known about the hosts is in files under $RD_HOSTS_DIR, so that another process (a test) can use them
# through `tests/testbed/host`.

# The process that has made hosts, which alone removes them.
hosts_owner=

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# File by which a test or a second shell finds the hosts.
hosts_dir() {
    [ -n "${RD_HOSTS_DIR:-}" ] || die "no hosts: RD_HOSTS_DIR is not set (hosts_up sets it)"
    printf '%s\n' "$RD_HOSTS_DIR"
}

host_netns() { printf '%s-h%s\n' "$(cat "$(hosts_dir)/prefix")" "$1"; }
switch_netns() { printf '%s-sw\n' "$(cat "$(hosts_dir)/prefix")"; }

hosts_up() {
    local count=$1 adapters=${2:-0} mtu=${RD_HOSTS_MTU:-9000} prefix=rd$$ i ns sw hide
    [ "$(id -u)" = 0 ] || die "hosts need root (network namespaces)"
    # Hosts that are there already belong to the testbed in which this one runs.
    if [ -z "${RD_HOSTS_DIR:-}" ] || [ -e "$RD_HOSTS_DIR/prefix" ]; then
        RD_HOSTS_DIR=$(mktemp -d "${TMPDIR:-/tmp}/rd-hosts.XXXXXX")
    fi
    export RD_HOSTS_DIR
    mkdir -p "$RD_HOSTS_DIR"
    # Unique on this machine, because namespaces have global names and another testbed may be running. Process ids recur,
    # and a testbed that was killed has left its namespaces.
    while [ -e "/var/run/netns/$prefix-sw" ]; do prefix+=x; done
    printf '%s\n' "$prefix" >"$RD_HOSTS_DIR/prefix"
    printf '%s\n' "$count" >"$RD_HOSTS_DIR/count"
    hosts_owner=$BASHPID
    # A caller that cleans up more than the hosts has its own.
    [ -n "$(trap -p EXIT)" ] || trap hosts_down EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM

    sw=$(switch_netns)
    ip netns add "$sw"
    ip -n "$sw" link set lo up
    ip -n "$sw" link add sw0 type bridge stp_state 0
    ip -n "$sw" link set sw0 mtu "$mtu" up
    for i in $(seq "$count"); do
        ns=$(host_netns "$i")
        ip netns add "$ns"
        # Distinct interface indexes: with equal indexes a second wildcard listen on siw fails with EADDRINUSE.
        ip -n "$sw" link add "p$i" index $((200 + i)) type veth peer name e0 index $((100 + i)) netns "$ns"
        ip -n "$sw" link set "p$i" mtu "$mtu" master sw0 up
        ip -n "$ns" link set lo up
        ip -n "$ns" link set e0 mtu "$mtu" up
        ip -n "$ns" addr add "10.9.0.$i/24" dev e0
        # nodad: otherwise an address is tentative, and unusable, for its first second.
        ip -n "$ns" addr add "fd00:9::$i/64" dev e0 nodad
        hide=true
        if [ "$i" -le "$adapters" ]; then
            ip netns exec "$ns" rdma link add "siw$i" type siw netdev e0
        elif [ "$adapters" -gt 0 ]; then
            # RDMA devices are visible in every namespace. A host is made to have none by keeping it from opening them.
            hide='mount -t tmpfs none /dev/infiniband && mount -t tmpfs none /sys/class/infiniband_verbs \
                && mount -t tmpfs none /sys/class/infiniband'
        fi
        # A process that holds the host's mount and host-name namespaces for as long as the host exists.
        rm -f "$RD_HOSTS_DIR/up.$i"
        setsid ip netns exec "$ns" unshare --uts --mount sh -c \
            "hostname h$i && $hide && : >'$RD_HOSTS_DIR/up.$i' && exec sleep 100000" \
            </dev/null >/dev/null 2>"$RD_HOSTS_DIR/err.$i" &
        printf '%s\n' $! >"$RD_HOSTS_DIR/pid.$i"
        disown $! # otherwise the shell reports its end as if something had gone wrong
    done
    for i in $(seq "$count"); do
        local tries=0
        until [ -e "$RD_HOSTS_DIR/up.$i" ]; do
            tries=$((tries + 1))
            [ "$tries" -le 200 ] || die "host $i did not come up: $(cat "$RD_HOSTS_DIR/err.$i")"
            sleep 0.05
        done
    done
    HOSTS=$(seq -s ' ' -f 'h%g' "$count")
    export HOSTS
}

hosts_down() {
    local dir=${RD_HOSTS_DIR:-} i pid
    trap - EXIT
    [ "$hosts_owner" = "$BASHPID" ] && [ -e "$dir/prefix" ] || return 0
    for i in $(seq "$(cat "$dir/count")"); do
        # Processes that a failed test left on the host would keep the namespace and its addresses alive.
        for pid in $(ip netns pids "$(host_netns "$i")" 2>/dev/null); do kill -KILL "$pid" 2>/dev/null || true; done
        # The namespace itself is removed asynchronously. The interfaces disappear at once when one end is deleted.
        ip -n "$(switch_netns)" link del "p$i" 2>/dev/null || true
        ip netns del "$(host_netns "$i")" 2>/dev/null || true
    done
    ip netns del "$(switch_netns)" 2>/dev/null || true
    rm -rf "$dir"
}

# Prints the holder's pid, the process that `unshare` became.
host_pid() {
    local file
    file=$(hosts_dir)/pid.$1
    [ -e "$file" ] || die "no host $1"
    cat "$file"
}

host_exec() {
    local i=$1
    shift
    nsenter --target "$(host_pid "$i")" --net --uts --mount --wdns="$PWD" -- "$@"
}

partition() {
    case ${2:-silent} in
    silent) ip netns exec "$(switch_netns)" bridge link set dev "p$1" state disabled ;;
    link) ip -n "$(switch_netns)" link set "p$1" down ;;
    *) die "partition: silent or link, not $2" ;;
    esac
}

heal() {
    local port=${2:-p}$1
    ip -n "$(switch_netns)" link set "$port" up
    # A port that was down starts again by itself; a port that was disabled does not. The kernel refuses the state until
    # the carrier is back, so the command is repeated.
    local tries=0
    until ip netns exec "$(switch_netns)" bridge link set dev "$port" state forwarding 2>/dev/null; do
        tries=$((tries + 1))
        [ "$tries" -le 100 ] || die "host $1 does not come back"
        sleep 0.02
    done
}

hold() {
    local shaper=(root tbf rate "$2" burst 256kb latency 20ms)
    tc -n "$(switch_netns)" qdisc replace dev "${3:-p}$1" "${shaper[@]}"
    tc -n "$(host_netns "$1")" qdisc replace dev "${4:-e0}" "${shaper[@]}"
}

rail() {
    local sw ns mtu=${RD_HOSTS_MTU:-9000}
    sw=$(switch_netns) ns=$(host_netns "$1")
    case $2 in
    silent) ip netns exec "$sw" bridge link set dev "q$1" state disabled ;;
    link) ip -n "$sw" link set "q$1" down ;;
    heal) heal "$1" q ;;
    gone) ip -n "$sw" link del "q$1" ;;
    *)
        if ! ip -n "$sw" link show "q$1" >/dev/null 2>&1; then
            ip -n "$sw" link show sw1 >/dev/null 2>&1 || ip -n "$sw" link add sw1 type bridge stp_state 0
            ip -n "$sw" link set sw1 mtu "$mtu" up
            # Distinct interface indexes, as for e0.
            ip -n "$sw" link add "q$1" index $((400 + $1)) type veth peer name e1 index $((300 + $1)) netns "$ns"
            ip -n "$sw" link set "q$1" mtu "$mtu" master sw1 up
            ip -n "$ns" addr add "10.7.0.$1/24" dev e1
            ip -n "$ns" link set e1 mtu "$mtu" up
            if [ -e /sys/class/infiniband/siw"$1" ]; then
                ip netns exec "$ns" rdma link add "siw$1-1" type siw netdev e1
            fi
        fi
        hold "$1" "$2" q e1
        ;;
    esac
}

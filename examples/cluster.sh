#!/usr/bin/env bash
# Three nodes and their etcd on this machine: a topic over all of them, a thousand records, and a node that is killed and comes back.
#
#   examples/cluster.sh [PORT]
#
# The nodes listen on PORT (19192), PORT+1 and PORT+2. Needs brokerd in the PATH (`make setup`, then `. .venv/bin/activate`). Without
# etcd (Debian: etcd-server) the store in memory of brokerd.testing takes its place. All that is started here ends with the script.
set -euo pipefail

port=${1:-19192}
etcd_port=$((port + 10)) peer_port=$((port + 11))
directory=$(mktemp -d)
declare -A pids
export BROKERD_BOOTSTRAP_SERVER=127.0.0.1:$port,127.0.0.1:$((port + 1)),127.0.0.1:$((port + 2))

end() {
    kill "${pids[@]}" 2>/dev/null || true
    wait
    rm -rf "$directory"
}
trap end EXIT
trap 'exit 1' INT TERM

# Starts a process, and returns with the first line that it prints.
start() {
    local name=$1 line
    shift
    rm -f "$directory/$name.ready"
    mkfifo "$directory/$name.ready"
    "$@" >"$directory/$name.ready" 2>>"$directory/$name.log" &
    pids[$name]=$!
    read -r line <"$directory/$name.ready" || { cat "$directory/$name.log" >&2; exit 1; }
    echo "$name: $line"
}

start_etcd() {
    if ! command -v etcd >/dev/null; then
        start etcd python3 -m brokerd.testing.memory_etcd "$etcd_port"
        return
    fi
    local url=http://127.0.0.1:$etcd_port peer=http://127.0.0.1:$peer_port
    etcd --data-dir "$directory/etcd" --logger zap --log-level error --listen-client-urls "$url" --advertise-client-urls "$url" \
        --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer" >"$directory/etcd.log" 2>&1 &
    pids[etcd]=$! # nodes ask until it answers
}

start_node() {
    start "node-$1" brokerd start --node-id "$1" --cluster example --coordination "etcd://127.0.0.1:$etcd_port" \
        --data-dir "$directory/data-$1" --port $((port + $1 - 1))
}

status() {
    echo "--- $1"
    brokerd cluster status orders
}

start_etcd
for node in 1 2 3; do start_node "$node"; done

brokerd topics create orders --partitions 6
seq 1000 | awk '{ print "customer-" $1 % 7 "\t" $1 }' | brokerd produce orders --key-separator '\t'
status "three nodes"

kill -KILL "${pids[node-2]}"
wait "${pids[node-2]}" 2>/dev/null || true
status "node 2 is killed; its lease ends after ten seconds"

start_node 2
read_back=$(brokerd consume orders --exit --quiet | sort -n | cksum)
[ "$read_back" = "$(seq 1000 | cksum)" ] || { echo "what was read is not what was written" >&2; exit 1; }
status "node 2 is back, and all of the 1000 records were read"

"""What scripts on the head of an emulated cluster (cluster.sh) use: rates, counters, jobs."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HOSTS, RANKS_A_HOST = 4, 2
NAMES = [f"n{i}" for i in range(HOSTS)]
# Of a packet: Ethernet 14, IP 20, TCP 32 with its time stamps. The limiter counts packets as they are sent, after segmentation.
HEADER_BYTES = 66

cluster_sh = str(pathlib.Path(__file__).with_name("cluster.sh"))
environment = {**os.environ, "OMP_NUM_THREADS": "1"}


def require_cluster():
    if not os.path.isdir("/run/cluster"):
        sys.exit(f"to be run on an emulated cluster: {cluster_sh} {HOSTS} 200mbit {' '.join(sys.argv)}")


def cluster(*arguments):
    return subprocess.run([cluster_sh, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def set_rate(mbit):
    """Of every host; None: no limit."""
    for host in NAMES:
        cluster("rate", host, f"{mbit:.0f}mbit" if mbit else "none")


def sent():
    """By host, (bytes on the wire, packets). Only differences at one rate mean something."""
    return [tuple(int(x) for x in cluster("sent", host).split()) for host in NAMES]


def mpirun(command, hosts=HOSTS, a_host=RANKS_A_HOST):
    """Runs it as so many processes on each of the first hosts; its standard output."""
    where = ",".join(f"{host}:{a_host}" for host in NAMES[:hosts])
    done = subprocess.run(["mpirun", "-n", str(hosts * a_host), "--bind-to", "none", "--host", where, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def launch(lockstep, folder, command, *options):
    """A supervisor over all hosts, started; its agent is written to the folder."""
    agent = os.path.join(folder, "agent.sh")
    with open(agent, "w") as f:
        f.write(f'#!/bin/sh\nexec {cluster_sh} on "$@"\n')
    os.chmod(agent, 0o755)
    hosts = ",".join(f"{h}:{RANKS_A_HOST}" for h in NAMES)
    return subprocess.Popen([lockstep, "launch", "--json", "--hosts", hosts, "--agent", agent, "--mpirun", "mpirun", *options, "--", *command],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def last_json(text):
    return json.loads(text.strip().splitlines()[-1])


def train(lockstep, recipe, *flags, **where):
    """What `train --json` says of a job over hosts, `where` as for mpirun."""
    with tempfile.TemporaryDirectory() as folder:
        out = mpirun([lockstep, "train", recipe, "--json", "--job.dump_folder", folder, *flags], **where)
    return json.loads(out)

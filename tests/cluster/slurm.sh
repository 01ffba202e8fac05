#!/usr/bin/env bash
# scripts/train.sbatch under a real Slurm of one node, started here for it: a job that gets USR1 writes a checkpoint, goes back into the
# queue and ends with the files of a job that was never stopped; so does one that srun steps are sent TERM.
#   tests/cluster/slurm.sh build/release/lockstep        (as root; needs slurm-wlm and munge; `make test-slurm` installs them)
set -euo pipefail
lockstep=$(realpath "$1")
repository=$(realpath "$(dirname "$0")/../..")
work=$(mktemp -d /tmp/lockstep-slurm.XXXX)
host=$(hostname -s)

cleanup() {
    local code=$?
    [ $code -eq 0 ] || tail -n 40 "$work"/log/*.log "$work"/*.out 2>/dev/null || true
    for daemon in slurmd slurmctld munged; do
        [ -f "$work/$daemon.pid" ] && kill "$(cat "$work/$daemon.pid")" 2>/dev/null
    done
    rm -rf "$work"
    exit $code
}
trap cleanup EXIT

mkdir -p "$work"/{state,spool,log,munge}
chown munge:munge "$work/munge" && chmod 755 "$work" "$work/munge"
runuser -u munge -- munged --socket "$work/munge/socket" --pid-file "$work/munge/pid" --log-file "$work/munge/log" --seed-file "$work/munge/seed"
ln -s "$work/munge/pid" "$work/munged.pid"
cat >"$work/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=16817
SlurmdPort=16818
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
AuthInfo=socket=$work/munge/socket,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/log/slurmctld.log
SlurmdLogFile=$work/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=2
MpiDefault=pmix
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=20
NodeName=$host NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
echo "CgroupPlugin=cgroup/v1" >"$work/cgroup.conf"
export SLURM_CONF=$work/slurm.conf
slurmctld -c
slurmd
for _ in $(seq 100); do sinfo -h -o %T 2>/dev/null | grep -q idle && break; sleep 0.1; done

cat >"$work/r.toml" <<'RECIPE'
[model]
dim = 32
n_layers = 2
n_heads = 4
n_kv_heads = 2
ffn_dim = 48
vocab_size = 61
[optimizer]
lr = 1e-2
[lr_scheduler]
warmup_steps = 0
[training]
mixed_precision_param = "float32"
dataset = "synthetic"
local_batch_size = 1
global_batch_size = 4
seq_len = 64
steps = 1000
[checkpoint]
enable = true
interval = 100000
last_save_model_only = false
[activation_checkpoint]
mode = "none"
[metrics]
log_freq = 100
RECIPE
cd "$work"
"$lockstep" train r.toml --ranks 2 --job.dump_folder whole 2>/dev/null

state_of() { squeue -h -o %T -j "$1" 2>/dev/null || true; }
# A job that is sent a signal once it has begun to step, with "$@" as the command that sends it (JOB in place of its number).
stopped_once() {
    local folder=$1 job
    shift
    job=$(LOCKSTEP=$lockstep sbatch --parsable --output "$folder.out" --ntasks-per-node 2 "$repository/scripts/train.sbatch" r.toml \
          --job.dump_folder "$folder")
    for _ in $(seq 300); do grep -q 'step    100 ' "$folder.out" 2>/dev/null && break; sleep 0.1; done
    "${@//JOB/$job}"
    for _ in $(seq 900); do [ -z "$(state_of "$job")" ] && break; sleep 0.1; done
    grep -c 'stopped by SIG' "$folder.out" | grep -qx 1 || { echo "$folder: not stopped once"; cat "$folder.out"; return 1; }
    grep -q "resumed from $folder/checkpoint/step-" "$folder.out" || { echo "$folder: not resumed"; cat "$folder.out"; return 1; }
    cmp "whole/checkpoint/step-00001000/model.safetensors" "$folder/checkpoint/step-00001000/model.safetensors"
    cmp "whole/checkpoint/step-00001000/optimizer.safetensors" "$folder/checkpoint/step-00001000/optimizer.safetensors"
    echo "$folder: $(grep 'stopped by SIG' "$folder.out" | sed 's/.*stopped/stopped/; s/:.*//'), requeued, ended with the undisturbed run's weights and moments"
}
stopped_once usr1 scancel --batch --signal USR1 JOB
stopped_once term scancel --signal TERM JOB
echo "slurm: passed"

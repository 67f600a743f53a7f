#!/bin/bash
# Brings up a real Slurm cluster (munged, mariadbd, slurmdbd, slurmctld, N x slurmd) on
# this one host, as root, without systemd.   Usage: up.sh ;  . $BASE/env.sh ; sinfo
# Debian 12: apt-get install -y --no-install-recommends \
#    slurmctld slurmd slurmdbd slurm-client munge mariadb-server-core mariadb-client-core
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
BASE=${SLURMBOX_DIR:-$HERE/run}         # everything lives here (short path: unix sockets <108 chars)
NODES=${SLURMBOX_NODES:-4}
CPUS=${SLURMBOX_CPUS:-4}                # declared, not physical (config_overrides)
MEM=${SLURMBOX_MEM:-8000}
GPUS=${SLURMBOX_GPUS:-2}
NS=${SLURMBOX_NS:-uts}                  # none | uts (own hostname per node); loopback only
PORT=${SLURMBOX_PORT:-17000}            # ctld=+1 dbd=+2 db=+3 slurmd n1..=+101..
ACCT=${SLURMBOX_ACCOUNTING:-slurmdbd}  # slurmdbd | none (then no MariaDB either)
HOST=$(hostname -s)
CTL=127.0.0.1
say() { printf '[up %6.2fs] %s\n' "$(echo "$(date +%s.%N) - $T0" | bc 2>/dev/null || awk -v a="$(date +%s.%N)" -v b="$T0" 'BEGIN{print a-b}')" "$*"; }
T0=$(date +%s.%N)
die() { echo "up.sh: $*" >&2; exit 1; }
wait_for() { # wait_for SECONDS what cmd...
  local end=$(( SECONDS + $1 )) what=$2; shift 2
  while [ $SECONDS -lt $end ]; do "$@" >/dev/null 2>&1 && return 0; sleep 0.05; done
  die "timed out waiting for $what (see $BASE/log)"; }
# start NAME cmd...: own session, own log, pid recorded
start() { local name=$1; shift
  setsid "$@" </dev/null >>"$BASE/log/$name.out" 2>&1 & echo $! >"$BASE/pids/$name.pid"; }

[ -d "$BASE/pids" ] && "$HERE/down.sh" >/dev/null 2>&1 || true
mkdir -p "$BASE"/{log,pids,munge,db,state,spool,dev}
chmod 755 "$BASE"; chmod 700 "$BASE/munge"

# ---- munge (runs as root; socket in a 755 dir)
if [ ! -s "$BASE/munge/key" ]; then (umask 077; head -c 1024 /dev/urandom >"$BASE/munge/key"); fi
mkdir -p "$BASE/msock"; chmod 755 "$BASE/msock"
start munged munged --foreground --force --num-threads=4 --key-file="$BASE/munge/key" \
  --socket="$BASE/msock/s" --pid-file="$BASE/munge/pid" --seed-file="$BASE/munge/seed" \
  --log-file="$BASE/log/munged.log"
wait_for 30 munge  munge -n -S "$BASE/msock/s"

# ---- mariadb (datadir initialised once, then kept)
if [ "$ACCT" != none ]; then
FRESH=0
if [ ! -d "$BASE/db/mysql" ]; then FRESH=1
  mariadb-install-db --no-defaults --user=root --datadir="$BASE/db" --skip-test-db \
    --auth-root-authentication-method=normal >"$BASE/log/dbinit.out" 2>&1 || die "mariadb-install-db failed: $(tail -n 5 "$BASE/log/dbinit.out")"
fi
start mariadbd mariadbd --no-defaults --user=root --datadir="$BASE/db" --socket="$BASE/db.sock" \
  --pid-file="$BASE/db.pid" --bind-address=127.0.0.1 --port=$((PORT+3)) \
  --innodb-flush-log-at-trx-commit=0 --innodb-doublewrite=0 --innodb-buffer-pool-size=64M \
  --innodb-lock-wait-timeout=900 --skip-name-resolve
wait_for 60 mariadb mariadb --no-defaults -uroot --socket="$BASE/db.sock" -e "select 1"
[ $FRESH = 1 ] && mariadb --no-defaults -uroot --socket="$BASE/db.sock" -e \
  "create database if not exists slurm_acct; create user slurm@'127.0.0.1' identified by 'slurm'; grant all on slurm_acct.* to slurm@'127.0.0.1';"
fi
say "munge + mariadb up"

# ---- configs
cat >"$BASE/slurmdbd.conf" <<C
AuthType=auth/munge
AuthInfo=socket=$BASE/msock/s
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=$((PORT+2))
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$((PORT+3))
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct
LogFile=$BASE/log/slurmdbd.log
PidFile=$BASE/slurmdbd.pid
C
chmod 600 "$BASE/slurmdbd.conf"

cat >"$BASE/slurm.conf" <<C
ClusterName=box
SlurmctldHost=$HOST($CTL)
SlurmctldPort=$((PORT+1))
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$BASE/msock/s,cred_expire=${SLURMBOX_CRED:-5}
CryptoType=crypto/munge
StateSaveLocation=$BASE/state
SlurmdSpoolDir=$BASE/spool/%n
SlurmctldPidFile=$BASE/slurmctld.pid
SlurmdPidFile=$BASE/slurmd.%n.pid
SlurmctldLogFile=$BASE/log/slurmctld.log
SlurmdLogFile=$BASE/log/slurmd.%n.log
SlurmctldDebug=${SLURMBOX_DEBUG:-info}
SlurmdDebug=${SLURMBOX_DEBUG:-info}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
PropagateResourceLimits=NONE
ReturnToService=2
SlurmdParameters=config_overrides
SlurmctldParameters=${SLURMBOX_PREEMPT_PARAMS:-preempt_send_user_signal}
# --- timings, far below the defaults so that tests are fast
SlurmctldTimeout=10
SlurmdTimeout=${SLURMBOX_SLURMD_TIMEOUT:-10}
InactiveLimit=0
KillWait=${SLURMBOX_KILLWAIT:-5}
MinJobAge=${SLURMBOX_MIN_JOB_AGE:-300}
Waittime=0
MessageTimeout=10
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=200000,sched_interval=2,bf_interval=2,bf_resolution=1,default_queue_depth=1000,bf_max_job_test=1000
# --- resources
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
DefMemPerCPU=100
MaxArraySize=${SLURMBOX_MAXARRAY:-10001}
MaxJobCount=50000
FirstJobId=${SLURMBOX_FIRST_JOBID:-1}
# --- preemption
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
# --- accounting
AccountingStorageType=accounting_storage/$ACCT
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=5
# --- nodes: several slurmd on one host need one Port each
C
for ((k=1; k<=NODES; k++)); do
  nh=$HOST na=127.0.0.1
  [ "$NS" != none ] && nh=n$k
  echo "NodeName=n$k NodeHostname=$nh NodeAddr=$na Port=$((PORT+100+k)) CPUs=$CPUS RealMemory=$MEM Gres=gpu:$GPUS State=UNKNOWN" >>"$BASE/slurm.conf"
done
cat >>"$BASE/slurm.conf" <<C
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=low  Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1  PreemptMode=REQUEUE GraceTime=${SLURMBOX_GRACE:-10}
PartitionName=low0 Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1  PreemptMode=REQUEUE GraceTime=0
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=100 PreemptMode=OFF
C
[ "$ACCT" = none ] || cat >>"$BASE/slurm.conf" <<C
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$((PORT+2))
AccountingStoragePass=$BASE/msock/s
AccountingStorageTRES=gres/gpu
C
[ -n "${SLURMBOX_EXTRA:-}" ] && printf '%s\n' "$SLURMBOX_EXTRA" >>"$BASE/slurm.conf"
# fake GPUs: plain character devices (a copy of /dev/null)
: >"$BASE/gres.conf"
if [ "$GPUS" -gt 0 ]; then
  for ((g=0; g<GPUS; g++)); do [ -c "$BASE/dev/nvidia$g" ] || mknod -m 666 "$BASE/dev/nvidia$g" c 1 3; done
  echo "AutoDetect=off" >>"$BASE/gres.conf"
  echo "NodeName=n[1-$NODES] Name=gpu File=$BASE/dev/nvidia[0-$((GPUS-1))] Flags=nvidia_gpu_env" >>"$BASE/gres.conf"
fi
[ -n "${SLURMBOX_GRES_CONF:-}" ] && printf '%s\n' "$SLURMBOX_GRES_CONF" >"$BASE/gres.conf"
cat >"$BASE/env.sh" <<C
export SLURM_CONF=$BASE/slurm.conf
C
export SLURM_CONF=$BASE/slurm.conf

# ---- daemons
if [ "$ACCT" != none ]; then
start slurmdbd env SLURM_CONF="$BASE/slurm.conf" slurmdbd -D
wait_for 30 slurmdbd timeout 5 sacctmgr -n show cluster
say "slurmdbd up"
[ -n "$(sacctmgr -n show cluster)" ] || sacctmgr -i add cluster box >"$BASE/log/sacctmgr.out" 2>&1
fi
start slurmctld slurmctld -D -f "$BASE/slurm.conf"
wait_for 30 slurmctld timeout 5 scontrol ping
say "slurmctld up"
# names of the nodes: a private copy of /etc/hosts, bind-mounted in each node's mount namespace
{ grep -vE '[[:space:]]n[0-9]+$' /etc/hosts; for ((k=1; k<=NODES; k++)); do
    echo "127.0.0.1 n$k"; done; } >"$BASE/hosts"
# start_node.sh is generated so that tests can revive a node the same way
cat >"$BASE/start_node.sh" <<C
#!/bin/bash
# start_node.sh n3
N=\$1; export SLURM_CONF=$BASE/slurm.conf 
mkdir -p $BASE/spool/\$N; cd $BASE/spool/\$N
cmd=(slurmd -D -N \$N -f $BASE/slurm.conf)
case $NS in
 none) ;;
 uts) cmd=(unshare --uts --mount bash -c 'hostname "\$0"; mount --bind $BASE/hosts /etc/hosts; exec "\$@"' \$N "\${cmd[@]}");;
esac
setsid "\${cmd[@]}" </dev/null >>$BASE/log/slurmd.\$N.out 2>&1 &
echo \$! >$BASE/pids/slurmd.\$N.pid
C
chmod +x "$BASE/start_node.sh"
# start_daemon.sh slurmctld|slurmdbd: the same way again, after a test has killed it
cat >"$BASE/start_daemon.sh" <<C
#!/bin/bash
export SLURM_CONF=$BASE/slurm.conf
case \$1 in slurmctld) cmd=(slurmctld -D -f $BASE/slurm.conf);; slurmdbd) cmd=(slurmdbd -D);; *) exit 2;; esac
setsid "\${cmd[@]}" </dev/null >>$BASE/log/\$1.out 2>&1 &
echo \$! >$BASE/pids/\$1.pid
C
chmod +x "$BASE/start_daemon.sh"
for ((k=1; k<=NODES; k++)); do "$BASE/start_node.sh" n$k; done
idle() { [ "$(sinfo -h -p main -t idle -o %D)" = "$NODES" ]; }
wait_for 60 "all $NODES nodes idle" idle
say "$NODES nodes idle"

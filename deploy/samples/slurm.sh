#!/bin/bash
#SBATCH --job-name=psd
#SBATCH --nodes=6
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
# psd on the first $N_PSD machines of the allocation, one node each; psworker on the others. Everything that they share is below
# $WORK, on a file system that all machines see; tables stay there, so a next run goes on from them. sbatch slurm.sh
set -eu
N_PSD=${N_PSD:-2}
WORK=${WORK:-$PWD/psd}
DATA=${DATA:-$WORK/clicks}
N_WORKERS=$(((SLURM_JOB_NUM_NODES - N_PSD) * 2))

mkdir -p "$WORK"
[ -s "$WORK/token" ] || (umask 077 && od -An -N16 -tx1 /dev/urandom | tr -d ' \n' >"$WORK/token")
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
cluster=$(printf '%s:7070,' "${hosts[@]:0:N_PSD}")
cluster=${cluster%,}
export WORK DATA N_WORKERS cluster

# A task's own shell expands what stands in quotes: its number is the node's, or the rank.
# shellcheck disable=SC2016
srun --relative=0 --nodes="$N_PSD" --ntasks="$N_PSD" --ntasks-per-node=1 --kill-on-bad-exit=1 bash -c '
    exec psd --listen 0.0.0.0:7070 --http 127.0.0.1:7071 --cluster "$cluster" --node "$SLURM_PROCID" --shards 8 \
        --data-dir "$WORK/node-$SLURM_PROCID" --token-file "$WORK/token" --checkpoint-every 10m' &
psd=$!
# SIGTERM to srun reaches every psd, which takes its last checkpoint.
trap 'kill "$psd" 2>/dev/null || true; wait "$psd" || true' EXIT

# Workers wait for servers that are not there yet, for --connect-timeout.
# shellcheck disable=SC2016
srun --relative="$N_PSD" --nodes=$((SLURM_JOB_NUM_NODES - N_PSD)) --ntasks="$N_WORKERS" --ntasks-per-node=2 bash -c '
    exec psworker train --job clicks --workers "$N_WORKERS" --rank "$SLURM_PROCID" --servers "$cluster" \
        --token-file "$WORK/token" --connect-timeout 5m --format criteo --data "$DATA" --valid-fraction 0.05 \
        --mode ssp --staleness 4 --state-dir "$WORK/state" --threads 8'

#!/usr/bin/env bash
# Everything that a GPU is needed for, in under six minutes; the report goes to benchmarks/results/gpu_check.md.
# Without a GPU it says so and ends with 0. PYTHON names another interpreter than .venv's: one whose torch has CUDA.
set -u
cd "$(dirname "$0")/.." || exit 2
PYTHON=${PYTHON:-.venv/bin/python}
REPORT=benchmarks/results/gpu_check.md
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

if ! device=$("$PYTHON" benchmarks/gpu_present.py); then
    echo "no GPU was checked: $device"
    exit 0
fi
MPIRUN=$(dirname "$(command -v "$PYTHON")")/mpirun
[ -x "$MPIRUN" ] || MPIRUN=mpirun
ON_TWO="$MPIRUN -np 2 --oversubscribe --bind-to none"
KERNEL_TESTS=$(ls tests/kernels/test_{cuda,triton,agreement,alignment,cast_scale,sum_shards,drift_norms,outer_step,lerp}.py)
NCCL_TESTS=$(ls tests/comm/test_nccl*.py tests/training/test_*on_gpu.py)
failed=0

# step TITLE SECONDS COMMAND...: run it within its time; the last lines go to the report.
step() {
    local title=$1 seconds=$2 log outcome begun=$SECONDS
    shift 2
    log=$(mktemp)
    if timeout --kill-after=5 "$seconds" "$@" >"$log" 2>&1; then outcome=passed; else
        outcome="FAILED with $?"
        failed=1
    fi
    echo "$title: $outcome, $((SECONDS - begun)) s"
    { printf '## %s: %s, %d s\n\n    %s\n\n' "$title" "$outcome" $((SECONDS - begun)) "$*"
      echo '```'; tail -n 25 "$log"; printf '```\n\n'; } >>"$REPORT"
    rm -f "$log"
}

mkdir -p benchmarks/results
printf '# gpu_check\n\n%s\n\n' "$device" >"$REPORT"
# Together 355 s at the most.
step "kernels against their reference" 120 "$PYTHON" -m pytest -m "not soak" -p no:cacheprovider $KERNEL_TESTS
step "NCCL, streams, compression" 70 "$PYTHON" -m pytest -m "not soak" -p no:cacheprovider $NCCL_TESTS
step "trainings on one rank" 40 "$PYTHON" benchmarks/gpu_training.py
step "trainings on two ranks" 45 $ON_TWO "$PYTHON" benchmarks/gpu_training.py
step "bandwidth" 80 "$PYTHON" benchmarks/bench_kernels.py --repeats 5
echo "kept in $REPORT"
exit $failed

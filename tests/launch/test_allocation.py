"""What Slurm and the MPI operator say of hosts, as pure functions of their variables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from elche.errors import ConfigError
from elche.mpi_launch.allocation import (
    HOSTFILES,
    PAST_SLURM,
    Allocation,
    expand_nodes,
    expand_tasks,
    find_allocation,
    keeps_full_names,
    kubernetes_agent,
    past_slurm,
    refuse_many_launchers,
)
from elche.mpi_launch.hosts import Host

# What sbatch --nodes=3 --ntasks=5 sets, as far as it matters.
SLURM = {
    "SLURM_JOB_ID": "42",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_NODELIST": "n[1-3]",
    "SLURM_TASKS_PER_NODE": "2(x2),1",
    "SLURM_NTASKS": "5",
    "SLURM_PROCID": "0",
}
# What the MPI operator (v2beta1) sets in the launcher's pod.
KUBERNETES = {
    "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
    "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
    "K_MPI_JOB_ROLE": "launcher",
}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("login", ["login"]),
        ("a,b", ["a", "b"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[1,3,5-6]", ["n1", "n3", "n5", "n6"]),
        ("n[08-10,12],login", ["n08", "n09", "n10", "n12", "login"]),
        ("gpu[1-2]-ib", ["gpu1-ib", "gpu2-ib"]),
        ("r[1-2]n[3-4],x", ["r1n3", "r1n4", "r2n3", "r2n4", "x"]),
        ("n[099-101]", ["n099", "n100", "n101"]),
    ],
)
def test_slurms_short_form_is_expanded(text: str, names: list[str]) -> None:
    assert expand_nodes(text) == names


@pytest.mark.parametrize(
    "text", ["", ",", "n[", "n]", "n[]", "n[1", "n[3-1]", "n[a]", "n[1-]", "n[1-99999999]", "n[1-60000][1-2]"]
)
def test_what_is_no_short_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        expand_nodes(text)
    bound = "names such as n[1-3,7],m2, at most 65536, or give -H yourself"
    assert str(caught.value) == f"SLURM_JOB_NODELIST must be {bound}, got {text!r}"


@pytest.mark.parametrize(
    ("text", "tasks"), [("4", [4]), ("2(x3),1", [2, 2, 2, 1]), ("1,2(x2)", [1, 2, 2]), ("3(x1)", [3])]
)
def test_tasks_per_node_are_expanded(text: str, tasks: list[int]) -> None:
    assert expand_tasks(text) == tasks


@pytest.mark.parametrize("text", ["", "x", "2(x)", "2(3)", "-1", "1,,1", "1(x999999)"])
def test_what_are_no_tasks_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^SLURM_TASKS_PER_NODE must be "):
        expand_tasks(text)


def test_in_slurm_the_hosts_are_the_allocations() -> None:
    hosts = (Host("n1", 2), Host("n2", 2), Host("n3", 1))
    assert find_allocation(SLURM) == Allocation(source="Slurm job 42", hosts=hosts, num_ranks=5)
    bare = {"SLURM_JOB_ID": "7", "SLURM_NODELIST": "a,b"}
    assert find_allocation(bare) == Allocation(source="Slurm job 7", hosts=(Host("a", 1), Host("b", 1)))


@pytest.mark.parametrize("shell", [{}, {"SLURM_JOB_ID": "42"}, {"SLURM_NODELIST": "n1"}, KUBERNETES])
def test_elsewhere_there_are_none(shell: dict[str, str]) -> None:
    assert find_allocation(shell) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"SLURM_NTASKS": "0"}, "SLURM_NTASKS must be an integer of at least 1, got '0'"),
        ({"SLURM_NTASKS": "many"}, "SLURM_NTASKS must be an integer of at least 1, got 'many'"),
        (
            {"SLURM_TASKS_PER_NODE": "2"},
            "SLURM_TASKS_PER_NODE must be one number for each of 3 nodes, got '2'",
        ),
        (
            {"SLURM_JOB_NODELIST": "a;b", "SLURM_TASKS_PER_NODE": "1"},
            "SLURM_JOB_NODELIST must be the name of a host, NAME or NAME:SLOTS, got 'a;b'",
        ),
    ],
)
def test_an_allocation_that_contradicts_itself_is_refused(change: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_allocation({**SLURM, **change})
    assert str(caught.value) == said


@pytest.mark.parametrize("name", HOSTFILES)
def test_a_host_file_that_a_variable_names_comes_before_slurm(name: str, tmp_path: Path) -> None:
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("job-worker-0.job.default.svc slots=2\njob-worker-1.job.default.svc:3\n")
    found = find_allocation({**SLURM, name: str(hostfile)})
    hosts = (Host("job-worker-0.job.default.svc", 2), Host("job-worker-1.job.default.svc", 3))
    assert found == Allocation(source=name, hosts=hosts)
    with pytest.raises(ConfigError, match=f"^{name} must be a file that can be read, got '/no/such'"):
        find_allocation({name: "/no/such"})


def test_the_mpi_operators_ssh_and_names_are_respected() -> None:
    assert kubernetes_agent({}) == "ssh"
    assert kubernetes_agent(KUBERNETES) == "ssh -o ConnectionAttempts=10"
    assert kubernetes_agent({"OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh"}) == "/etc/mpi/kubexec.sh"
    assert keeps_full_names(KUBERNETES)
    assert not keeps_full_names({})


@pytest.mark.parametrize(
    ("shell", "said"),
    [
        (
            {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"},
            "srun has started 4 of these",
        ),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "mpirun has started 2 of these"),
        ({"PMI_SIZE": "3"}, "mpirun has started 3 of these"),
    ],
)
def test_a_launcher_in_each_of_many_processes_is_refused(shell: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        refuse_many_launchers(shell)


@pytest.mark.parametrize(
    "shell", [{}, SLURM, {**SLURM, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}, {"PMI_SIZE": "1"}]
)
def test_one_launcher_is_welcome(shell: dict[str, str]) -> None:
    refuse_many_launchers(shell)


@pytest.mark.parametrize(
    ("names", "this_host", "looks_past"),
    [
        (("n1", "n3"), "login", False),
        (("localhost",), "n2", False),
        (("localhost",), "login", True),
        (("n1", "other"), "n1", True),
        ((), "login", False),
    ],
)
def test_mpirun_looks_past_slurm_for_hosts_that_are_not_its(
    names: tuple[str, ...], this_host: str, looks_past: bool
) -> None:
    hosts = [Host(name, 1) for name in names]
    assert past_slurm(hosts, SLURM, this_host) == (PAST_SLURM if looks_past else {})
    assert past_slurm(hosts, {}, this_host) == {}


def test_a_list_of_nodes_that_nobody_understands_holds_no_host() -> None:
    assert past_slurm([Host("n1", 1)], {**SLURM, "SLURM_JOB_NODELIST": "n["}, "n1") == PAST_SLURM


@pytest.mark.usefixtures("ulfm")
def test_the_real_mpirun_does_look_past_slurm(tmp_path: Path) -> None:
    script = tmp_path / "said.py"
    script.write_text("print('ran')")
    command = [sys.executable, "-m", "elche.mpi_launch", "-H", "localhost:2", str(script)]
    shell = {**os.environ, **SLURM, "SLURM_JOBID": "42", "SLURM_NNODES": "3"}
    ran = subprocess.run(command, env=shell, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout.split(), ran.stderr) == (0, ["ran", "ran"], "")

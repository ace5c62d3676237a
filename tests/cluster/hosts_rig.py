"""Hosts on one machine: each has a network, a name and shared memory of its own; all hang on one switch."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from waiting import until

TOOLS = ("ip", "nsenter", "unshare", "mount", "hostname")
SPACES = ("--net", "--uts", "--mount")
AGENT = """#!/bin/sh
# What ssh would do: AGENT [OPTION...] HOST COMMAND
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1; shift
[ -e "{folder}/cut-$host" ] && exit 255
exec nsenter --target "$(cat "{folder}/$host")" {spaces} sh -c "$*"
"""
ONE_WIRE = (
    "--prtemca plm_ssh_no_tree_spawn 1 --prtemca prte_if_include eth0 "
    "--mca btl_tcp_if_include eth0 --mca mpi_yield_when_idle 1"
)


def why_not() -> str | None:
    """Why there can be no such hosts; None: there can."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"hosts need {', '.join(missing)}"
    if os.geteuid() != 0:
        return "hosts are network namespaces, which only root may make"
    tried = subprocess.run(["unshare", *SPACES, "true"], capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"network namespaces are not allowed: {tried.stderr.strip()}"


class Hosts:
    """Machines named eh1, eh2, ..., until `close`; nothing of the real one's network is touched."""

    def __init__(self, folder: Path, num_hosts: int) -> None:
        self.names = [f"eh{number}" for number in range(1, num_hosts + 1)]
        self._folder = folder
        self._table = folder / "hosts"
        lines = [f"10.77.0.{number} eh{number}" for number in range(1, num_hosts + 1)]
        self._table.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        self._sleepers: dict[str, subprocess.Popen[bytes]] = {}
        self._switch = self._space("switch", ("--net",), "exec sleep infinity")
        self._in_switch("ip link add name switch0 type bridge && ip link set switch0 up")
        for number, name in enumerate(self.names, 1):
            self._add(number, name)
        self.agent = folder / "agent"
        self.agent.write_text(AGENT.format(folder=folder, spaces=" ".join(SPACES)))
        self.agent.chmod(0o755)

    def options(self, slots: int) -> list[str]:
        """What elche-run has to know."""
        hosts = ",".join(f"{name}:{slots}" for name in self.names)
        return ["--hosts", hosts, "--launch-agent", str(self.agent), "--mpirun-args", ONE_WIRE]

    @property
    def prefix(self) -> tuple[str, ...]:
        """Runs a command on the first host."""
        return ("nsenter", "--target", str(self._sleepers[self.names[0]].pid), *SPACES)

    def processes(self, name: str) -> list[int]:
        """What runs on a host, its sleeper left out."""
        sleeper = self._sleepers[name].pid
        space = _net(sleeper)
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if _net(int(path.name)) == space and int(path.name) != sleeper:
                    found.append(int(path.name))
            except OSError:
                continue
        return found

    def kill(self, name: str, kind: str) -> None:
        """End the processes of a kind there: "prted", MPI's daemon, or "python", all ranks and guards."""
        found = [pid for pid in self.processes(name) if name_of(pid).startswith(kind)]
        assert found
        for pid in found:
            os.kill(pid, signal.SIGKILL)

    def shut_down(self, name: str) -> None:
        """Let a host lose its power."""
        processes = self.processes(name)
        self._sleepers[name].kill()
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._sleepers[name].wait()

    def cut(self, name: str) -> None:
        """Pull a host's plug from the switch."""
        (self._folder / f"cut-{name}").touch()
        self._in_switch(f"ip link set port-{name} down")

    def memory(self, name: str) -> list[str]:
        """The names of the jobs of which a host holds a state."""
        return sorted(
            path.name for path in Path(f"/proc/{self._sleepers[name].pid}/root/dev/shm").glob("elche-*")
        )

    def close(self) -> None:
        """End every process on every host, and the hosts."""
        for name, sleeper in self._sleepers.items():
            if sleeper.poll() is None:
                self.shut_down(name)

    def _add(self, number: int, name: str) -> None:
        script = (
            f"hostname {name} && mount --bind {self._table} /etc/hosts && mount -t tmpfs tmpfs /dev/shm && "
            f"touch {self._folder}/up-{name} && exec sleep infinity"
        )
        sleeper = self._space(name, SPACES, script)
        until(lambda: (self._folder / f"up-{name}").exists(), 10.0)
        self._in_switch(
            f"ip link add port-{name} type veth peer name eth0 netns {sleeper.pid} && "
            f"ip link set port-{name} master switch0 up"
        )
        inside = ["nsenter", "--target", str(sleeper.pid), "--net", "sh", "-c"]
        up = f"ip addr add 10.77.0.{number}/24 dev eth0 && ip link set eth0 up && ip link set lo up"
        subprocess.run([*inside, up], check=True)

    def _space(self, name: str, spaces: tuple[str, ...], script: str) -> subprocess.Popen[bytes]:
        sleeper = subprocess.Popen(["unshare", *spaces, "sh", "-c", script])
        self._sleepers[name] = sleeper
        (self._folder / name).write_text(str(sleeper.pid))
        ours = _net(os.getpid())
        until(lambda: _net(sleeper.pid) != ours, 10.0)
        return sleeper

    def _in_switch(self, script: str) -> None:
        command = ["nsenter", "--target", str(self._switch.pid), "--net", "sh", "-c", script]
        subprocess.run(command, check=True)


def name_of(pid: int) -> str:
    """What a process is called; "" where it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _net(pid: int) -> Path:
    """The network that a process is in."""
    return Path(f"/proc/{pid}/ns/net").readlink()

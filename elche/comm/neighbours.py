"""Which ranks share a host, and each rank's place among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Neighbours(NamedTuple):
    """A rank's place among those of its host, and its host's among the hosts."""

    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int

    @classmethod
    def of(cls, hosts: Sequence[int], rank: int) -> Neighbours:
        """Return the place of `rank`.

        Args:
            hosts: by rank, a number that ranks of one host share.
            rank: whose place.

        Returns:
            Its place; `cross` counts the hosts that have a rank of this local number.

        Example:
            >>> Neighbours.of([0, 0, 2, 2, 2], 3)
            Neighbours(local_rank=1, local_size=2, cross_rank=1, cross_size=2)
        """
        here = [other for other, host in enumerate(hosts) if host == hosts[rank]]
        local_rank = here.index(rank)
        peers = [host for other, host in enumerate(hosts) if hosts[:other].count(host) == local_rank]
        return cls(local_rank, len(here), peers.index(hosts[rank]), len(peers))

"""Decisions: who does how much, when windows grow or shrink, which samples go where."""

from __future__ import annotations

from elche.policy.cadence import ElChe
from elche.policy.dispatch import EpochPool
from elche.policy.guards import Guard, MsfGuard, NoGuard, TrendGuard
from elche.policy.lr_meta import LrMetaController
from elche.policy.records import DivergenceReport, ElCheState, Phase, Verdict, WindowReport

__all__ = [
    "DivergenceReport",
    "ElChe",
    "ElCheState",
    "EpochPool",
    "Guard",
    "LrMetaController",
    "MsfGuard",
    "NoGuard",
    "Phase",
    "TrendGuard",
    "Verdict",
    "WindowReport",
]

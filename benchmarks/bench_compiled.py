"""What every kernel compiles to on every GPU, without one: registers, own memory, bytes per element.

python benchmarks/bench_compiled.py
"""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import harness

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kernels"))  # what the tests compile, too
from specialisations import specialisations
from targets import TARGETS, compile_for, resources


def main() -> None:
    header = {**harness.conditions(), "compiler": f"triton {importlib.metadata.version('triton')}"}
    found = {
        name: {target: resources(compile_for(target, one.launch)) for target in TARGETS}
        for name, one in specialisations().items()
    }
    text = harness.paragraph("""
        Registers of a thread, by ptxas and by AMD's compiler, behind a plus the bytes of its own memory
        (spills, stack) where there are any. Read and written: bytes per element of the interior, summed over
        the four dtypes that a slot's tensor may have (4 + 2 + 2 + 8) where a kernel has code for each;
        tests/kernels/test_compiled.py counts them in the code.""")
    rows = [
        [
            name,
            str(one.reads),
            str(one.writes),
            *(f"{registers}{f' + {own}' if own else ''}" for registers, own in found[name].values()),
        ]
        for name, one in specialisations().items()
    ]
    table = harness.markdown_table(["kernel", "read", "written", *TARGETS], rows)
    harness.report("compiled", header, f"{text}\n\n{table}", found)


if __name__ == "__main__":
    main()

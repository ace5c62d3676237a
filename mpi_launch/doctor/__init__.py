"""`elche-doctor`: whether a machine can train, and what to do about it. Standard library only.

Facts are gathered (`probes`, `launcher`, `machine`, `live`), judged (`findings`, in plain values) and drawn
(`screen`). A fact is a plain value, so that --json prints what was judged:

| fact | gathered by | keys |
|---|---|---|
| elche | `facts` | version, python, executable, needs: {library: least version} |
| shell | `facts` | error, launcher, omp_num_threads, visible_gpus, python_path, folder |
| mpi | `launcher` | mpirun, family, version, kind, is_cuda_aware, error |
| mpi4py | `probes` | path, version, library, libmpi, family, library_version, mpirun, error |
| numpy, triton | `probes` | path, version, error |
| torch | `probes` | path, version, cuda, cuda_told, threads, gpus, error |
| cupy | `probes` | reason, version, cuda, nccl, error |
| driver, host | `probes` | gpus, error; name, address, error |
| processors, root, shared_memory, temporary, interfaces, loopback, stale | `machine` | |
| live | `live` | asked, loses_one, wall_seconds, told, error, and the figures; or skipped: why |
"""

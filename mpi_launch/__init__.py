"""Starting and watching ranks; installs as `elche.mpi_launch`. Standard library only.

It runs before torch, numpy or MPI are known to work, so it imports none of them: what it wants to know
of them it asks child processes.
"""

"""Ways to talk: one Protocol (base), threads (memory), host buffers over MPI (mpi)."""

"""Where the work runs: devices, threads, processes."""

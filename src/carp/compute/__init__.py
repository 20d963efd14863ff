"""The hardware that a task uses: devices, threads and processes."""

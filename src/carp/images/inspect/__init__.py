"""Look at images before training: scans, throughput, sizes, altered copies."""

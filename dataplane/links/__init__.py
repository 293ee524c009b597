"""What an input edge's payloads cross before they are taken: `shm` (nothing: one memory) or `emulated` (a path)."""

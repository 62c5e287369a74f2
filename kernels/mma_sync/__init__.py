"""Family ``mma_sync``: tensor cores by mma.sync, sm_80 and later."""

"""Family ``wgmma_ws``: warp-specialised, persistent wgmma, sm_90a."""

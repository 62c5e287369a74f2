"""Family ``wgmma``: TMA and wgmma in one warp role, sm_90a."""
